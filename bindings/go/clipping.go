package kvstore

// #include "shim.h"
import "C"

// ClipFlags change what [Store.SetClipping] does.
type ClipFlags uint32

// ClipFail makes a push whose norm is not finite fail, instead of being skipped.
const ClipFail ClipFlags = C.KV_CLIP_FAIL

// SetClipping clips the gradients of each push after this call by their global norm.
//
// The sums of all keys of a call, times the option rescale_grad of their rules, have one norm. If it is
// above maxNorm, all of them are multiplied by maxNorm / (norm + 1e-6) before the rule or the updater
// gets them. So push all gradients of a model by one call. Keys without a rule are neither counted nor
// scaled. An infinite maxNorm only measures, 0 ends clipping.
//
// A push whose norm is not finite changes no key, and [Store.LastNorm] counts it; with [ClipFail] it fails
// with [ErrInvalidArgument]. While a codec is set the call fails with [ErrUnsupported], as do pushes of rows while
// it is on.
//
// In a job all workers make this call, and the sums are those of a round: a push waits for the other workers.
// dist_async, weights and pushes with a ticket are refused there.
func (s *Store) SetClipping(maxNorm float64, flags ClipFlags) error {
	return s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_set_clipping(store, C.double(maxNorm), C.uint32_t(flags))
	})
}

// LastNorm gives the norm of the last push that was measured, before clipping, and how many pushes were
// skipped since the store was opened. The norm is NaN before the first. A push with a ticket counts when
// it has completed.
func (s *Store) LastNorm() (norm float64, skips uint64, err error) {
	var length C.double
	var skipped C.uint64_t
	err = s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_last_norm(store, &length, &skipped)
	})
	return float64(length), uint64(skipped), err
}
