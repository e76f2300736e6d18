package kvstore

// #include "shim.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"strings"
)

// Updater merges a sum into the stored value.
//
// input is the sum of the values of one push; it may be the caller's own memory and must not be
// changed. stored is changed in place. Both have the key's dtype and shape, are row-major, and must
// not be used after the call; [Slice] gives their elements. In a store with the option
// updater_memory=device they may be in GPU memory, where the updater's work belongs on the stream that
// they carry: see [Tensor.Address] and [Tensor.Stream]. An error or a panic makes the push fail
// with [ErrCallback] and its text. An updater must not call runtime.Goexit (as FailNow of package
// testing does), and gets [ErrReentrant] from most methods of its own store.
type Updater func(key Key, input, stored Tensor) error

// SetUpdater sets the function that merges sums into stored values, for all pushes after this call.
// Nil assigns again, as in the beginning.
//
// Within a push it runs for one key after the other. Across pushes it may run concurrently for
// different keys, never for one key.
func (s *Store) SetUpdater(updater Updater) error {
	var context C.uintptr_t
	return s.use(func(store *C.kv_store) C.kv_status {
		if updater != nil {
			context = C.uintptr_t(cgo.NewHandle(updater))
		}
		// The library drops the context, also if it refuses the updater.
		return C.kvstore_go_set_updater(store, context)
	})
}

// LogLevel says how much a logger hears; each level includes those before it.
type LogLevel int32

// The log levels.
const (
	LogOff   LogLevel = C.KV_LOG_OFF
	LogError LogLevel = C.KV_LOG_ERROR // bugs of the library
	LogWarn  LogLevel = C.KV_LOG_WARN  // things that lose work
	LogInfo  LogLevel = C.KV_LOG_INFO  // stores opened and closed
	LogDebug LogLevel = C.KV_LOG_DEBUG // keys made and removed, updaters set, threads started
)

// String returns the name of the level, such as warn.
func (l LogLevel) String() string {
	names := []string{"off", "error", "warn", "info", "debug"}
	if l < 0 || int(l) >= len(names) {
		return fmt.Sprintf("LogLevel(%d)", int32(l))
	}
	return names[l]
}

// Logger receives one line. It may be called from several goroutines at a time and must not call
// the library. A panic in it is dropped: there is nobody to tell.
type Logger func(level LogLevel, message string)

// SetLogger sends what the library has to say to a function of yours, for the whole process. Nil
// makes it silent again, as in the beginning.
func SetLogger(level LogLevel, logger Logger) error {
	return call(func() C.kv_status {
		var context C.uintptr_t
		if logger != nil {
			context = C.uintptr_t(cgo.NewHandle(logger))
		}
		return C.kvstore_go_set_logger(C.int32_t(level), context)
	})
}

//export kvstoreGoUpdate
func kvstoreGoUpdate(context C.uintptr_t, key C.kv_key, input, stored *C.kv_tensor) C.int32_t {
	updater := cgo.Handle(context).Value().(Updater)
	return outcome(guarded(func() error { return updater(Key(key), fromC(input), fromC(stored)) }))
}

// outcome is what a callback returns to the library, which takes the text of an error.
func outcome(err error) C.int32_t {
	if err == nil {
		return C.KV_OK
	}
	text := C.CString(strings.ReplaceAll(err.Error(), "\x00", "\uFFFD"))
	defer freeString(text)
	C.kv_set_callback_error(text)
	return C.KV_ERR_CALLBACK
}

// guarded turns a panic of a callback into an error: it must not unwind through the library.
func guarded(callback func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return callback()
}

//export kvstoreGoLog
func kvstoreGoLog(context C.uintptr_t, level C.int32_t, message *C.char) {
	defer func() { _ = recover() }()
	cgo.Handle(context).Value().(Logger)(LogLevel(level), C.GoString(message))
}

//export kvstoreGoDrop
func kvstoreGoDrop(context C.uintptr_t) { cgo.Handle(context).Delete() }
