package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"
)

// Version returns the version of the library, such as 0.1.0.
func Version() string { return C.GoString(C.kv_version()) }

// Capable reports whether the build of the library has a feature, such as "dist" or "cuda".
func Capable(feature string) bool {
	text := C.CString(feature)
	defer freeString(text)
	return C.kv_capable(text) != 0
}

// ABIVersion returns the version of the library's binary interface.
func ABIVersion() uint32 { return uint32(C.kv_abi_version()) }

// Role is what a process is in a job.
type Role int32

const (
	// RoleWorker pushes and pulls. A local store's process is always one.
	RoleWorker Role = C.KV_ROLE_WORKER
	// RoleServer holds keys and merges pushes, in [Store.Serve].
	RoleServer Role = C.KV_ROLE_SERVER
	// RoleScheduler brings the others together, in [Store.Serve].
	RoleScheduler Role = C.KV_ROLE_SCHEDULER
)

// String returns the name of the role, such as worker.
func (r Role) String() string {
	switch r {
	case RoleWorker:
		return "worker"
	case RoleServer:
		return "server"
	case RoleScheduler:
		return "scheduler"
	default:
		return fmt.Sprintf("Role(%d)", int32(r))
	}
}

// Type returns the canonical name of the store's type, such as local.
func (s *Store) Type() (string, error) {
	var text *C.char
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_type(store, &text) })
	return C.GoString(text), err
}

// Role returns the role of this process in the job.
func (s *Store) Role() (Role, error) {
	var role C.int32_t
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_role(store, &role) })
	return Role(role), err
}

// Rank returns the rank of this process among those of its role, from 0.
func (s *Store) Rank() (int, error) {
	var rank C.int32_t
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_rank(store, &rank) })
	return int(rank), err
}

// NumWorkers returns the number of workers.
func (s *Store) NumWorkers() (int, error) {
	var count C.int32_t
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_num_workers(store, &count) })
	return int(count), err
}

// NumLost returns the number of workers and servers that the job has declared lost, as far as this
// process has been told; 0 in a local store.
func (s *Store) NumLost() (int, error) {
	var count C.int32_t
	err := s.use(func(store *C.kv_store) C.kv_status { return C.kv_num_lost(store, &count) })
	return int(count), err
}

// Barrier waits until all workers have arrived here. Local stores return at once.
func (s *Store) Barrier(ctx context.Context) error {
	return await(ctx, "barrier", func(timeout C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status { return C.kv_barrier(store, timeout) })
	})
}

// Done says that this worker pushes no more: no other one waits for it from now on. It may still pull, and
// save what there is when the others push no more either.
func (s *Store) Done() error {
	return s.use(func(store *C.kv_store) C.kv_status { return C.kv_done(store) })
}

// Resume waits until all workers have called it, whether they are done or not. Then none is done, and rounds wait
// for all of them again: so a worker with fewer batches calls Done at its end of an epoch, and all call Resume
// before the next one. A local store has nothing to wait for.
func (s *Store) Resume(ctx context.Context) error {
	return await(ctx, "resume", func(timeout C.int64_t) error {
		return s.use(func(store *C.kv_store) C.kv_status { return C.kv_resume(store, timeout) })
	})
}

// Stats holds counters and settings of a store.
type Stats struct {
	Type         string `json:"type"`
	Keys         uint64 `json:"keys"`
	Bytes        uint64 `json:"bytes"` // of the stored values
	Pushes       uint64 `json:"pushes"`
	Pulls        uint64 `json:"pulls"`
	PushBytes    uint64 `json:"push_bytes"`
	PullBytes    uint64 `json:"pull_bytes"`
	UpdaterCalls uint64 `json:"updater_calls"`
	Pending      uint64 `json:"pending"` // operations in flight
	Failed       uint64 `json:"failed"`  // failures that the library still keeps
	Threads      int    `json:"threads"`
	ISA          string `json:"isa"`

	Compression       string `json:"compression"` // the codec, or none
	CompressionParams string `json:"compression_params"`
}

// Stats returns counters and settings.
func (s *Store) Stats() (Stats, error) {
	var stats Stats
	text, err := s.stats(1024)
	if err != nil {
		return stats, err
	}
	if err := json.Unmarshal(text, &stats); err != nil {
		return stats, fmt.Errorf("kvstore: stats: %w", err)
	}
	return stats, nil
}

// stats returns the text, with `room` as the first guess of its size.
func (s *Store) stats(room C.size_t) ([]byte, error) {
	for {
		buffer := make([]byte, room)
		var length C.size_t
		err := s.use(func(store *C.kv_store) C.kv_status {
			return C.kv_stats(store, (*C.char)(unsafe.Pointer(&buffer[0])), room, &length)
		})
		if errors.Is(err, ErrBufferTooSmall) {
			room = length + 1
			continue
		}
		return buffer[:length], err
	}
}
