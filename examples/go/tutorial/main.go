// A tour of the store in two chapters. Each step prints one line, "name: value".
//
// A store keeps one array for each key: a parameter of your model, say. Devices push values, such
// as gradients, and pull the result. The words:
//
//	Init   gives a key its shape, its type and its first value
//	Push   adds up the values that the devices have for a key and merges the sum into the store
//	Pull   copies the stored value out, to as many devices as you like
package main

import (
	"context"
	"fmt"
	"log"
	"strings"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

const rows, columns = 2, 3

// array has one shape throughout.
type array []float32

func full(value float32) array {
	a := make(array, rows*columns)
	for i := range a {
		a[i] = value
	}
	return a
}

// on views the array as a tensor on a "device", which is ordinary memory here. Nothing is copied.
func (a array) on(id int32) kvstore.Tensor {
	return kvstore.Of(a, rows, columns).On(kvstore.Device{Type: kvstore.CPU, ID: id})
}

// devices views one array for each device.
func devices(arrays ...array) []kvstore.Tensor {
	var tensors []kvstore.Tensor
	for i, a := range arrays {
		tensors = append(tensors, a.on(int32(i)))
	}
	return tensors
}

// show prints the value that all elements of all arrays have.
func show(name string, arrays ...array) {
	value := arrays[0][0]
	for _, a := range arrays {
		for _, element := range a {
			if element != value {
				log.Fatalf("%s: the elements differ", name)
			}
		}
	}
	fmt.Printf("%s: %.6g\n", name, value)
}

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

var (
	ctx = context.Background()
	key = kvstore.Key(3)
)

// addScaled makes an updater: a function that decides how a push changes the stored value. Without
// one the sum replaces it; this one computes stored += factor * input. It runs once for each key of
// a push, after the values of the devices have been added up.
func addScaled(factor float32, called func(kvstore.Key)) kvstore.Updater {
	return func(key kvstore.Key, input, stored kvstore.Tensor) error {
		called(key)
		value := kvstore.Slice[float32](stored)
		for i, x := range kvstore.Slice[float32](input) {
			value[i] += factor * x
		}
		return nil
	}
}

// One key: Init, Push and Pull, from one device and from four.
func oneKey(store *kvstore.Store) {
	// The value is copied: the array is ours again when the call is back.
	try(store.Init(ctx, key, full(2).on(0)))
	a := full(0)
	try(store.Pull(ctx, key, a.on(0)))
	show("init", a)

	try(store.Push(ctx, key, full(8).on(0)))
	try(store.Pull(ctx, key, a.on(0)))
	show("push", a)

	// Four devices have a value each for the same key: the store adds them up.
	try(store.Push(ctx, key, devices(full(1), full(1), full(1), full(1))...))
	try(store.Pull(ctx, key, a.on(0)))
	show("four devices", a)
}

// The same key with an updater.
func oneKeyUpdated(store *kvstore.Store) {
	var calls []kvstore.Key
	try(store.SetUpdater(addScaled(2, func(key kvstore.Key) { calls = append(calls, key) })))
	a := full(0)
	try(store.Pull(ctx, key, a.on(0)))
	show("updater set", a)

	try(store.Push(ctx, key, full(1).on(0)))
	try(store.Pull(ctx, key, a.on(0)))
	show("updater push", a)
	fmt.Printf("updater calls: %d\n", len(calls))
	fmt.Printf("updater key: %v\n", calls[0])

	outs := []array{full(0), full(0), full(0), full(0)}
	try(store.Pull(ctx, key, devices(outs...)...))
	show("four outs", outs...)
}

// Several keys in one call: cheaper than a call for each.
func manyKeys(store *kvstore.Store) {
	var order []string
	called := func(key kvstore.Key) { order = append(order, key.String()) }
	try(store.SetUpdater(addScaled(2, called)))
	arrays := []array{full(1), full(1), full(1)}
	var pairs, shared, values, outs []kvstore.Pair
	for i, key := range []kvstore.Key{5, 7, 9} {
		pairs = append(pairs, kvstore.Pair{Key: key, Tensor: arrays[i].on(0)})
	}
	try(store.InitList(ctx, pairs))
	try(store.PushList(ctx, pairs))
	try(store.PullList(ctx, pairs))
	show("keys 5 7 9", arrays...)
	fmt.Println("updater order:", strings.Join(order, " "))

	// One array may be the out of several keys; the last one's value stays in it.
	a := full(0)
	for _, key := range []kvstore.Key{5, 7, 9} {
		shared = append(shared, kvstore.Pair{Key: key, Tensor: a.on(0)})
	}
	try(store.PullList(ctx, shared))
	show("one out of three keys", a)

	// Several keys with several devices each. The same four arrays serve all keys.
	ones := devices(full(1), full(1), full(1), full(1))
	results := []array{full(0), full(0), full(0), full(0)}
	for _, key := range []kvstore.Key{5, 7, 9} {
		values = append(values, kvstore.Pairs(key, ones...)...)
		outs = append(outs, kvstore.Pairs(key, devices(results...)...)...)
	}
	try(store.PushList(ctx, values))
	try(store.PullList(ctx, outs))
	show("list of lists", results...)
}

// The type device adds up where the values are; on ordinary memory it works as local does.
func deviceOneKey(store *kvstore.Store) {
	try(store.Init(ctx, key, full(-2).on(0)))
	a := full(0)
	try(store.Pull(ctx, key, a.on(0)))
	show("device init", a)

	try(store.Push(ctx, key, full(-7).on(0)))
	try(store.Pull(ctx, key, a.on(0)))
	show("device push", a)

	try(store.Push(ctx, key, devices(full(1), full(1), full(1))...))
	try(store.Pull(ctx, key, a.on(0)))
	show("device three ones", a)
}

func deviceManyKeys(store *kvstore.Store) {
	arrays := []array{full(-3), full(-3), full(-3), full(-3)}
	tensors := devices(arrays...)
	tenths := devices(full(-0.1), full(-0.1), full(-0.1))
	var pairs, values []kvstore.Pair
	for i, key := range []kvstore.Key{7, 11, 13, 17} {
		pairs = append(pairs, kvstore.Pair{Key: key, Tensor: tensors[i]})
		values = append(values, kvstore.Pairs(key, tenths...)...)
	}
	try(store.InitList(ctx, pairs))
	for _, a := range arrays {
		copy(a, full(0))
	}
	try(store.PullList(ctx, pairs))
	show("device keys", arrays...)
	try(store.PushList(ctx, values))
	try(store.PullList(ctx, pairs))
	show("device multi push", arrays...)
}

func deviceUpdated(store *kvstore.Store) {
	try(store.SetUpdater(addScaled(0.01, func(kvstore.Key) {})))
	a := full(0)
	try(store.Pull(ctx, key, a.on(0)))
	show("device updater set", a)
	try(store.Push(ctx, key, full(5).on(0)))
	try(store.Pull(ctx, key, a.on(0)))
	show("device updater push", a)
}

// chapter takes steps on a store of its own.
func chapter(storeType string, steps ...func(*kvstore.Store)) {
	store, err := kvstore.Open(storeType, nil)
	try(err)
	for _, step := range steps {
		step(store)
	}
	try(store.Close())
}

func main() {
	log.SetFlags(0)
	chapter("local", oneKey, oneKeyUpdated, manyKeys)
	chapter("device", deviceOneKey, deviceManyKeys, deviceUpdated)
}
