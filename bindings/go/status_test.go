package kvstore

import (
	"errors"
	"fmt"
	"testing"
)

func TestEveryStatusIsAnErrorToMatch(t *testing.T) {
	begin(t)
	for status, name := range map[Status]string{
		ErrInvalidArgument: "KV_ERR_INVALID_ARGUMENT", ErrUnsupported: "KV_ERR_UNSUPPORTED",
		ErrOption: "KV_ERR_OPTION", ErrKeyNotFound: "KV_ERR_KEY_NOT_FOUND",
		ErrKeyExists: "KV_ERR_KEY_EXISTS", ErrNameCollision: "KV_ERR_NAME_COLLISION",
		ErrShapeMismatch: "KV_ERR_SHAPE_MISMATCH", ErrDTypeMismatch: "KV_ERR_DTYPE_MISMATCH",
		ErrOverlap: "KV_ERR_OVERLAP", ErrTicket: "KV_ERR_TICKET", ErrCallback: "KV_ERR_CALLBACK",
		ErrReentrant: "KV_ERR_REENTRANT", ErrBufferTooSmall: "KV_ERR_BUFFER_TOO_SMALL",
		ErrClosed: "KV_ERR_CLOSED", ErrForked: "KV_ERR_FORKED", ErrTimeout: "KV_ERR_TIMEOUT",
		ErrCancelled: "KV_ERR_CANCELLED", ErrExpired: "KV_ERR_EXPIRED", ErrOutOfMemory: "KV_ERR_OUT_OF_MEMORY",
		ErrRole: "KV_ERR_ROLE", ErrDiffers: "KV_ERR_DIFFERS", ErrPeerLost: "KV_ERR_PEER_LOST",
		ErrEvicted: "KV_ERR_EVICTED", ErrRefused: "KV_ERR_REFUSED", ErrNetwork: "KV_ERR_NETWORK",
		ErrIO: "KV_ERR_IO", ErrCorrupt: "KV_ERR_CORRUPT", ErrInternal: "KV_ERR_INTERNAL",
		ErrPoisoned: "KV_ERR_POISONED", ErrDevice: "KV_ERR_DEVICE",
	} {
		equal(t, status.String(), name)
		equal(t, status.Error(), name)
		err := fmt.Errorf("outer: %w", failf(status, "inner"))
		fails(t, err, status)
		var detail *Error
		if !errors.As(err, &detail) || detail.Status != status {
			t.Errorf("%v does not carry its status", err)
		}
	}
	equal(t, Status(12345).String(), "unknown status")
	equal(t, (&Error{Status: ErrTimeout}).Error(), "kvstore: KV_ERR_TIMEOUT")
	equal(t, failf(ErrTimeout, "key %d", 3).Error(), "kvstore: key 3")
	if errors.Is(failf(ErrTimeout, "x"), ErrClosed) {
		t.Error("statuses are mixed up")
	}
}

// The header's list of statuses is complete here if no other number below 100 has a name.
func TestNoStatusIsMissing(t *testing.T) {
	begin(t)
	named := 0
	for status := Status(-1); status < 100; status++ {
		if status.String() != "unknown status" {
			named++
		}
	}
	equal(t, named, 31) // the 30 errors and KV_OK
}
