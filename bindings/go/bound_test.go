package kvstore

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// bound binds lists that are closed with the test.
func bound(t testing.TB, store *Store, values, outs []Pair) *Bound {
	t.Helper()
	list, err := store.Bind(values, outs)
	ok(t, err)
	t.Cleanup(func() { ok(t, list.Close()) })
	return list
}

// refuses wants an error that matches and has a text.
func refuses(t testing.TB, err, want error, text string) {
	t.Helper()
	fails(t, err, want)
	if !strings.Contains(err.Error(), text) {
		t.Fatalf("error is %v, without %q", err, text)
	}
}

func TestBoundListsUseWhatTheSlicesHaveThen(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		a, b, out := []float32{1, 2}, []float32{10, 20}, []float32{0, 0}
		wide := [][]float64{{0, 0}}
		ok(t, store.InitList(ctx, append(Pairs(1, Of(a)), Pairs(2, Of(b))...)))
		list := bound(t, store, append(Pairs(1, Of(a), Of(b)), Pairs(2, Of(b))...),
			append(Pairs(2, Of(wide[0])), Pairs(1, Of(out))...))
		runtime.GC()
		for step := 0; step < 3; step++ {
			a[0] = float32(step)
			ok(t, list.PushPull(ctx))
			equals(t, out, []float32{float32(step) + 10, 22})
			equals(t, wide[0], []float64{10, 20})
		}
		a[1] = 5
		ok(t, list.Push(ctx))
		equal(t, out[1], 22)
		ok(t, list.Pull(ctx))
		equal(t, out[1], 25)
	})
}

func TestWhatBoundListsRefuse(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		value, longer := []float32{1, 2}, []float32{1, 2, 3}
		ok(t, store.Init(ctx, 7, Of(value)))
		_, err := store.Bind(Pairs(8, Of(value)), nil)
		refuses(t, err, ErrKeyNotFound, "key 8")
		_, err = store.Bind(Pairs(7, Of(longer)), nil)
		refuses(t, err, ErrShapeMismatch, "key 7")
		_, err = store.Bind(Pairs(7, Of(value, 5)), nil)
		refuses(t, err, ErrInvalidArgument, "key 7")
		pushes := bound(t, store, Pairs(7, Of(value)), nil)
		pulls := bound(t, store, nil, Pairs(7, Of(value)))
		refuses(t, pushes.PushPull(ctx), ErrInvalidArgument, "without outs")
		refuses(t, pulls.Push(ctx), ErrInvalidArgument, "without values")
		ok(t, store.Remove(ctx, 7))
		refuses(t, pushes.Push(ctx), ErrKeyNotFound, "key 7")
		ok(t, store.Init(ctx, 7, Of(longer)))
		refuses(t, pulls.Pull(ctx), ErrShapeMismatch, "key 7")
		equals(t, value, []float32{1, 2})
		ok(t, pulls.Close())
		ok(t, pulls.Close())
		fails(t, pulls.Pull(ctx), ErrClosed)
		ok(t, store.Close())
		fails(t, pushes.Push(ctx), ErrClosed)
		_, err = store.Bind(nil, nil)
		fails(t, err, ErrClosed)
	})
}

func TestGoroutinesTakeTurnsWithABoundList(t *testing.T) {
	ctx := context.Background()
	store := open(t, "local", nil)
	one, out := []int64{1}, []int64{0}
	ok(t, store.Init(ctx, 1, Of(out)))
	ok(t, store.SetUpdater(func(_ Key, input, stored Tensor) error {
		Slice[int64](stored)[0] += Slice[int64](input)[0]
		return nil
	}))
	list := bound(t, store, Pairs(1, Of(one)), Pairs(1, Of(out)))
	var all sync.WaitGroup
	for i := 0; i < 4; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for step := 0; step < 100; step++ {
				if err := list.PushPull(ctx); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	equal(t, out[0], 400)
}

func TestAnUpdaterMayNotUseABoundList(t *testing.T) {
	ctx := context.Background()
	store := open(t, "local", nil)
	one := []int64{1}
	ok(t, store.Init(ctx, 1, Of(one)))
	list := bound(t, store, Pairs(1, Of(one)), Pairs(1, Of(one)))
	ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error {
		fails(t, list.Push(ctx), ErrReentrant)
		fails(t, list.Close(), ErrReentrant)
		return nil
	}))
	ok(t, list.Push(ctx))
}

// BenchmarkBound is a push and a pull of a thousand small keys, bound and by lists.
func BenchmarkBound(b *testing.B) {
	ctx := context.Background()
	store := open(b, "local", nil)
	var pairs []Pair
	for key := Key(0); key < 1000; key++ {
		pairs = append(pairs, Pair{key, Of(make([]float32, 64))})
	}
	ok(b, store.InitList(ctx, pairs))
	list := bound(b, store, pairs, pairs)
	for name, call := range map[string]func() error{
		"lists": func() error { return store.PushPullList(ctx, pairs, pairs) },
		"bound": func() error { return list.PushPull(ctx) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i++ {
				ok(b, call())
			}
		})
	}
}
