// What training programs use beyond push and pull, in a store of one process. Each step prints one
// line, "name: value"; the same calls serve a job of many machines.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

var ctx = context.Background()

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// full is an array; all but single numbers are of one shape.
func full(value float32) []float32 { return []float32{value, value, value} }

func open() *kvstore.Store {
	store, err := kvstore.Open("local", nil)
	try(err)
	return store
}

func named(store *kvstore.Store, name string) kvstore.Key {
	key, err := store.Intern(name)
	try(err)
	return key
}

// show prints the value that all elements of a key have.
func show(what string, store *kvstore.Store, key kvstore.Key) {
	out := full(0)
	try(store.Pull(ctx, key, kvstore.Of(out)))
	fmt.Printf("%s: %g\n", what, out[0])
}

// A program that is built against one release, and runs with another, asks before it calls.
func whatThereIs() {
	number := map[bool]int{true: 1}
	fmt.Printf("has tickets: %d\n", number[kvstore.Capable("tickets")])
	fmt.Printf("has telepathy: %d\n", number[kvstore.Capable("telepathy")])
}

// The end of an operation comes to the program: through a channel, beside others in a select.
func endsOfOperations() {
	store := open()
	defer store.Close()
	key := named(store, "w")
	try(store.Init(ctx, key, kvstore.Of(full(0))))
	for _, what := range []string{"event", "told"} {
		ticket, err := store.PushAsync(kvstore.Pairs(key, kvstore.Of(full(4))), 0)
		try(err)
		select {
		case <-ticket.Done():
			try(ticket.Wait(ctx))
			fmt.Printf("%s: ok\n", what)
		case <-time.After(10 * time.Second):
			fmt.Printf("%s: failed\n", what)
		}
	}
}

// Weights learn by a rule, and what is counted beside them is assigned.
func rulesOfKeys(store *kvstore.Store) {
	weight, key, steps := named(store, "w"), named(store, "steps"), int64(0)
	try(store.Init(ctx, weight, kvstore.Of(full(2))))
	try(store.Init(ctx, key, kvstore.Scalar(&steps)))
	try(store.SetOptimizerFor([]kvstore.Key{key}, "none", nil))
	try(store.SetOptimizer("sgd", kvstore.Params{"learning_rate": 0.5}))
	try(store.Push(ctx, weight, kvstore.Of(full(1))))
	steps = 7
	try(store.Push(ctx, key, kvstore.Scalar(&steps)))
	steps = 0
	try(store.Pull(ctx, key, kvstore.Scalar(&steps)))
	show("weight by sgd", store, weight)
	fmt.Printf("steps: %d\n", steps)
}

// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
func means(store *kvstore.Store) {
	weight := named(store, "w")
	try(store.SetWeight(8))
	try(store.Push(ctx, weight, kvstore.Of(full(24))))
	try(store.ClearWeight())
	round, err := store.LastRound(ctx, weight)
	try(err)
	show("weight by a mean", store, weight)
	fmt.Printf("samples: %g\n", round.TotalWeight)
	fmt.Printf("contributors: %d\n", round.Contributors)

	// A worker without batches says so, and all go on together in the next epoch.
	try(store.Done())
	try(store.Resume(ctx))
	lost, err := store.NumLost()
	try(err)
	fmt.Printf("lost: %d\n", lost)
}

// Keys and arrays that are checked once: each later call costs little beside the bytes.
func boundList(store *kvstore.Store) {
	weight, gradient, out := named(store, "w"), full(0), full(0)
	bound, err := store.Bind(
		kvstore.Pairs(weight, kvstore.Of(gradient)), kvstore.Pairs(weight, kvstore.Of(out)))
	try(err)
	defer func() { try(bound.Close()) }()
	for step := 1; step <= 3; step++ {
		copy(gradient, full(float32(step)))
		try(bound.PushPull(ctx))
		fmt.Printf("bound step %d: %g\n", step, out[0])
	}
}

// A mask is stored and given out; two of them have no sum.
func opaqueValues(store *kvstore.Store) {
	key, mask, out := named(store, "mask"), []bool{true, false, true}, make([]bool, 3)
	number := map[bool]int{true: 1}
	try(store.SetOptimizerFor([]kvstore.Key{key}, "none", nil))
	try(store.Init(ctx, key, kvstore.Of(mask)))
	try(store.Pull(ctx, key, kvstore.Of(out)))
	fmt.Printf("mask: %d %d %d\n", number[out[0]], number[out[1]], number[out[2]])
	err := store.Push(ctx, key, kvstore.Of(mask), kvstore.Of(mask))
	if errors.Is(err, kvstore.ErrUnsupported) {
		fmt.Println("two masks: unsupported")
	} else {
		fmt.Println("two masks: summed", err)
	}
}

// writeModel writes a file of safetensors as another program does: length of the header, header,
// elements.
func writeModel(path string) {
	header := `{"model.w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},` +
		`"head":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`
	var file bytes.Buffer
	try(binary.Write(&file, binary.LittleEndian, uint64(len(header))))
	file.WriteString(header)
	try(binary.Write(&file, binary.LittleEndian, []float32{9, 9, 9, 1}))
	try(os.WriteFile(path, file.Bytes(), 0o600))
}

// Takes the model's tensors without their prefix, and leaves the others out.
func aModelOfAnotherProgram(store *kvstore.Store) {
	folder, err := os.MkdirTemp("", "model")
	try(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model.safetensors")
	writeModel(path)
	before, err := store.Keys()
	try(err)
	try(store.LoadValues(ctx, path, func(tensor string) (string, bool, error) {
		name, found := strings.CutPrefix(tensor, "model.")
		return name, found, nil
	}))
	after, err := store.Keys()
	try(err)
	show("loaded weight", store, named(store, "w"))
	fmt.Printf("new keys: %d\n", len(after)-len(before))
}

// Values that workers add up without a key, and a group of workers with keys of its own.
func aGroup(store *kvstore.Store) {
	group, err := store.Group("alone", 0)
	try(err)
	try(group.Init(ctx, named(group, "w"), kvstore.Of(full(4))))
	show("weight of the group", group, named(group, "w"))
	show("weight of the job", store, named(store, "w"))
	sum := full(0)
	values := []kvstore.Tensor{kvstore.Of(full(1)), kvstore.Of(full(2))}
	try(group.Exchange(ctx, kvstore.AllReduce(kvstore.Sum, values, kvstore.Of(sum))))
	fmt.Printf("sum of all: %g\n", sum[0])
	try(group.Close())
}

func main() {
	whatThereIs()
	endsOfOperations()
	store := open()
	defer store.Close()
	rulesOfKeys(store)
	means(store)
	boundList(store)
	opaqueValues(store)
	aModelOfAnotherProgram(store)
	aGroup(store)
}
