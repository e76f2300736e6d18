package kvstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// blocked opens a store whose updater waits at the gate with key 1; key 2 is free.
func blocked(t *testing.T, config Config) (*Store, *gate) {
	t.Helper()
	store := open(t, "local", config)
	ctx := context.Background()
	ok(t, store.Init(ctx, 1, Of([]float32{1, 1})))
	ok(t, store.Init(ctx, 2, Of([]float32{2, 2})))
	gate := newGate()
	ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
		if key == 1 {
			return gate.update(key, input, stored)
		}
		return addTo(key, input, stored)
	}))
	return store, gate
}

func start(t *testing.T, store *Store, key Key, value ...float32) *Ticket {
	t.Helper()
	ticket, err := store.PushAsync(Pairs(key, Of(value)), 0)
	ok(t, err)
	return ticket
}

func isDone(ticket *Ticket) bool {
	select {
	case <-ticket.Done():
		return true
	default:
		return false
	}
}

func pulled(t *testing.T, store *Store, key Key) []float32 {
	t.Helper()
	out := make([]float32, 2)
	ok(t, store.Pull(context.Background(), key, Of(out)))
	return out
}

func TestTicketsOfEveryOperation(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	a, b, c, d := []float32{1, 2}, []float32{0, 0}, []float32{0, 0}, []float32{0, 0}
	ticket, err := store.BroadcastAsync(Pairs(1, Of(a)), Pairs(1, Of(b)), 0)
	ok(t, err)
	ok(t, ticket.Wait(ctx))
	equals(t, b, a)
	ticket, err = store.PushAsync(Pairs(1, Of(a), Of(b)), 3)
	ok(t, err)
	<-ticket.Done()
	ok(t, ticket.Wait(ctx))
	ok(t, ticket.Wait(context.Background()))
	ticket, err = store.PullAsync(Pairs(1, Of(c)), -3)
	ok(t, err)
	ok(t, ticket.Wait(context.Background()))
	equals(t, c, []float32{2, 4})
	ticket, err = store.PushPullAsync(Pairs(1, Of(a), Of(c)), Pairs(1, Of(d)), 0)
	ok(t, err)
	ok(t, ticket.Wait(ctx))
	equal(t, isDone(ticket), true)
	equals(t, d, []float32{3, 6})
	_, err = store.PushAsync(Pairs(9, Of(a)), 0)
	fails(t, err, ErrKeyNotFound)
}

func TestWaitGivesUpButTheOperationGoesOn(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, nil)
	ticket := start(t, store, 1, 5, 6)
	<-gate.entered
	short, stop := context.WithTimeout(ctx, 30*time.Millisecond)
	defer stop()
	fails(t, ticket.Wait(short), context.DeadlineExceeded)
	fails(t, ticket.Wait(short), context.DeadlineExceeded)
	cancelled, stop := context.WithCancel(ctx)
	time.AfterFunc(30*time.Millisecond, stop)
	fails(t, ticket.Wait(cancelled), context.Canceled)
	equal(t, isDone(ticket), false)
	close(gate.open)
	ok(t, ticket.Wait(ctx))
	equal(t, isDone(ticket), true)
	equals(t, pulled(t, store, 1), []float32{6, 7})
}

func TestCancelWithdrawsWhatHasNotBegun(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, nil)
	first := start(t, store, 1, 1, 1)
	<-gate.entered
	second := start(t, store, 1, 100, 100)
	ok(t, second.Cancel(ctx))
	ok(t, second.Cancel(ctx))
	fails(t, second.Wait(ctx), ErrCancelled)
	equal(t, isDone(second), true)
	close(gate.open)
	ok(t, first.Wait(ctx))
	ok(t, first.Cancel(ctx))
	ok(t, first.Wait(ctx))
	equals(t, pulled(t, store, 1), []float32{2, 2})
}

func TestCancelSaysThatMemoryIsLentWhileAnUpdaterBlocks(t *testing.T) {
	ctx := begin(t)
	for name, limit := range map[string]struct {
		config Config
		ctx    time.Duration
		want   error
	}{
		"of the store":   {Config{"timeout_ms": "50"}, testTimeout, ErrTimeout},
		"of the context": {nil, 50 * time.Millisecond, context.DeadlineExceeded},
	} {
		limit := limit
		t.Run(name, func(t *testing.T) {
			store, gate := blocked(t, limit.config)
			ticket := start(t, store, 1, 5, 6)
			<-gate.entered
			short, stop := context.WithTimeout(ctx, limit.ctx)
			defer stop()
			err := ticket.Cancel(short)
			fails(t, err, ErrLent)
			fails(t, err, limit.want)
			equal(t, isPinned(ticket), true)
			close(gate.open)
			<-ticket.Done()
			equal(t, isPinned(ticket), false)
			// The only key of the push had been reached, so it took effect.
			ok(t, ticket.Wait(ctx))
			equals(t, pulled(t, store, 1), []float32{6, 7})
		})
	}
}

func isPinned(ticket *Ticket) bool {
	settled, _ := ticket.result()
	return !settled
}

func TestCallReturnsItsMemoryWhenTheContextEnds(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, nil)
	first := start(t, store, 1, 1, 1)
	<-gate.entered
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	err := store.Push(short, 1, Of([]float32{100, 100}))
	fails(t, err, context.DeadlineExceeded)
	fails(t, err, ErrCancelled)
	equal(t, errors.Is(err, ErrLent), false)
	if !strings.Contains(err.Error(), "push") {
		t.Errorf("%v does not name the call", err)
	}
	cancelled, stop := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, stop)
	fails(t, store.PushPull(cancelled, 1, []Tensor{Of([]float32{100, 100})}, nil), context.Canceled)
	close(gate.open)
	ok(t, first.Wait(ctx))
	ok(t, store.WaitAll(ctx))
	equals(t, pulled(t, store, 1), []float32{2, 2})
}

func TestCallSaysThatMemoryIsLentWhileItsUpdaterBlocks(t *testing.T) {
	ctx := begin(t)
	// The cancel is given up by the package, or by the library first.
	for _, config := range []Config{nil, {"timeout_ms": "50"}} {
		store, gate := blocked(t, config)
		cancelled, stop := context.WithCancel(ctx)
		go func() { <-gate.entered; stop() }()
		err := store.Push(cancelled, 1, Of([]float32{5, 6}))
		fails(t, err, context.Canceled)
		fails(t, err, ErrLent)
		short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
		defer stop()
		fails(t, store.WaitAll(short), context.DeadlineExceeded)
		lent := store.tickets.pending[0]
		equal(t, isPinned(lent), true)
		close(gate.open)
		// The loan ends with the operation, without any call.
		for isPinned(lent) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		equal(t, isPinned(lent), false)
		ok(t, store.WaitAll(ctx))
		equals(t, pulled(t, store, 1), []float32{6, 7})
	}
}

func TestWaitAllTellsOfFailuresOnce(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	ok(t, store.SetUpdater(func(_ Key, input, _ Tensor) error {
		if number := Slice[float32](input)[0]; number < 0 {
			return errors.New("negative")
		}
		return nil
	}))
	start(t, store, 1, 1)
	ok(t, store.WaitAll(ctx))
	start(t, store, 1, -1)
	start(t, store, 1, 1)
	fails(t, store.WaitAll(ctx), ErrCallback)
	ok(t, store.WaitAll(ctx))

	known := start(t, store, 1, -1)
	fails(t, known.Wait(ctx), ErrCallback)
	fails(t, known.Wait(ctx), ErrCallback)
	ok(t, store.WaitAll(context.Background()))

	for i := 0; i < 20; i++ {
		start(t, store, 1, -1)
	}
	err := store.WaitAll(context.Background())
	fails(t, err, ErrCallback)
	if !strings.Contains(err.Error(), "19 more failures") {
		t.Errorf("%v does not count the others", err)
	}
	ok(t, store.WaitAll(ctx))
}

func TestCloseTellsOfFailures(t *testing.T) {
	ctx := begin(t)
	store, err := Open("local", nil)
	ok(t, err)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error { return errors.New("no") }))
	ticket := start(t, store, 1, 1)
	fails(t, store.Close(), ErrCallback)
	ok(t, store.Close())
	fails(t, ticket.Wait(ctx), ErrCallback)
}

func TestDroppedTicketsAreNotGathered(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{0})))
	ok(t, store.SetUpdater(addTo))
	most := 0
	for i := 0; i < 5000; i++ {
		start(t, store, 1, 1)
		if i%100 == 0 {
			// The library may be slower than this loop, but not for ever.
			ticket := start(t, store, 1, 1)
			ok(t, ticket.Wait(ctx))
		}
		most = max(most, len(store.tickets.pending))
	}
	if most > 500 {
		t.Errorf("%d tickets were kept", most)
	}
	ok(t, store.WaitAll(ctx))
	equal(t, len(store.tickets.pending), 0)
	out := []float32{0}
	ok(t, store.Pull(ctx, 1, Of(out)))
	equal(t, out[0], 5050)
}

func TestOnlyTheLastFailuresAreKept(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{0})))
	ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error { return errors.New("no") }))
	for i := 0; i < 3000; i++ {
		start(t, store, 1, 1)
	}
	err := store.WaitAll(ctx)
	if err == nil {
		t.Fatal("no failure was told")
	}
	equal(t, len(store.tickets.failed), 0)
	ok(t, store.WaitAll(ctx))
}

func TestDoneChannelsTakeNoThreads(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, nil)
	first := start(t, store, 1, 1, 1)
	<-gate.entered
	ok(t, store.SetUpdater(addTo))
	before := threads(t)
	const count = 10000
	tickets := make([]*Ticket, count)
	for i := range tickets {
		tickets[i] = start(t, store, 1, 1, 1)
		equal(t, isDone(tickets[i]), false)
	}
	// One is the library's; the scheduler of Go may add some of its own, whatever the count.
	if more := threads(t) - before; more > 20 {
		t.Errorf("%d operations in flight took %d threads", count, more)
	}
	close(gate.open)
	for _, ticket := range tickets {
		select {
		case <-ticket.Done():
			ok(t, ticket.Wait(ctx))
		case <-ctx.Done():
			t.Fatal("an operation has not ended")
		}
	}
	ok(t, first.Wait(ctx))
	equals(t, pulled(t, store, 1), []float32{count + 2, count + 2})
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	ok(t, err)
	return len(tasks)
}

func TestDoneChannelsCloseWithTheStore(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, nil)
	working := start(t, store, 1, 1, 1)
	<-gate.entered
	waiting := start(t, store, 1, 1, 1)
	done := waiting.Done()
	store.Abort()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("an abort has not closed the channel")
	}
	fails(t, waiting.Wait(ctx), ErrClosed)
	equal(t, isDone(working), false)
	close(gate.open)
	<-working.Done()
	ok(t, working.Wait(ctx))
}

func TestLargerPrioritiesRunEarlier(t *testing.T) {
	ctx := begin(t)
	store, gate := blocked(t, Config{"threads": "1"})
	start(t, store, 1, 0, 0)
	<-gate.entered
	var order []Key
	ok(t, store.InitList(ctx, []Pair{{3, Of([]float32{0})}, {4, Of([]float32{0})}}))
	ok(t, store.SetUpdater(func(key Key, _, _ Tensor) error { order = append(order, key); return nil }))
	for key, priority := range map[Key]int32{2: 0, 3: 10, 4: 5} {
		value := []float32{1, 1}
		if key != 2 {
			value = value[:1]
		}
		_, err := store.PushAsync(Pairs(key, Of(value)), priority)
		ok(t, err)
	}
	close(gate.open)
	ok(t, store.WaitAll(ctx))
	equals(t, order, []Key{3, 4, 2})
}
