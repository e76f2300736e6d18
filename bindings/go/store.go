package kvstore

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Config holds options of a store by name; docs/use/config.md lists them. Nil means the defaults.
type Config map[string]string

// Store is a key-value store. All methods may be called from any goroutine.
type Store struct {
	// mu guards handle. Every call holds it for reading, which makes kv_free the last one.
	mu     sync.RWMutex
	handle *C.kv_store // nil when freed

	serving atomic.Int32 // calls of Serve at work
	tickets registry
}

// unclosed keeps stores that the program has lost: their operations use pinned memory.
var unclosed sync.Map

// Close waits this long for pending operations, and the end of a store this long for calls of
// other goroutines that are inside the library.
const (
	closeTimeout = time.Minute
	leaveTimeout = time.Second
)

// errFreed answers calls on a store that is being freed, or has been.
var errFreed = failf(ErrClosed, "the store has been closed")

// Open creates a store. Types, in any case, are local and device, both in this process, and
// dist_sync, dist_async, dist_device_sync and dist_device_async: one job of many processes. Those
// return when the whole job is there; a library without them answers [ErrUnsupported].
func Open(storeType string, config Config) (*Store, error) {
	if abi := ABIVersion(); abi != C.KV_ABI_VERSION {
		return nil, failf(ErrUnsupported,
			"the library has binary interface %d, this program was built for %d", abi, C.KV_ABI_VERSION)
	}
	options, err := options(config)
	if err != nil {
		return nil, err
	}
	defer C.kv_config_free(options)
	text, err := cString("type", storeType)
	if err != nil {
		return nil, err
	}
	defer freeString(text)
	store := new(Store)
	err = call(func() C.kv_status { return C.kv_create(text, options, &store.handle) })
	if err != nil {
		return nil, err
	}
	unclosed.Store(store, nil)
	return store, nil
}

// Group opens the store of a group: some of the workers of a job, with keys, rounds, rules, barriers and
// collective calls of their own, over the processes and connections of the job. The workers of these ranks call
// it, in any order, and no others; it does not wait for the other workers. In the group, Rank is the place among
// the ascending ranks; errors name workers by their rank in the job. Closing the store leaves the group, and the
// others go on without this worker; the end of the job's store ends those of its groups.
func (s *Store) Group(name string, ranks ...int) (*Store, error) {
	text, err := cString("name", name)
	if err != nil {
		return nil, err
	}
	defer freeString(text)
	list := make([]C.int32_t, len(ranks)+1)
	for i, rank := range ranks {
		list[i] = -1
		if rank <= math.MaxInt32 {
			list[i] = C.int32_t(max(rank, -1))
		}
	}
	group := new(Store)
	err = s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_group(store, text, &list[0], C.size_t(len(ranks)), &group.handle)
	})
	if err != nil {
		return nil, err
	}
	unclosed.Store(group, nil)
	return group, nil
}

// options sets the options in the order of their names, so that the same one always fails first.
func options(config Config) (*C.kv_config, error) {
	var options *C.kv_config
	err := call(func() C.kv_status { return C.kv_config_create(&options) })
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(config))
	for name := range config {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if err := setOption(options, name, config[name]); err != nil {
			C.kv_config_free(options)
			return nil, err
		}
	}
	return options, nil
}

func setOption(options *C.kv_config, name, value string) error {
	nameText, err := cString("option name", name)
	if err != nil {
		return err
	}
	defer freeString(nameText)
	valueText, err := cString("option "+name, value)
	if err != nil {
		return err
	}
	defer freeString(valueText)
	return call(func() C.kv_status { return C.kv_config_set(options, nameText, valueText) })
}

// use runs one call on the handle. The only writer of mu is the end of the store, so a lock that
// cannot be had at once means that the store is closed.
func (s *Store) use(function func(store *C.kv_store) C.kv_status) error {
	if !s.mu.TryRLock() {
		return errFreed
	}
	defer s.mu.RUnlock()
	if s.handle == nil {
		return errFreed
	}
	return call(func() C.kv_status { return function(s.handle) })
}

// Close finishes pending operations, then frees the store; every call afterwards gives [ErrClosed].
// It reports the first failure of an operation that nobody waited for. Operations that take longer
// than a minute are aborted; the error then matches context.DeadlineExceeded. A [Store.Serve] at work
// is aborted at once. Closing a closed store does nothing.
//
// Called from inside an updater it does nothing but return [ErrReentrant].
func (s *Store) Close() error { return s.closeWithin(closeTimeout) }

func (s *Store) closeWithin(timeout time.Duration) error {
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	err := s.Shutdown(ctx)
	if isOver(err) {
		s.Abort()
		s.free()
	}
	return err
}

// Shutdown is Close with a time limit of yours. If ctx ends first, the store stays open.
func (s *Store) Shutdown(ctx context.Context) error {
	if ctx.Err() != nil {
		return over(ctx, "close")
	}
	err := s.poll(ctx, "close", func(store *C.kv_store, timeout C.int64_t) C.kv_status {
		if s.serving.Load() > 0 {
			C.kv_abort(store)
		}
		return C.kv_close(store, timeout)
	})
	switch {
	case err == errFreed:
		return nil
	case isOver(err), errors.Is(err, ErrReentrant):
		return err
	}
	s.free()
	return s.tickets.failure(err)
}

// Abort fails every pending operation with [ErrClosed], now, and closes the store. It never waits
// and may be called from inside an updater. Close frees the store afterwards.
func (s *Store) Abort() {
	_ = s.use(func(store *C.kv_store) C.kv_status {
		C.kv_abort(store)
		return C.KV_OK
	})
}

// free frees the closed store, once the last call of another goroutine has left it. An updater that
// does not return keeps such a call inside; then the freeing is left to a goroutine.
func (s *Store) free() {
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		s.tickets.refile()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.handle != nil {
			C.kv_free(s.handle)
			s.handle = nil
			s.tickets.abandon()
			unclosed.Delete(s)
		}
	}()
	select {
	case <-freed:
	case <-time.After(leaveTimeout):
	}
}

// cString copies a string for C; free it with freeString.
func cString(what, text string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, failf(ErrInvalidArgument, "%s %q has a zero byte", what, text)
	}
	return C.CString(text), nil
}

func freeString(text *C.char) { C.free(unsafe.Pointer(text)) }
