package kvstore

// #include "shim.h"
import "C"

import (
	"sort"
	"strconv"
	"strings"
	"unsafe"
)

// Params holds options of an optimizer or a codec by name; 1 and 0 stand for true and false. Nil means the
// defaults.
type Params map[string]float64

// text returns the options as the library reads them. They are sorted, so that the same one always
// fails first; every number is read as it was.
func (p Params) text() string {
	options := make([]string, 0, len(p))
	for name, value := range p {
		options = append(options, name+"="+strconv.FormatFloat(value, 'g', -1, 64))
	}
	sort.Strings(options)
	return strings.Join(options, ",")
}

// SetOptimizer merges sums into stored values by a rule of the library, for all pushes after this
// call. The rules and their options are listed in docs/use/optimizers.md. An unknown one, or a value
// that does not fit, gives [ErrOption]; a key of integers [ErrDTypeMismatch].
//
// The rule keeps what it must remember of a key, such as its momentum, from the key's first push
// until the key is removed or SetOptimizer or [Store.SetUpdater] is called again. SetUpdater(nil)
// assigns again, as in the beginning.
func (s *Store) SetOptimizer(name string, params Params) error {
	return s.useTexts("optimizer", name, params,
		func(store *C.kv_store, name, params *C.char) C.kv_status {
			return C.kv_set_optimizer(store, name, params)
		})
}

// SetOptimizerFor gives some keys a rule of their own, for all pushes after this call, whatever the store
// has for the others: a name of [Store.SetOptimizer], "none" for assignment, or "store", with which
// the keys merge as the others again. The keys need not be there yet.
func (s *Store) SetOptimizerFor(keys []Key, name string, params Params) error {
	numbers := make([]C.kv_key, len(keys))
	for i, key := range keys {
		numbers[i] = C.kv_key(key)
	}
	return s.useTexts("optimizer", name, params,
		func(store *C.kv_store, name, params *C.char) C.kv_status {
			count := C.size_t(len(numbers))
			return C.kv_set_optimizer_for(store, unsafe.SliceData(numbers), count, name, params)
		})
}

// useTexts runs a call that takes a name and options.
func (s *Store) useTexts(what, name string, params Params,
	function func(store *C.kv_store, name, params *C.char) C.kv_status) error {
	nameText, err := cString(what, name)
	if err != nil {
		return err
	}
	defer freeString(nameText)
	paramsText, err := cString("options", params.text())
	if err != nil {
		return err
	}
	defer freeString(paramsText)
	return s.use(func(store *C.kv_store) C.kv_status {
		return function(store, nameText, paramsText)
	})
}

// SetHyperparameter changes an option of the optimizer, for all pushes after this call. What the
// rule remembers of the keys stays.
func (s *Store) SetHyperparameter(name string, value float64) error {
	text, err := cString("hyperparameter", name)
	if err != nil {
		return err
	}
	defer freeString(text)
	return s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_set_hyperparameter(store, text, C.double(value))
	})
}

// SetKeyHyperparameter changes what the learning rate (lr_mult) or the weight decay (wd_mult) is
// multiplied by for one key, for all pushes after this call; or an option of the rule that the key
// has of its own. The key need not be there yet.
func (s *Store) SetKeyHyperparameter(key Key, name string, value float64) error {
	text, err := cString("hyperparameter", name)
	if err != nil {
		return err
	}
	defer freeString(text)
	return s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_set_key_hyperparameter(store, C.kv_key(key), text, C.double(value))
	})
}
