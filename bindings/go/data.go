package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Pair is a key and a tensor: a value for it, or an out.
type Pair struct {
	Key    Key
	Tensor Tensor
}

// Pairs makes one pair of each tensor with the same key.
func Pairs(key Key, tensors ...Tensor) []Pair {
	pairs := make([]Pair, len(tensors))
	for i, tensor := range tensors {
		pairs[i] = Pair{key, tensor}
	}
	return pairs
}

// Init stores the first value of a key; the value is copied. It fixes the key's dtype and shape.
func (s *Store) Init(ctx context.Context, key Key, value Tensor) error {
	return s.InitList(ctx, Pairs(key, value))
}

// InitList stores the first values of different keys, or of none if one cannot be.
func (s *Store) InitList(ctx context.Context, values []Pair) error {
	return s.run(ctx, initialise, values, nil)
}

// Push adds up the values, one per device, and merges the sum into the stored value: it replaces
// the stored value, or goes through the updater.
func (s *Store) Push(ctx context.Context, key Key, values ...Tensor) error {
	return s.PushList(ctx, Pairs(key, values...))
}

// PushList pushes to many keys, in ascending order of integers, then names in order of their Init.
func (s *Store) PushList(ctx context.Context, values []Pair) error {
	return s.run(ctx, push, values, nil)
}

// PushAsync starts a push. Larger priorities run earlier among the operations that wait.
func (s *Store) PushAsync(values []Pair, priority int32) (*Ticket, error) {
	return s.start(push, values, nil, priority)
}

// Pull copies the stored value into each out, converted to the out's dtype if both are floats.
func (s *Store) Pull(ctx context.Context, key Key, outs ...Tensor) error {
	return s.PullList(ctx, Pairs(key, outs...))
}

// PullList pulls many keys. One tensor may be the out of several keys: the last one wins.
func (s *Store) PullList(ctx context.Context, outs []Pair) error {
	return s.run(ctx, pull, nil, outs)
}

// PullAsync starts a pull. Larger priorities run earlier among the operations that wait.
func (s *Store) PullAsync(outs []Pair, priority int32) (*Ticket, error) {
	return s.start(pull, nil, outs, priority)
}

// PushPull pushes the values, then pulls into the outs. An out may be exactly one of the values.
func (s *Store) PushPull(ctx context.Context, key Key, values, outs []Tensor) error {
	return s.PushPullList(ctx, Pairs(key, values...), Pairs(key, outs...))
}

// PushPullList pushes many values and pulls many outs in one operation. The keys of the outs need
// not be those of the values.
func (s *Store) PushPullList(ctx context.Context, values, outs []Pair) error {
	return s.run(ctx, pushPull, values, outs)
}

// PushPullAsync starts a push with a pull. Larger priorities run earlier among the operations that
// wait.
func (s *Store) PushPullAsync(values, outs []Pair, priority int32) (*Ticket, error) {
	return s.start(pushPull, values, outs, priority)
}

// Broadcast initialises the key with the value, then pulls into the outs.
func (s *Store) Broadcast(ctx context.Context, key Key, value Tensor, outs ...Tensor) error {
	return s.BroadcastList(ctx, Pairs(key, value), Pairs(key, outs...))
}

// BroadcastList initialises many keys, then pulls many outs.
func (s *Store) BroadcastList(ctx context.Context, values, outs []Pair) error {
	return s.run(ctx, broadcast, values, outs)
}

// BroadcastAsync starts a broadcast. Larger priorities run earlier among the operations that wait.
func (s *Store) BroadcastAsync(values, outs []Pair, priority int32) (*Ticket, error) {
	return s.start(broadcast, values, outs, priority)
}

// Remove removes different keys and frees their values; they may be initialised again with any
// shape. If ctx ends during the call, the keys are removed or not.
func (s *Store) Remove(ctx context.Context, keys ...Key) error {
	numbers := make([]C.kv_key, len(keys))
	for i, key := range keys {
		numbers[i] = C.kv_key(key)
	}
	return await(ctx, "remove", func(C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status {
			return C.kv_remove(store, unsafe.SliceData(numbers), C.size_t(len(numbers)))
		})
	})
}

// operation is what a data call does, with its name in error messages.
type operation struct {
	code C.int
	name string
}

var (
	initialise = operation{C.KVSTORE_GO_INIT, "init"}
	push       = operation{C.KVSTORE_GO_PUSH, "push"}
	pull       = operation{C.KVSTORE_GO_PULL, "pull"}
	pushPull   = operation{C.KVSTORE_GO_PUSHPULL, "pushpull"}
	broadcast  = operation{C.KVSTORE_GO_BROADCAST, "broadcast"}
	pushRows   = operation{C.KVSTORE_GO_PUSH_ROWS, "push_rows"}
	pullRows   = operation{C.KVSTORE_GO_PULL_ROWS, "pull_rows"}
)

// run does an operation and waits for it, no longer than ctx allows.
func (s *Store) run(ctx context.Context, op operation, values, outs []Pair) error {
	if ctx.Err() != nil {
		return over(ctx, op.name)
	}
	if ctx.Done() == nil || op == initialise {
		var pins runtime.Pinner
		defer pins.Unpin()
		return s.operate(op, values, outs, 0, &pins, nil)
	}
	ticket := &Ticket{store: s, told: true}
	if err := s.operate(op, values, outs, 0, &ticket.pins, ticket); err != nil {
		ticket.pins.Unpin()
		return err
	}
	return ticket.finish(ctx, op.name)
}

// start queues an operation.
func (s *Store) start(op operation, values, outs []Pair, priority int32) (*Ticket, error) {
	ticket := &Ticket{store: s}
	if err := s.operate(op, values, outs, priority, &ticket.pins, ticket); err != nil {
		ticket.pins.Unpin()
		return nil, err
	}
	return ticket, nil
}

// operate hands the pairs over as flat arrays, see shim.h. Without a ticket it waits.
func (s *Store) operate(op operation, values, outs []Pair, priority int32, pins *runtime.Pinner,
	ticket *Ticket) error {
	f, err := flatten(op, values, outs, pins)
	if err != nil {
		return err
	}
	tensors := make([]tensorRoom, len(f.keys))
	var number *C.kv_ticket
	if ticket != nil {
		number = &ticket.number
	}
	function := func(store *C.kv_store) C.kv_status {
		status := C.kvstore_go_operate(op.code, store,
			unsafe.SliceData(f.keys), unsafe.SliceData(f.data), unsafe.SliceData(f.numbers),
			unsafe.Pointer(unsafe.SliceData(tensors)), C.size_t(len(values)), C.size_t(len(outs)),
			C.int32_t(priority), number)
		// Still inside the store: it must not be freed before it knows the ticket.
		if status == C.KV_OK && ticket != nil {
			s.tickets.add(ticket)
		}
		return status
	}
	return onStreams(f.named(), func() error { return s.use(function) })
}

// tensorRoom has the size of a kv_tensor but no pointer type: C may write what it likes.
type tensorRoom [unsafe.Sizeof(C.kv_tensor{}) / 8]uint64

// flat is what shim.h takes: data pointers apart from everything else.
type flat struct {
	keys    []C.kv_key
	data    []unsafe.Pointer
	numbers []C.int64_t
	streams []C.int64_t // of the GPUs whose memory the tensors are in
}

// flatten pins the memory of pairs and describes them.
func flatten(op operation, values, outs []Pair, pins *runtime.Pinner) (*flat, error) {
	count := len(values) + len(outs)
	f := &flat{
		keys:    make([]C.kv_key, 0, count),
		data:    make([]unsafe.Pointer, 0, count),
		numbers: make([]C.int64_t, 0, count*(C.KVSTORE_GO_HEADER+4)), // enough for most
	}
	for _, pairs := range [][]Pair{values, outs} {
		for i := range pairs {
			if err := f.add(op, &pairs[i], pins); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

func (f *flat) add(op operation, pair *Pair, pins *runtime.Pinner) error {
	t := &pair.Tensor
	if t.err != nil {
		return failf(t.err.Status, "%s: key %v: %s", op.name, pair.Key, t.err.Message)
	}
	if t.memory != nil {
		if err := f.addStream(op, pair.Key, t.memory.stream); err != nil {
			return err
		}
	}
	f.keys = append(f.keys, C.kv_key(pair.Key))
	f.describe(t, pins)
	return nil
}

// describe pins the memory of a tensor and describes it.
func (f *flat) describe(t *Tensor, pins *runtime.Pinner) {
	f.data = append(f.data, t.data)
	var address uintptr
	if t.memory != nil {
		address = t.memory.address
	}
	f.numbers = append(f.numbers, C.int64_t(len(t.shape)), C.int64_t(t.dtype),
		C.int64_t(t.device.Type), C.int64_t(t.device.ID), C.int64_t(t.offset*t.dtype.size()),
		C.int64_t(len(t.strides)), C.int64_t(address))
	for _, extent := range t.shape {
		f.numbers = append(f.numbers, C.int64_t(extent))
	}
	for _, stride := range t.strides {
		f.numbers = append(f.numbers, C.int64_t(stride))
	}
	if t.data != nil {
		pin(pins, t.data)
	}
}

// pin pins memory of Go. Other memory needs no pin, but Go 1.21 panics when asked to.
func pin(pins *runtime.Pinner, data unsafe.Pointer) {
	defer func() { _ = recover() }()
	pins.Pin(data)
}
