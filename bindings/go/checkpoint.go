package kvstore

// #include "shim.h"
import "C"

import (
	"context"
	"runtime/cgo"
)

// Save writes the keys, their values, and the optimizer with its options and state to a file, which
// takes the place of the one at the path as a whole. Each key is as it was between two pushes; all
// are of one moment if nobody pushes meanwhile. A function of [Store.SetUpdater] is not saved, its
// values are. A file that cannot be written gives [ErrIO], and the old one is as it was.
//
// If ctx ends during the call, it goes on, and the file is the old or the new one.
func (s *Store) Save(ctx context.Context, path string) error {
	return s.onFile(ctx, "save", path, func(store *C.kv_store, path *C.char) C.kv_status {
		return C.kv_save(store, path)
	})
}

// Load takes over what a file of [Store.Save] has: keys that are there get its values, others are
// added, and its optimizer takes the place of what is set. Training goes on as if it had not
// stopped. A file that is cut off or altered gives [ErrCorrupt], one of another program
// [ErrUnsupported]; the store is as it was.
//
// If ctx ends during the call, everything is loaded or nothing.
func (s *Store) Load(ctx context.Context, path string) error {
	return s.onFile(ctx, "load", path, func(store *C.kv_store, path *C.char) C.kv_status {
		return C.kv_load(store, path)
	})
}

// LoadValues takes over the values of a file of safetensors that another program has written, or of
// all files of an index, for the keys that name gives their tensors; false leaves a tensor out. In a
// job all workers call it, and the function of one, the lowest rank, is asked. What the function fails
// with, also by a panic, is [ErrCallback] with its text; two tensors with one name are
// [ErrInvalidArgument], and a file of [Store.Save] is [ErrUnsupported]; the store is as it was. The
// function gets [ErrReentrant] from most methods of its own store.
//
// If ctx ends during the call, everything is loaded or nothing, and the function may still be called.
func (s *Store) LoadValues(
	ctx context.Context, path string, name func(tensor string) (string, bool, error),
) error {
	if name == nil {
		return failf(ErrInvalidArgument, "load_values: name is nil; Load needs none")
	}
	return s.onFile(ctx, "load_values", path, func(store *C.kv_store, path *C.char) C.kv_status {
		naming := &naming{name: name}
		defer naming.free()
		handle := cgo.NewHandle(naming)
		defer handle.Delete()
		return C.kvstore_go_load_values(store, path, C.uintptr_t(handle))
	})
}

// naming is a function that names keys, and the text that it gave last.
type naming struct {
	name func(tensor string) (string, bool, error)
	text *C.char
}

func (n *naming) free() {
	freeString(n.text)
	n.text = nil
}

//export kvstoreGoNameKey
func kvstoreGoNameKey(context C.uintptr_t, tensor *C.char, key **C.char) C.int32_t {
	naming := cgo.Handle(context).Value().(*naming)
	naming.free()
	err := guarded(func() error {
		name, ok, err := naming.name(C.GoString(tensor))
		if err == nil && ok {
			naming.text, err = cString("name", name)
		}
		return err
	})
	*key = naming.text
	return outcome(err)
}

func (s *Store) onFile(
	ctx context.Context, name, path string, function func(*C.kv_store, *C.char) C.kv_status,
) error {
	return await(ctx, name, func(C.int64_t) error {
		// Made and freed here, because the function may outlive the call.
		text, err := cString("path", path)
		if err != nil {
			return err
		}
		defer freeString(text)
		return s.use(func(store *C.kv_store) C.kv_status { return function(store, text) })
	})
}
