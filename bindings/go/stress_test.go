package kvstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// collect runs the garbage collector until the test ends.
func collect(t *testing.T) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
				time.Sleep(time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

// The program drops its slices at once: only the store's pins keep them. Garbage of the same size
// would take their place.
func TestMemoryInFlightSurvivesTheCollector(t *testing.T) {
	ctx := begin(t)
	collect(t)
	store := open(t, "local", nil)
	const size, rounds = 1 << 12, 300
	ok(t, store.Init(ctx, 1, Of(make([]float32, size))))
	ok(t, store.SetUpdater(addTo))
	for i := 0; i < rounds; i++ {
		_, err := store.PushAsync(Pairs(1, Of(filled(size, float32(1))), Of(filled(size, float32(2)))), 0)
		ok(t, err)
		_, err = store.PullAsync(Pairs(1, Of(make([]float32, size))), 0)
		ok(t, err)
		garbage = filled(size, float32(1e9))
	}
	ok(t, store.WaitAll(ctx))
	out := make([]float32, size)
	ok(t, store.Pull(ctx, 1, Of(out)))
	equals(t, out, filled(size, float32(3*rounds)))
}

var garbage []float32

// The order must not depend on the OS thread, which a goroutine changes whenever it likes.
func TestOperationsOnAKeyKeepTheirOrder(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 100))))
	var group sync.WaitGroup
	for i := 0; i < 8; i++ { // neighbours to change places with
		group.Add(1)
		go func() {
			defer group.Done()
			for ctx.Err() == nil && store.Done() == nil {
				runtime.Gosched()
			}
		}()
	}
	for i := 0; i < 500; i++ {
		for round := float32(1); round <= 3; round++ {
			_, err := store.PushAsync(Pairs(1, Of(filled(100, round))), int32(-round))
			ok(t, err)
			runtime.Gosched()
		}
		out := make([]float32, 100)
		if i%2 == 0 {
			ok(t, store.Pull(context.Background(), 1, Of(out)))
		} else {
			ticket, err := store.PullAsync(Pairs(1, Of(out)), 9)
			ok(t, err)
			ok(t, ticket.Wait(ctx))
		}
		equals(t, out, filled(100, float32(3)))
	}
	ok(t, store.Close())
	group.Wait()
}

func TestTicketsWaitedForUnderTheCollector(t *testing.T) {
	ctx := begin(t)
	collect(t)
	store := open(t, "device", nil)
	const size = 1000
	ok(t, store.Init(ctx, 1, Of(make([]int64, size))))
	for i := int64(0); i < 300; i++ {
		push, err := store.PushAsync(Pairs(1, Of(filled(size, i)), Of(filled(size, i))), 0)
		ok(t, err)
		ok(t, push.Wait(ctx))
		out := make([]int64, size)
		pull, err := store.PullAsync(Pairs(1, Of(out)), 0)
		ok(t, err)
		<-pull.Done()
		equals(t, out, filled(size, 2*i))
	}
}

func TestNoUpdateIsLost(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		const workers, rounds, size = 8, 100, 257
		for _, keys := range []int{1, 3, workers} {
			t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
				store := open(t, "local", nil)
				for key := 0; key < keys; key++ {
					ok(t, store.Init(ctx, Key(key), Of(make([]float32, size))))
				}
				ok(t, store.SetUpdater(addTo))
				var group sync.WaitGroup
				for worker := 0; worker < workers; worker++ {
					group.Add(1)
					go func(key Key) {
						defer group.Done()
						pushRounds(t, ctx, store, key, rounds, size)
					}(Key(worker % keys))
				}
				group.Wait()
				total := float32(0)
				for key := 0; key < keys; key++ {
					out := make([]float32, size)
					ok(t, store.Pull(ctx, Key(key), Of(out)))
					equals(t, out, filled(size, out[0]))
					total += out[0]
				}
				equal(t, total, workers*rounds)
			})
		}
	})
}

// pushRounds pushes ones. It reports without FailNow: it runs on a goroutine of its own.
func pushRounds(t *testing.T, ctx context.Context, store *Store, key Key, rounds, size int) {
	ones, out := filled(size, float32(1)), make([]float32, size)
	before := float32(0)
	for i := 0; i < rounds; i++ {
		if err := store.Push(ctx, key, Of(ones)); err != nil {
			t.Errorf("push: %v", err)
		}
		if err := store.Pull(ctx, key, Of(out)); err != nil {
			t.Errorf("pull: %v", err)
		}
		if out[0] != out[size-1] || out[0] < before+1 {
			t.Errorf("pull gave %v and %v after %v", out[0], out[size-1], before)
		}
		before = out[0]
	}
}

// Each push either counts in full or, cancelled, not at all.
func TestCancelsAmongPushes(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 100))))
	ok(t, store.SetUpdater(addTo))
	var applied atomic.Int64
	var group sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for i := 0; i < 200; i++ {
				ticket, err := store.PushAsync(Pairs(1, Of(filled(100, float32(1)))), int32(i%3))
				if err != nil {
					t.Errorf("push: %v", err)
					return
				}
				if (i+worker)%2 == 0 {
					if err := ticket.Cancel(ctx); err != nil {
						t.Errorf("cancel: %v", err)
					}
				}
				if ticket.Wait(ctx) == nil {
					applied.Add(1)
				}
			}
		}(worker)
	}
	group.Wait()
	out := make([]float32, 100)
	ok(t, store.Pull(ctx, 1, Of(out)))
	equals(t, out, filled(100, float32(applied.Load())))
	if applied.Load() < 800 {
		t.Errorf("only %d pushes were applied", applied.Load())
	}
}

func TestContextsEndAmongPushes(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 1000))))
	ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
		time.Sleep(100 * time.Microsecond)
		return addTo(key, input, stored)
	}))
	var applied atomic.Int64
	var group sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for i := 0; i < 50; i++ {
				short, stop := context.WithTimeout(ctx, time.Duration(i*worker)*10*time.Microsecond)
				if store.Push(short, 1, Of(filled(1000, float32(1)))) == nil {
					applied.Add(1)
				}
				stop()
			}
		}(worker)
	}
	group.Wait()
	out := make([]float32, 1000)
	ok(t, store.Pull(ctx, 1, Of(out)))
	equals(t, out, filled(1000, float32(applied.Load())))
}
