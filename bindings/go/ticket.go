package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// ErrLent says that memory given to an operation is still in use although the call has returned,
// because an updater held it up. It is in use until the operation ends; [Store.WaitAll] waits for
// that.
var ErrLent = errors.New("the operation is still at work and uses the memory given to it")

// A call whose context is over waits this long for its operation to let go of the memory.
const cancelTimeout = time.Second

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
	done    chan struct{} // made by the first Done
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
func (t *Ticket) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.settled {
			close(t.done)
		} else {
			go func() { _ = t.await(context.Background()) }()
		}
	}
	return t.done
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
		return result
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
		t.Done() // its goroutine ends the loan together with the operation
		return fmt.Errorf("%w; %w", err, ErrLent)
	case errors.Is(result, ErrCancelled):
		return fmt.Errorf("%w; %w", err, result)
	default:
		return result
	}
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
	return t.note(t.store.poll(ctx, "wait", func(store *C.kv_store, timeout C.int64_t) C.kv_status {
		return C.kv_wait(store, t.number, timeout)
	}))
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
