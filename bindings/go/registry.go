package kvstore

import (
	"fmt"
	"sync"
)

// registry keeps the tickets of a store. Programs may drop theirs; the memory must stay pinned all
// the same, and failures must be told.
type registry struct {
	mu      sync.Mutex // guards the rest
	pending []*Ticket  // in flight, or not looked at since
	failed  []*Ticket  // the last ones that ended with an error
}

const failuresKept = 1024

// add takes in a new ticket and looks at two others, so that a program that never waits for its
// tickets does not gather them.
func (r *registry) add(ticket *Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(2)
	r.pending = append(r.pending, ticket)
}

// refile looks at every ticket.
func (r *registry) refile() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(len(r.pending))
}

// look files the first tickets by their state; those still in flight go to the end.
func (r *registry) look(count int) {
	for ; count > 0 && len(r.pending) > 0; count-- {
		ticket := r.pending[0]
		r.pending[0] = nil
		r.pending = r.pending[1:]
		_ = ticket.look()
		r.file(ticket)
	}
}

func (r *registry) file(ticket *Ticket) {
	switch settled, err := ticket.result(); {
	case !settled:
		r.pending = append(r.pending, ticket)
	case err != nil:
		r.failed = append(r.failed, ticket)
		r.failed = r.failed[max(len(r.failed)-failuresKept, 0):]
	}
}

// failure returns the first failure that nobody has been told of, or else err. All count as told.
func (r *registry) failure(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first error
	others := 0
	for _, ticket := range r.failed {
		switch failure := ticket.tell(); {
		case failure == nil:
		case first == nil:
			first = failure
		default:
			others++
		}
	}
	r.failed = nil
	switch {
	case first == nil:
		return err
	case others == 0:
		return first
	default:
		return fmt.Errorf("%w (and %d more failures)", first, others)
	}
}

// abandon settles what is left once the store has been freed.
func (r *registry) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ticket := range r.pending {
		ticket.settle(errFreed)
	}
	r.pending = nil
}
