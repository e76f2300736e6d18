package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLent says that memory given to an operation is still in use although the call has returned,
// because an updater held it up. It is in use until the operation ends; [Store.WaitAll] waits for
// that.
var ErrLent = errors.New("the operation is still at work and uses the memory given to it")

// A call whose context is over waits this long for its operation to let go of the memory.
const cancelTimeout = time.Second

// The threads that wait for short operations, at most so many and so long.
const (
	maxShortWaiters = 8
	shortWaitMs     = 1
)

var shortWaiters atomic.Int32

// Ticket is an operation in flight. The memory given to the operation stays pinned until it has
// ended, whether anybody waits or not.
type Ticket struct {
	store  *Store
	number C.kv_ticket

	mu      sync.Mutex // guards the rest
	pins    runtime.Pinner
	settled bool          // the operation has ended with err, and the memory is free
	told    bool          // somebody knows err, or will
	err     error         // how it ended
	done    chan struct{} // closed when settled; made by the first wait
	watched bool          // the library calls kvstoreGoDone when the operation has ended
}

// Wait waits for the operation and returns its error. If ctx ends first, the operation goes on, the
// memory stays in use, and Wait may be called again.
func (t *Ticket) Wait(ctx context.Context) error {
	err := t.await(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	// Not err, if another goroutine has settled it since: the result counts as told.
	if t.settled {
		t.told = true
		return t.err
	}
	return err
}

// Done returns a channel that is closed when the operation has ended; Wait then returns at once.
// Neither takes a thread or a goroutine, however many operations are in flight.
func (t *Ticket) Done() <-chan struct{} {
	done, _ := t.watch()
	return done
}

// Cancel ends the operation: once it returns nil, the memory is yours again, and Wait tells how the
// operation ended: with [ErrCancelled], or as if nothing had happened if it had run its course. If
// ctx ends first, or an updater holds the operation up for longer than the option timeout_ms, the
// memory stays in use, and the error matches [ErrLent].
func (t *Ticket) Cancel(ctx context.Context) error {
	if settled, _ := t.result(); settled {
		return nil
	}
	err := await(ctx, "cancel", func(C.int64_t) error {
		err := t.store.use(func(store *C.kv_store) C.kv_status {
			return C.kv_cancel(store, t.number)
		})
		if err != nil {
			return err
		}
		return t.look()
	})
	if settled, _ := t.result(); settled {
		return nil
	}
	if isOver(err) || errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w; %w", err, ErrLent)
	}
	return err
}

// finish is the second half of a call that waits: it returns when the memory is free, or ErrLent.
func (t *Ticket) finish(ctx context.Context, what string) error {
	err := t.Wait(ctx)
	// Not err, as in Wait.
	if settled, result := t.result(); settled {
		return ofCall(result)
	}
	if isOver(err) {
		err = over(ctx, what)
		grace, stop := context.WithTimeout(context.Background(), cancelTimeout)
		defer stop()
		_ = t.Cancel(grace)
	}
	settled, result := t.result()
	switch {
	case !settled:
		_, _ = t.watch() // the loan ends together with the operation
		return fmt.Errorf("%w; %w", err, ErrLent)
	case errors.Is(result, ErrCancelled):
		return fmt.Errorf("%w; %w", err, result)
	default:
		return ofCall(result)
	}
}

// ofCall gives the error that a call without a ticket has where an operation has this one.
func ofCall(err error) error {
	var failed *Error
	if errors.As(err, &failed) && failed.Status == ErrExpired {
		return &Error{Status: ErrTimeout, Message: failed.Message}
	}
	return err
}

// look asks whether the operation has ended, without waiting.
func (t *Ticket) look() error {
	return t.note(t.store.use(func(store *C.kv_store) C.kv_status {
		return C.kv_wait(store, t.number, 0)
	}))
}

// await waits for the result; that is not yet telling it to the user.
func (t *Ticket) await(ctx context.Context) error {
	if settled, err := t.result(); settled {
		return err
	}
	if err := t.waitShortly(ctx); !errors.Is(err, ErrTimeout) {
		return t.note(err)
	}
	done, err := t.watch()
	if settled, result := t.result(); settled {
		return result
	}
	if err != nil {
		return t.note(err)
	}
	select {
	case <-done:
		_, result := t.result()
		return result
	case <-ctx.Done():
		return over(ctx, "wait")
	}
}

// waitShortly waits on this thread, if few do: an end that a thread of the library tells of comes two
// changes of threads later.
func (t *Ticket) waitShortly(ctx context.Context) error {
	timeout := C.int64_t(0)
	if shortWaiters.Add(1) <= maxShortWaiters && ctx.Err() == nil {
		timeout = shortWaitMs
	}
	defer shortWaiters.Add(-1)
	return t.store.use(func(store *C.kv_store) C.kv_status {
		return C.kv_wait(store, t.number, timeout)
	})
}

// watch has the operation settled when it has ended, and returns the channel that is closed then. If
// it fails, the next call tries again.
func (t *Ticket) watch() (<-chan struct{}, error) {
	done, isNew := t.channel()
	if !isNew {
		return done, nil
	}
	err := t.store.use(func(store *C.kv_store) C.kv_status {
		// The library drops the handle, also if it refuses.
		return C.kvstore_go_on_done(store, t.number, C.uintptr_t(cgo.NewHandle(t)))
	})
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.watched = false
	}
	return done, err
}

// channel returns the channel, and whether the caller is the one who has to make the library watch.
func (t *Ticket) channel() (done chan struct{}, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.settled {
			close(t.done)
		}
	}
	isNew = !t.settled && !t.watched
	t.watched = t.watched || isNew
	return t.done, isNew
}

// kvstoreGoDone is called by a thread of the library, or inside of watch.
//
//export kvstoreGoDone
func kvstoreGoDone(context C.uintptr_t, status C.kv_status) {
	ticket := cgo.Handle(context).Value().(*Ticket)
	ticket.settle(failure(status))
}

// note keeps what a wait has given, if it is the operation's result and not a reason why the wait
// could not tell. It returns the result once there is one.
func (t *Ticket) note(err error) error {
	unknown := err == errFreed || isOver(err)
	for _, status := range []Status{ErrTimeout, ErrReentrant, ErrForked, ErrPoisoned} {
		unknown = unknown || errors.Is(err, status)
	}
	if !unknown {
		t.settle(err)
	}
	if settled, result := t.result(); settled {
		return result
	}
	return err
}

func (t *Ticket) result() (settled bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled, t.err
}

// settle notes how the operation ended and frees its memory. The first result counts.
func (t *Ticket) settle(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled {
		return
	}
	t.settled, t.err = true, err
	t.pins.Unpin()
	if t.done != nil {
		close(t.done)
	}
}

// tell returns the error of an operation that failed without anybody knowing, once.
func (t *Ticket) tell() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.settled || t.told {
		return nil
	}
	t.told = true
	return t.err
}

// WaitAll waits for every operation that was in flight when it was called. It reports the first
// failure that nobody has been told of, and counts the others.
func (s *Store) WaitAll(ctx context.Context) error {
	err := await(ctx, "wait for all", func(timeout C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status { return C.kv_wait_all(store, timeout) })
	})
	if isOver(err) {
		return err
	}
	s.tickets.refile()
	return s.tickets.failure(err)
}
