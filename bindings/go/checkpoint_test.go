package kvstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// trained is a store with two keys, and an optimizer that has made a step.
func trained(t *testing.T, ctx context.Context) (*Store, []Key) {
	t.Helper()
	store := open(t, "local", nil)
	weight, err := store.Intern("weight")
	ok(t, err)
	keys := []Key{7, weight}
	for _, key := range keys {
		ok(t, store.Init(ctx, key, Of(filled[float32](5, 1))))
	}
	ok(t, store.SetOptimizer("adam", Params{"learning_rate": 0.1, "wd": 1.0 / 3}))
	ok(t, store.SetKeyHyperparameter(weight, "lr_mult", 0.5))
	stepOnce(t, ctx, store, keys)
	return store, keys
}

func stepOnce(t *testing.T, ctx context.Context, store *Store, keys []Key) {
	t.Helper()
	for _, key := range keys {
		ok(t, store.Push(ctx, key, Of([]float32{1, -2, 3, 0.5, 0})))
	}
}

func floatsOf(t *testing.T, ctx context.Context, store *Store, key Key) []float32 {
	t.Helper()
	out := make([]float32, 5)
	ok(t, store.Pull(ctx, key, Of(out)))
	return out
}

func TestTrainingGoesOnFromAFile(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		path := filepath.Join(t.TempDir(), "file")
		store, keys := trained(t, ctx)
		ok(t, store.Save(ctx, path))
		other := open(t, "device", nil)
		ok(t, other.Load(ctx, path))
		found, err := other.Keys()
		ok(t, err)
		equals(t, found, keys)
		for i := 0; i < 3; i++ {
			for _, key := range keys {
				equals(t, floatsOf(t, ctx, other, key), floatsOf(t, ctx, store, key))
			}
			stepOnce(t, ctx, store, keys)
			stepOnce(t, ctx, other, keys)
		}
	})
}

func TestBadFilesAreRefused(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		folder := t.TempDir()
		path := filepath.Join(folder, "file")
		store, keys := trained(t, ctx)
		ok(t, store.Save(ctx, path))
		before := floatsOf(t, ctx, store, 7)
		bytes, err := os.ReadFile(path)
		ok(t, err)
		fails(t, store.Load(ctx, folder), ErrIO)
		fails(t, store.Save(ctx, folder), ErrIO)
		fails(t, store.Load(ctx, filepath.Join(folder, "none")), ErrIO)
		fails(t, store.Load(ctx, "\x00"), ErrInvalidArgument)
		fails(t, store.Save(ctx, path+"\x00"), ErrInvalidArgument)
		bytes[len(bytes)-1] ^= 1
		ok(t, os.WriteFile(path, bytes, 0o600))
		err = store.Load(ctx, path)
		fails(t, err, ErrCorrupt)
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not name the file", err)
		}
		ok(t, os.WriteFile(path, []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), 0o600))
		fails(t, store.Load(ctx, path), ErrUnsupported)
		equals(t, floatsOf(t, ctx, store, 7), before)
		ok(t, store.Remove(ctx, keys...))
		ok(t, store.Close())
		fails(t, store.Save(ctx, path), ErrClosed)
		fails(t, store.Load(ctx, path), ErrClosed)
	})
}

func TestNoFileIsWrittenOnceAContextHasEnded(t *testing.T) {
	ctx := begin(t)
	store, _ := trained(t, ctx)
	over, stop := context.WithCancel(ctx)
	stop()
	path := filepath.Join(t.TempDir(), "file")
	fails(t, store.Save(over, path), context.Canceled)
	fails(t, store.Load(over, path), context.Canceled)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("there is a file, %v", err)
	}
}

func TestValuesAreLoadedForTheKeysThatAFunctionNames(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		header := `{"model.a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},` +
			`"head":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`
		file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
		file = append(file, header...)
		for _, number := range []float32{1.5, -2} {
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(number))
		}
		ok(t, os.WriteFile(path, file, 0o600))
		store := open(t, "local", nil)
		ok(t, store.LoadValues(ctx, path, func(tensor string) (string, bool, error) {
			name, found := strings.CutPrefix(tensor, "model.")
			return name, found, nil
		}))
		key, err := store.Intern("a")
		ok(t, err)
		keys, err := store.Keys()
		ok(t, err)
		equals(t, keys, []Key{key})
		out := []float32{0}
		ok(t, store.Pull(ctx, key, Of(out)))
		equals(t, out, []float32{1.5})

		refused := func(name func(string) (string, bool, error), status error, text string) {
			t.Helper()
			err := store.LoadValues(ctx, path, name)
			if !errors.Is(err, status) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v is not %v with %q", err, status, text)
			}
		}
		same := func(tensor string) (string, bool, error) { return tensor, true, nil }
		refused(func(tensor string) (string, bool, error) {
			return "", false, errors.New(tensor + " has no place")
		}, ErrCallback, "model.a has no place")
		refused(func(string) (string, bool, error) { panic("no") }, ErrCallback, "panic: no")
		refused(func(string) (string, bool, error) { return "a\x00b", true, nil }, ErrCallback, "zero byte")
		refused(func(string) (string, bool, error) { return "one", true, nil }, ErrInvalidArgument, "both named")
		refused(nil, ErrInvalidArgument, "name is nil")
		ok(t, store.Save(ctx, path))
		refused(same, ErrUnsupported, "checkpoint of a store")
	})
}
