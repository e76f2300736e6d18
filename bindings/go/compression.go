package kvstore

// #include "shim.h"
import "C"

// SetCompression sends each value of every push after this call through a codec: 1bit, 2bit, fp16,
// bf16, int8, topk or randomk; none ends that. What is added up is what arrives of each value. The
// codecs and their options are listed in docs/use/compression.md. An unknown one, or a value that does
// not fit, gives [ErrOption]; a key of floats that the codec does not take [ErrDTypeMismatch].
//
// What does not arrive is kept, and added to the key's next push, until the key is removed or
// SetCompression is called again. Keys of integers are not compressed, nor are pulls.
func (s *Store) SetCompression(name string, params Params) error {
	return s.useTexts("codec", name, params,
		func(store *C.kv_store, name, params *C.char) C.kv_status {
			return C.kv_set_compression(store, name, params)
		})
}
