package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"
)

// Key names a value: an integer from 0 to 2^63-1, or with the top bit set an interned name.
type Key uint64

const nameBit Key = 1 << 63

// Int turns an integer into a key. Negative integers are refused.
func Int(n int) (Key, error) {
	if n < 0 {
		return 0, failf(ErrInvalidArgument, "key %d is negative; keys are integers from 0, or names", n)
	}
	return Key(n), nil
}

// IsName reports whether the key stands for a name.
func (k Key) IsName() bool { return k&nameBit != 0 }

// String returns the integer, or the hash of the name.
func (k Key) String() string {
	if k.IsName() {
		return fmt.Sprintf("name:%016x", uint64(k&^nameBit))
	}
	return fmt.Sprint(uint64(k))
}

// Intern gives the key of a name and remembers the name in this store. The key is the same in
// every process; interning a name again gives the same key.
func (s *Store) Intern(name string) (Key, error) {
	text, err := cString("name", name)
	if err != nil {
		return 0, err
	}
	defer freeString(text)
	var key C.kv_key
	err = s.use(func(store *C.kv_store) C.kv_status { return C.kv_intern(store, text, &key) })
	return Key(key), err
}

// KeyName gives the name that a key was interned with, or [ErrKeyNotFound] if it has none. It may
// be called from inside an updater.
func (s *Store) KeyName(key Key) (string, error) {
	var name string
	err := s.use(func(store *C.kv_store) C.kv_status {
		var text *C.char
		status := C.kv_key_name(store, C.kv_key(key), &text)
		if status == C.KV_OK {
			name = C.GoString(text)
		}
		return status
	})
	return name, err
}

// KeyInfo gives a key's dtype and shape. It may be called from inside an updater.
func (s *Store) KeyInfo(key Key) (DType, []int, error) {
	// Another goroutine may remove the key and make it anew with more dimensions in between.
	for room := C.int32_t(8); ; {
		extents := make([]C.int64_t, room)
		var dtype C.kv_dtype
		var ndim C.int32_t
		err := s.use(func(store *C.kv_store) C.kv_status {
			return C.kv_key_info(store, C.kv_key(key), &dtype, &ndim, &extents[0], room)
		})
		if errors.Is(err, ErrBufferTooSmall) {
			room = ndim
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		return DType(dtype), ints(extents[:ndim]), nil
	}
}

// Keys lists the initialised keys: integers in ascending order, then names in order of their Init.
func (s *Store) Keys() ([]Key, error) {
	for room := C.size_t(64); ; {
		keys := make([]Key, room)
		var count C.size_t
		err := s.use(func(store *C.kv_store) C.kv_status {
			return C.kv_keys(store, (*C.kv_key)(unsafe.Pointer(&keys[0])), room, &count)
		})
		if errors.Is(err, ErrBufferTooSmall) {
			room = count
			continue
		}
		if err != nil {
			return nil, err
		}
		return keys[:count], nil
	}
}

// Digest is what [Store.Digest] gives for a key.
type Digest struct {
	// Round is the number of the key's round; in a local store that of its pushes since its Init.
	Round uint64
	// Value is the digest of the value.
	Value uint64
	// State is the digest of the optimizer's state; 0 without one.
	State uint64
}

// Digest gives the round of each key, and digests of its value and of its optimizer's state. Equal
// bits have equal digests, whatever servers, slices and threads have made them.
func (s *Store) Digest(ctx context.Context, keys ...Key) ([]Digest, error) {
	numbers := make([]C.kv_key, len(keys))
	for i, key := range keys {
		numbers[i] = C.kv_key(key)
	}
	// The call may outlive this one; nothing reads what it writes then.
	digests := make([]C.kv_key_digest, len(keys))
	err := await(ctx, "digest", func(C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status {
			count := C.size_t(len(numbers))
			return C.kv_digest(store, unsafe.SliceData(numbers), unsafe.SliceData(digests), count)
		})
	})
	if err != nil {
		return nil, err
	}
	result := make([]Digest, len(keys))
	for i, digest := range digests {
		result[i] = Digest{uint64(digest.round), uint64(digest.value), uint64(digest.state)}
	}
	return result, nil
}

func ints(extents []C.int64_t) []int {
	result := make([]int, len(extents))
	for i, extent := range extents {
		result[i] = int(extent)
	}
	return result
}
