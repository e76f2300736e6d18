package kvstore

// #include "shim.h"
import "C"

// CommitOutcome says how a transaction has ended.
type CommitOutcome int32

const (
	// CommitKept: its pushes are kept.
	CommitKept CommitOutcome = C.KV_COMMIT_KEPT
	// CommitExceeded: the norm of its gradients is above that of [Store.SetClipping], and its pushes are taken
	// back. Push the gradients again, by one call, which scales them.
	CommitExceeded CommitOutcome = C.KV_COMMIT_EXCEEDED
	// CommitSkipped: the norm of its gradients is not finite, and its pushes are taken back. It counts as a
	// skipped push.
	CommitSkipped CommitOutcome = C.KV_COMMIT_SKIPPED
)

// Begin begins a transaction: [Store.Rollback] takes back what later pushes of any goroutine change, values and
// states of rules, until [Store.Commit] keeps it. Other calls see the pushes at once.
//
// While [Store.SetClipping] is on, pushes in a transaction are not scaled: it has one norm, of the gradients of all
// its pushes, and Commit looks at it. So gradients may be pushed as they come.
//
// It fails with [ErrInvalidArgument] if one has begun, and with [ErrUnsupported] in a job and while a codec is set.
// In a transaction the calls that change how pushes merge, and Load, fail with ErrInvalidArgument.
func (s *Store) Begin() error {
	return s.use(func(store *C.kv_store) C.kv_status { return C.kv_begin(store) })
}

// Commit ends the transaction. Its pushes are kept unless the outcome says otherwise. It waits for pushes of the
// transaction that are on their way; with [ErrTimeout] the transaction goes on.
func (s *Store) Commit() (CommitOutcome, error) {
	var outcome C.int32_t
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_commit(store, &outcome) })
	return CommitOutcome(outcome), err
}

// Rollback ends the transaction: values and states of all keys that were pushed are what they were before it, to
// the bit. It waits as [Store.Commit] does.
func (s *Store) Rollback() error {
	return s.use(func(store *C.kv_store) C.kv_status { return C.kv_rollback(store) })
}
