package kvstore

// #include "shim.h"
import "C"

import "context"

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
