package kvstore

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUpdaterSeesKeyInputAndStored(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		name, err := store.Intern("bias")
		ok(t, err)
		one := func() Tensor { return Of(filled(6, float32(1)), 2, 3) }
		ok(t, store.InitList(ctx, []Pair{{9, one()}, {name, one()}, {5, one()}}))
		var order []Key
		ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
			order = append(order, key)
			for _, tensor := range []Tensor{input, stored} {
				if tensor.DType() != F32 || len(tensor.Shape()) != 2 || tensor.Shape()[1] != 3 {
					return errors.New("wrong type or shape")
				}
			}
			if stored.Device() != (Device{CPU, 0}) {
				return errors.New("wrong device")
			}
			return addTo(key, input, stored)
		}))
		ok(t, store.PushList(ctx, []Pair{{name, one()}, {9, one()}, {5, one()}, {9, one()}}))
		equals(t, order, []Key{5, 9, name})
		a, b, c := make([]float32, 6), make([]float32, 6), make([]float32, 6)
		ok(t, store.PullList(ctx, []Pair{{5, Of(a, 2, 3)}, {9, Of(b, 2, 3)}, {name, Of(c, 2, 3)}}))
		equals(t, a, filled(6, float32(2)))
		equals(t, b, filled(6, float32(3)))
		equals(t, c, filled(6, float32(2)))

		ok(t, store.SetUpdater(nil))
		ok(t, store.Push(ctx, 5, one()))
		ok(t, store.Pull(ctx, 5, Of(a, 2, 3)))
		equals(t, a, filled(6, float32(1)))
		equal(t, len(order), 3)
	})
}

func TestUpdaterOfScalarsAndEmptyTensors(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		number := int64(1)
		ok(t, store.Init(ctx, 1, Scalar(&number)))
		ok(t, store.Init(ctx, 2, Of([]int64{}, 0, 4)))
		ok(t, store.SetUpdater(func(_ Key, input, stored Tensor) error {
			for i, x := range Slice[int64](input) {
				Slice[int64](stored)[i] += x
			}
			return nil
		}))
		ok(t, store.Push(ctx, 1, Scalar(&number)))
		ok(t, store.Push(ctx, 2, Of([]int64{}, 0, 4)))
		ok(t, store.Pull(ctx, 1, Scalar(&number)))
		equal(t, number, 2)
	})
}

func TestFailingUpdaterFailsThePush(t *testing.T) {
	for name, test := range map[string]struct {
		fail func() error
		text string
	}{
		"error":    {func() error { return errors.New("the dog ate it") }, "the dog ate it"},
		"no text":  {func() error { return errors.New("") }, "key 5"},
		"zeros":    {func() error { return errors.New("a\x00b") }, "a\uFFFDb"},
		"panic":    {func() error { panic("at the disco") }, "at the disco"},
		"nil":      {func() error { panic(nil) }, "panic"},
		"runtime":  {func() error { var none []int; none[len(none)] = 1; return nil }, "out of range"},
		"not utf8": {func() error { return errors.New("\xff!") }, "!"},
		"status":   {func() error { return ErrTimeout }, "KV_ERR_TIMEOUT"},
	} {
		test := test
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, ctx context.Context) {
				failingUpdater(t, ctx, test.fail, test.text)
			})
		})
	}
}

func failingUpdater(t *testing.T, ctx context.Context, fail func() error, text string) {
	store := open(t, "local", Config{"updater_undo": "yes"})
	one := Of([]float32{1})
	for key := Key(4); key <= 6; key++ {
		ok(t, store.Init(ctx, key, one))
	}
	ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
		_ = addTo(key, input, stored)
		if key == 5 {
			return fail()
		}
		return nil
	}))
	err := store.PushList(ctx, []Pair{{4, one}, {5, one}, {6, one}})
	fails(t, err, ErrCallback)
	if !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "key 5") {
		t.Errorf("%v does not say %q and the key", err, text)
	}
	for key, want := range map[Key]float32{4: 2, 5: 1, 6: 1} {
		out := []float32{0}
		ok(t, store.Pull(ctx, key, Of(out)))
		equal(t, out[0], want)
	}
	ok(t, store.Push(ctx, 4, one))
}

func TestWrongSliceInAnUpdaterIsTheErrorOfThePush(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		ok(t, store.Init(ctx, 1, Of([]float64{1})))
		ok(t, store.SetUpdater(addTo))
		err := store.Push(ctx, 1, Of([]float64{1}))
		fails(t, err, ErrCallback)
		if !strings.Contains(err.Error(), "float64, not float32") {
			t.Errorf("%v does not name the types", err)
		}
	})
}

func TestUpdaterMayAskButNotUseItsStore(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		one := Of([]float32{1})
		name, err := store.Intern("weight")
		ok(t, err)
		ok(t, store.Init(ctx, name, one))
		var asked string
		var refused []error
		ok(t, store.SetUpdater(func(key Key, _, _ Tensor) error {
			var err error
			if asked, err = store.KeyName(key); err != nil {
				return err
			}
			for _, ask := range []func() error{
				func() error { _, _, err := store.KeyInfo(key); return err },
				func() error { _, err := store.Type(); return err },
				func() error { _, err := store.Role(); return err },
				func() error { _, err := store.Rank(); return err },
				func() error { _, err := store.NumWorkers(); return err },
			} {
				if err := ask(); err != nil {
					return err
				}
			}
			_, errAsync := store.PullAsync(Pairs(name, one), 0)
			_, errKeys := store.Keys()
			refused = []error{
				store.Push(context.Background(), name, one), store.Init(context.Background(), 9, one),
				store.WaitAll(context.Background()), store.Close(), store.SetUpdater(nil), errAsync, errKeys,
				store.SetOptimizer("sgd", nil), store.SetHyperparameter("learning_rate", 1),
				store.SetKeyHyperparameter(key, "lr_mult", 1), store.Serve(context.Background()),
			}
			return nil
		}))
		ok(t, store.Push(ctx, name, one))
		equal(t, asked, "weight")
		equal(t, len(refused), 11)
		for _, err := range refused {
			fails(t, err, ErrReentrant)
		}
		ok(t, store.Pull(ctx, name, one))
	})
}

func TestUpdaterIsDroppedWhenReplaced(t *testing.T) {
	begin(t)
	store := open(t, "local", nil)
	collected := make(chan struct{})
	func() {
		kept := new([1000]int)
		runtime.SetFinalizer(kept, func(any) { close(collected) })
		ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error { kept[0]++; return nil }))
	}()
	ok(t, store.SetUpdater(addTo))
	for end := time.Now().Add(20 * time.Second); ; {
		runtime.GC()
		select {
		case <-collected:
			return
		case <-time.After(time.Millisecond):
			if time.Now().After(end) {
				t.Fatal("the old updater is still held")
			}
		}
	}
}

func TestLoggerHearsWhatHappens(t *testing.T) {
	begin(t)
	var mu sync.Mutex
	var lines []string
	ok(t, SetLogger(LogDebug, func(level LogLevel, message string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, level.String()+": "+message)
		panic("in the logger")
	}))
	store, err := Open("local", nil)
	ok(t, err)
	ok(t, store.Init(context.Background(), 7, Of([]float32{1})))
	ok(t, store.Close())
	ok(t, SetLogger(LogOff, nil))
	mu.Lock()
	heard := len(lines)
	mu.Unlock()
	if heard == 0 {
		t.Fatal("nothing was heard")
	}
	store, err = Open("local", nil)
	ok(t, err)
	ok(t, store.Close())
	equal(t, len(lines), heard)
	fails(t, SetLogger(99, func(LogLevel, string) {}), ErrInvalidArgument)
	equal(t, LogWarn.String(), "warn")
	equal(t, LogLevel(9).String(), "LogLevel(9)")
}
