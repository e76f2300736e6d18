package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"unsafe"
)

// SetWeight gives each push of this worker after this call a weight, such as the number of samples in
// its batch. The sum of a round is divided by the sum of its weights, once, before a rule or an updater
// gets it: pushes of sums over samples become means.
//
// The weight is 0, or from 2^-100 to 2^100. In one round all pushes have one, or none has; else pulls of
// it fail with [ErrDiffers]. While it is set, pushes to keys of integers fail with [ErrDTypeMismatch].
func (s *Store) SetWeight(weight float64) error {
	return s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_set_weight(store, C.double(weight))
	})
}

// ClearWeight ends SetWeight: the sums of later pushes are not divided.
func (s *Store) ClearWeight() error {
	return s.use(func(store *C.kv_store) C.kv_status { return C.kv_clear_weight(store) })
}

// Round is what [Store.LastRound] gives.
type Round struct {
	// Number of the key's last closed round; in a local store of its pushes since its Init.
	Number uint64
	// Contributors is how many workers took part in it.
	Contributors uint64
	// TotalWeight is the sum of their weights; 0 if they had none.
	TotalWeight float64
}

// LastRound gives the last round of a key, after this worker's pushes: who took part in it.
func (s *Store) LastRound(ctx context.Context, key Key) (Round, error) {
	// The call may outlive this one; nothing reads what it writes then.
	round := new(C.kv_round)
	round.struct_size = C.size_t(unsafe.Sizeof(*round))
	err := await(ctx, "last_round", func(C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status {
			return C.kv_last_round(store, C.kv_key(key), round)
		})
	})
	if err != nil {
		return Round{}, err
	}
	return Round{uint64(round.round), uint64(round.contributors), float64(round.total_weight)}, nil
}
