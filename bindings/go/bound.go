package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"unsafe"
)

// Bound holds values and outs that [Store.Bind] has checked once, for calls that repeat. Their memory
// stays pinned until Close: write values and read outs between calls. Methods may be called from any
// goroutine; their calls are made one after the other.
type Bound struct {
	store        *Store
	values, outs []Pair
	direct       bool // no tensor is in GPU memory, where each call names streams

	// mu guards the rest. Calls hold it for reading, which makes the end the last one.
	mu     sync.RWMutex
	handle *C.kv_bound // nil when closed
	pins   runtime.Pinner
}

// unclosedBounds keeps lists that the program has lost: the library knows their pinned memory.
var unclosedBounds sync.Map

var errUnbound = failf(ErrClosed, "the bound list has been closed")

var bind = operation{0, "bind"}

// Bind checks values and outs once, as PushPullList does, for calls that cost little beside the bytes.
// Without values the list can be pulled only, without outs pushed only. Close it when it is not needed
// any more.
//
// A key that is removed afterwards is an error of the next call, and so is one that is initialised
// again with a dtype or a shape that does not fit; nothing has changed then.
func (s *Store) Bind(values, outs []Pair) (*Bound, error) {
	b := &Bound{store: s, values: slices.Clone(values), outs: slices.Clone(outs)}
	f, err := flatten(bind, b.values, b.outs, &b.pins)
	if err == nil {
		b.direct = len(f.streams) == 0
		tensors := make([]tensorRoom, len(f.keys))
		err = onStreams(f.named(), func() error {
			return s.use(func(store *C.kv_store) C.kv_status {
				return C.kvstore_go_bind(store, unsafe.SliceData(f.keys), unsafe.SliceData(f.data),
					unsafe.SliceData(f.numbers), unsafe.Pointer(unsafe.SliceData(tensors)),
					C.size_t(len(values)), C.size_t(len(outs)), &b.handle)
			})
		})
	}
	if err != nil {
		b.pins.Unpin()
		return nil, err
	}
	unclosedBounds.Store(b, nil)
	return b, nil
}

// Push merges the values, as [Store.PushList] does. A ctx that can end makes it that call, with what
// it costs.
func (b *Bound) Push(ctx context.Context) error {
	return b.run(ctx, push, func(bound *C.kv_bound) C.kv_status {
		return C.kv_bound_push(bound, 0, nil)
	})
}

// Pull copies the stored values to the outs, as [Store.PullList] does. For ctx see Push.
func (b *Bound) Pull(ctx context.Context) error {
	return b.run(ctx, pull, func(bound *C.kv_bound) C.kv_status {
		return C.kv_bound_pull(bound, 0, nil)
	})
}

// PushPull pushes, then pulls, in one operation, as [Store.PushPullList] does. For ctx see Push.
func (b *Bound) PushPull(ctx context.Context) error {
	return b.run(ctx, pushPull, func(bound *C.kv_bound) C.kv_status {
		return C.kv_bound_pushpull(bound, 0, nil)
	})
}

func (b *Bound) run(ctx context.Context, op operation,
	function func(bound *C.kv_bound) C.kv_status) error {
	// The only writer of mu is Close: a lock that cannot be had at once means that it has begun.
	if !b.mu.TryRLock() {
		return errUnbound
	}
	defer b.mu.RUnlock()
	if b.handle == nil {
		return errUnbound
	}
	if ctx.Done() == nil && b.direct {
		return b.store.use(func(*C.kv_store) C.kv_status { return function(b.handle) })
	}
	switch {
	case op != pull && len(b.values) == 0 && len(b.outs) > 0:
		return failf(ErrInvalidArgument, "%s: the list was bound without values", op.name)
	case op != push && len(b.outs) == 0 && len(b.values) > 0:
		return failf(ErrInvalidArgument, "%s: the list was bound without outs", op.name)
	}
	return b.store.run(ctx, op, b.values, b.outs)
}

// Close ends the list, after calls of other goroutines, and unpins the memory. Closing a closed list
// does nothing. The store may be closed before.
//
// Called from inside an updater of the store it does nothing but return [ErrReentrant].
func (b *Bound) Close() error {
	err := b.store.use(func(store *C.kv_store) C.kv_status {
		var count C.size_t
		return C.kv_keys(store, nil, 0, &count)
	})
	if errors.Is(err, ErrReentrant) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != nil {
		C.kv_bound_free(b.handle)
		b.handle = nil
		b.pins.Unpin()
		unclosedBounds.Delete(b)
	}
	return nil
}
