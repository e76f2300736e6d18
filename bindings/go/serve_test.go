package kvstore

import (
	"context"
	"testing"
	"time"
)

func TestWorkersDoNotServe(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	fails(t, store.Serve(ctx), ErrRole)
	fails(t, store.Serve(context.Background()), ErrRole)
	over, stop := context.WithCancel(ctx)
	stop()
	fails(t, store.Serve(over), context.Canceled)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
}

// serving is a store that serves, with a call of the library that only Abort ends in the place of
// kv_serve: the wait for a push that stands behind a closed gate.
type serving struct {
	*Store
	gate  *gate
	ended chan error
}

func serve(t *testing.T, ctx context.Context) serving {
	store, err := Open("local", nil)
	ok(t, err)
	ok(t, store.InitList(context.Background(), []Pair{{1, Of([]float32{1})}, {2, Of([]float32{2})}}))
	at := serving{store, newGate(), make(chan error, 1)}
	ok(t, store.SetUpdater(at.gate.update))
	_, err = store.PushAsync(Pairs(1, Of([]float32{1})), 0)
	ok(t, err)
	<-at.gate.entered
	queued, err := store.PushAsync(Pairs(1, Of([]float32{1})), 0)
	ok(t, err)
	entered := make(chan struct{})
	go func() {
		at.ended <- store.serve(ctx, func() error {
			close(entered)
			return queued.Wait(context.Background())
		})
	}()
	<-entered
	return at
}

func TestAContextEndsServe(t *testing.T) {
	begin(t)
	ctx, stop := context.WithCancel(context.Background())
	at := serve(t, ctx)
	stop()
	fails(t, <-at.ended, context.Canceled)
	equal(t, at.serving.Load(), 0)
	close(at.gate.open)
	ok(t, at.Close())

	ctx, stop = context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	at = serve(t, ctx)
	fails(t, <-at.ended, context.DeadlineExceeded)
	close(at.gate.open)
	ok(t, at.Close())
}

func TestOtherMethodsWorkWhileServing(t *testing.T) {
	ctx := begin(t)
	at := serve(t, ctx)
	role, err := at.Role()
	ok(t, err)
	equal(t, role, RoleWorker)
	out := []float32{0}
	ok(t, at.Pull(ctx, 2, Of(out)))
	equal(t, out[0], 2)
	ok(t, at.SetUpdater(addTo))
	at.Abort()
	fails(t, <-at.ended, ErrClosed)
	close(at.gate.open)
	ok(t, at.Close())
}

func TestCloseEndsServeAndFrees(t *testing.T) {
	for _, end := range []func(at serving) error{
		func(at serving) error { return at.Close() },
		func(at serving) error { return at.Shutdown(context.Background()) },
	} {
		begin(t)
		at := serve(t, context.Background())
		result := make(chan error, 1)
		go func() { result <- end(at) }()
		fails(t, <-at.ended, ErrClosed)
		close(at.gate.open)
		ok(t, <-result)
		for freed := false; !freed; time.Sleep(time.Millisecond) {
			at.mu.RLock()
			freed = at.handle == nil
			at.mu.RUnlock()
		}
		fails(t, at.Serve(context.Background()), ErrClosed)
	}
}
