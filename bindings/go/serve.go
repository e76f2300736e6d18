package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
)

// Serve makes this process a server or a scheduler until the job ends; on a worker, and so on local
// stores, it returns [ErrRole] at once. On a server pushes merge here, by the function that
// [Store.SetUpdater] has set on this store, or by the optimizer that the workers set.
//
// When ctx ends, the store is aborted, and the error matches ctx.Err(). Abort, Close and Shutdown on
// another goroutine end the call too, with [ErrClosed].
func (s *Store) Serve(ctx context.Context) error {
	return s.serve(ctx, func() error {
		return s.use(func(store *C.kv_store) C.kv_status { return C.kv_serve(store) })
	})
}

// serve runs a call that Abort ends.
func (s *Store) serve(ctx context.Context, run func() error) error {
	if ctx.Err() != nil {
		return over(ctx, "serve")
	}
	s.serving.Add(1)
	defer s.serving.Add(-1)
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(aborted)
		s.Abort()
	})
	err := run()
	if !stop() {
		<-aborted
	}
	if errors.Is(err, ErrClosed) && ctx.Err() != nil {
		return over(ctx, "serve")
	}
	return err
}
