package kvstore

/*
#cgo pkg-config: kvstore
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
)

// Status is the result of a call of the library. Each one is an error to match with errors.Is.
type Status int32

// 1-19 are the caller's mistake, 20-39 mean "not now", 40-59 that a peer is gone, 60-79 come from the
// environment, 90-99 are a bug of the library.
const (
	// ErrInvalidArgument: an argument is missing, out of range, misaligned, or not valid UTF-8.
	ErrInvalidArgument Status = C.KV_ERR_INVALID_ARGUMENT
	// ErrUnsupported: known, but not served by this build or this store.
	ErrUnsupported Status = C.KV_ERR_UNSUPPORTED
	// ErrOption: an option has an unknown name or a value that does not fit.
	ErrOption Status = C.KV_ERR_OPTION
	// ErrKeyNotFound: the key has not been initialised, or was removed.
	ErrKeyNotFound Status = C.KV_ERR_KEY_NOT_FOUND
	// ErrKeyExists: the key has been initialised before.
	ErrKeyExists Status = C.KV_ERR_KEY_EXISTS
	// ErrNameCollision: two names have the same hash; rename one of them.
	ErrNameCollision Status = C.KV_ERR_NAME_COLLISION
	// ErrShapeMismatch: a tensor's shape differs from the key's.
	ErrShapeMismatch Status = C.KV_ERR_SHAPE_MISMATCH
	// ErrDTypeMismatch: a tensor's dtype differs from the key's and cannot be converted.
	ErrDTypeMismatch Status = C.KV_ERR_DTYPE_MISMATCH
	// ErrOverlap: an out overlaps another tensor of the call, or itself.
	ErrOverlap Status = C.KV_ERR_OVERLAP
	// ErrTicket: the library no longer knows how the operation ended.
	ErrTicket Status = C.KV_ERR_TICKET
	// ErrCallback: the updater returned an error or panicked.
	ErrCallback Status = C.KV_ERR_CALLBACK
	// ErrReentrant: the store was called from inside one of its own updaters.
	ErrReentrant Status = C.KV_ERR_REENTRANT
	// ErrBufferTooSmall: a buffer is too small. The package makes its own buffers large enough.
	ErrBufferTooSmall Status = C.KV_ERR_BUFFER_TOO_SMALL
	// ErrClosed: the store has been closed or aborted.
	ErrClosed Status = C.KV_ERR_CLOSED
	// ErrForked: the store was created before a fork.
	ErrForked Status = C.KV_ERR_FORKED
	// ErrRole: the call is not for processes of this role, see [Store.Role].
	ErrRole Status = C.KV_ERR_ROLE
	// ErrDiffers: the processes of a job do not agree, such as about the optimizer.
	ErrDiffers Status = C.KV_ERR_DIFFERS
	// ErrTimeout: the time allowed by the option timeout_ms passed.
	ErrTimeout Status = C.KV_ERR_TIMEOUT
	// ErrCancelled: the operation was cancelled before it took effect in full.
	ErrCancelled Status = C.KV_ERR_CANCELLED
	// ErrExpired: an operation with a ticket did not end within the option timeout_ms, and has failed.
	ErrExpired Status = C.KV_ERR_EXPIRED
	// ErrPeerLost: a process of the job that the call needs is gone; the message says which.
	ErrPeerLost Status = C.KV_ERR_PEER_LOST
	// ErrEvicted: this process was not heard for too long, and the job went on without it.
	ErrEvicted Status = C.KV_ERR_EVICTED
	// ErrRefused: the job does not take this process: its rank is taken, or it expects another job.
	ErrRefused Status = C.KV_ERR_REFUSED
	// ErrOutOfMemory: not enough memory.
	ErrOutOfMemory Status = C.KV_ERR_OUT_OF_MEMORY
	// ErrIO: a file cannot be read or written.
	ErrIO Status = C.KV_ERR_IO
	// ErrCorrupt: a file is cut off or altered.
	ErrCorrupt Status = C.KV_ERR_CORRUPT
	// ErrNetwork: an address cannot be used or reached.
	ErrNetwork Status = C.KV_ERR_NETWORK
	// ErrDevice: a GPU failed, or cannot be used; the message has CUDA's name of the error.
	ErrDevice Status = C.KV_ERR_DEVICE
	// ErrInternal: a bug of the library; the store is poisoned from now on.
	ErrInternal Status = C.KV_ERR_INTERNAL
	// ErrPoisoned: the store met a bug of the library before and refuses to go on.
	ErrPoisoned Status = C.KV_ERR_POISONED
)

// String returns the C name, such as KV_ERR_TIMEOUT.
func (s Status) String() string {
	return C.GoString(C.kv_status_name(C.kv_status(s)))
}

// Error returns the C name, such as KV_ERR_TIMEOUT.
func (s Status) Error() string { return s.String() }

// Error is a failed call.
type Error struct {
	Status  Status
	Message string // names the key, the shapes and dtypes, and what to do
}

func (e *Error) Error() string {
	if e.Message == "" {
		return "kvstore: " + e.Status.String()
	}
	return "kvstore: " + e.Message
}

// Unwrap returns the status, so that errors.Is(err, ErrKeyNotFound) works.
func (e *Error) Unwrap() error { return e.Status }

// failf makes an error of the package's own, for what the library cannot check.
func failf(status Status, format string, arguments ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, arguments...)}
}

// call runs one function of the library. The text of its error belongs to the OS thread, so the
// goroutine stays on it in between.
func call(function func() C.kv_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return failure(function())
}

// failure makes an error of the status that this OS thread has just got from the library.
func failure(status C.kv_status) error {
	if status == C.KV_OK {
		return nil
	}
	return &Error{Status: Status(status), Message: C.GoString(C.kv_last_error())}
}
