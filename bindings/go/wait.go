package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// kv_set_interrupt belongs to a thread, and goroutines change theirs; a close with a context comes up
// this often to look. Waits for tickets do not: see Ticket.watch.
const lookInterval = 10 * time.Millisecond

// over is the error of a call that ended because its context did.
func over(ctx context.Context, what string) error {
	return fmt.Errorf("kvstore: %s: %w", what, ctx.Err())
}

// isOver tells errors of over from those of the library.
func isOver(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// poll repeats a call that takes a timeout until it knows its result or ctx is over. Nothing is
// lost between the tries: KV_ERR_TIMEOUT means "not known yet".
func (s *Store) poll(ctx context.Context, what string,
	function func(store *C.kv_store, timeout C.int64_t) C.kv_status) error {
	for {
		timeout := nextLook(ctx)
		err := s.use(func(store *C.kv_store) C.kv_status { return function(store, timeout) })
		if !errors.Is(err, ErrTimeout) {
			return err
		}
		if ctx.Err() != nil {
			return over(ctx, what)
		}
	}
}

// nextLook gives the milliseconds until ctx must be looked at.
func nextLook(ctx context.Context) C.int64_t {
	if ctx.Done() == nil {
		return -1
	}
	if ctx.Err() != nil {
		return 0
	}
	wait := lookInterval
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	return C.int64_t(max(wait.Milliseconds(), 1))
}

// await runs a call that cannot be repeated. If ctx ends first, the call goes on in the background,
// at most until shortly after the deadline, and its result is dropped.
func await(ctx context.Context, what string, function func(timeout C.int64_t) error) error {
	if ctx.Err() != nil {
		return over(ctx, what)
	}
	if ctx.Done() == nil {
		return function(-1)
	}
	timeout := C.int64_t(-1)
	if deadline, ok := ctx.Deadline(); ok {
		timeout = C.int64_t(max(time.Until(deadline), 0).Milliseconds() + 100)
	}
	result := make(chan error, 1)
	go func() { result <- function(timeout) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return over(ctx, what)
	}
}
