package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// Reduction is how values of several workers become one.
type Reduction int32

// The reductions.
const (
	Sum  Reduction = C.KV_SUM
	Mean Reduction = C.KV_MEAN // of floats: the sum, divided by the number of values
	Max  Reduction = C.KV_MAX  // a NaN is the largest
	Min  Reduction = C.KV_MIN  // a NaN is the smallest
)

// Collective is a collective call: values that workers exchange without keys. AllReduce and its
// sisters make one; Store.Exchange makes the call, Store.ExchangeAsync starts it.
//
// All workers make the same calls in the same order, one goroutine at a time; the first one waits
// until all workers have made one. In a local store the values given are all there are.
type Collective struct {
	code      C.int
	name      string
	reduction Reduction
	root      int
	values    []Tensor
	outs      []Tensor
}

// AllReduce reduces the values of all workers, a worker's own first, then in the order of ranks, and
// gives the result to all outs.
func AllReduce(op Reduction, values []Tensor, outs ...Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_ALLREDUCE, name: "allreduce", reduction: op,
		values: values, outs: outs}
}

// Reduce is AllReduce with the result for the worker of rank root alone.
func Reduce(op Reduction, root int, values []Tensor, outs ...Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_REDUCE, name: "reduce", reduction: op, root: root,
		values: values, outs: outs}
}

// ReduceScatter reduces what all workers give for a worker, for that one: a value for each rank.
func ReduceScatter(op Reduction, values []Tensor, out Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_REDUCE_SCATTER, name: "reduce_scatter", reduction: op,
		values: values, outs: []Tensor{out}}
}

// BroadcastFrom gives the first tensor of the worker of rank root to all tensors of all workers.
func BroadcastFrom(root int, tensors ...Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_BROADCAST_FROM, name: "broadcast_from", root: root,
		outs: tensors}
}

// AllGather gives the values of all workers to all: an out for each rank, of its length.
func AllGather(value Tensor, outs ...Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_ALLGATHER, name: "allgather", values: []Tensor{value},
		outs: outs}
}

// Gather is AllGather for the worker of rank root alone.
func Gather(root int, value Tensor, outs ...Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_GATHER, name: "gather", root: root,
		values: []Tensor{value}, outs: outs}
}

// Scatter gives each worker one of the values of the worker of rank root, which has one for each rank.
func Scatter(root int, values []Tensor, out Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_SCATTER, name: "scatter", root: root, values: values,
		outs: []Tensor{out}}
}

// AllToAll gives each worker one value of every worker: a value and an out for each rank.
func AllToAll(values, outs []Tensor) Collective {
	return Collective{code: C.KVSTORE_GO_ALL_TO_ALL, name: "all_to_all", values: values, outs: outs}
}

// Exchange makes a collective call and waits for its end, no longer than ctx allows: then the call
// fails for all workers.
func (s *Store) Exchange(ctx context.Context, call Collective) error {
	if ctx.Err() != nil {
		return over(ctx, call.name)
	}
	if ctx.Done() == nil {
		var pins runtime.Pinner
		defer pins.Unpin()
		return s.exchange(call, &pins, nil)
	}
	ticket := &Ticket{store: s, told: true}
	if err := s.exchange(call, &ticket.pins, ticket); err != nil {
		ticket.pins.Unpin()
		return err
	}
	return ticket.finish(ctx, call.name)
}

// ExchangeAsync starts a collective call.
func (s *Store) ExchangeAsync(call Collective) (*Ticket, error) {
	ticket := &Ticket{store: s}
	if err := s.exchange(call, &ticket.pins, ticket); err != nil {
		ticket.pins.Unpin()
		return nil, err
	}
	return ticket, nil
}

// exchange hands the tensors over as flat arrays, see shim.h. Without a ticket it waits.
func (s *Store) exchange(call Collective, pins *runtime.Pinner, ticket *Ticket) error {
	f := &flat{}
	for list, tensors := range [][]Tensor{call.values, call.outs} {
		for i := range tensors {
			if err := tensors[i].err; err != nil {
				what := [...]string{"value", "out"}[list]
				return failf(err.Status, "%s: %s %d: %s", call.name, what, i, err.Message)
			}
			f.describe(&tensors[i], pins)
		}
	}
	rooms := make([]tensorRoom, len(f.data))
	var number *C.kv_ticket
	if ticket != nil {
		number = &ticket.number
	}
	return s.use(func(store *C.kv_store) C.kv_status {
		status := C.kvstore_go_exchange(call.code, store, C.int32_t(call.reduction),
			C.int32_t(call.root), unsafe.SliceData(f.data), unsafe.SliceData(f.numbers),
			unsafe.Pointer(unsafe.SliceData(rooms)), C.size_t(len(call.values)),
			C.size_t(len(call.outs)), number)
		// Still inside the store: it must not be freed before it knows the ticket.
		if status == C.KV_OK && ticket != nil {
			s.tickets.add(ticket)
		}
		return status
	})
}
