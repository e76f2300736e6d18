// What training programs use beyond push and pull, in one process or in a job of many. Only the type differs:
//
//	features                   one process, the only worker
//	features dist_sync         a worker of a job; `kvstore run` starts them all, and the servers:
//	                           kvstore run -n 2 -s 1 -- features dist_sync
//
// All workers make the same calls, with values that depend on their rank. Rank 0 prints "name: value" for each
// result.
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

// The place of this process among the workers, and their number: 0 of 1 in a store of one process.
var rank, workers int

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// full is an array; all but single numbers are of one shape.
func full(value float32) []float32 { return []float32{value, value, value} }

func named(store *kvstore.Store, name string) kvstore.Key {
	key, err := store.Intern(name)
	try(err)
	return key
}

// report prints on rank 0: the other workers have the same values.
func report(what string, value any) {
	if rank == 0 {
		fmt.Printf("%s: %v\n", what, value)
	}
}

// show prints the first element of a key. Here as elsewhere all workers make the call.
func show(what string, store *kvstore.Store, key kvstore.Key) {
	out := full(0)
	try(store.Pull(ctx, key, kvstore.Of(out)))
	report(what, out[0])
}

// A program that is built against one release, and runs with another, asks before it calls.
func whatThereIs() {
	number := map[bool]int{true: 1}
	report("has tickets", number[kvstore.Capable("tickets")])
	report("has telepathy", number[kvstore.Capable("telepathy")])
}

// The end of an operation comes to the program: through a channel, beside others in a select.
func endsOfOperations(store *kvstore.Store) {
	key := named(store, "first")
	try(store.Init(ctx, key, kvstore.Of(full(0))))
	for _, what := range []string{"event", "told"} {
		ticket, err := store.PushAsync(kvstore.Pairs(key, kvstore.Of(full(4))), 0)
		try(err)
		select {
		case <-ticket.Done():
			try(ticket.Wait(ctx))
			report(what, "ok")
		case <-time.After(time.Minute):
			report(what, "failed")
		}
	}
}

// Weights learn by a rule. What is counted beside them is assigned: the sum over the workers.
func rulesOfKeys(store *kvstore.Store) {
	weight, key, steps := named(store, "w"), named(store, "steps"), int64(0)
	try(store.Init(ctx, weight, kvstore.Of(full(2))))
	try(store.Init(ctx, key, kvstore.Scalar(&steps)))
	try(store.SetOptimizerFor([]kvstore.Key{key}, "none", nil))
	try(store.SetOptimizer("sgd", kvstore.Params{"learning_rate": 0.5}))
	try(store.Push(ctx, weight, kvstore.Of(full(float32(rank+1)))))
	steps = 7
	try(store.Push(ctx, key, kvstore.Scalar(&steps)))
	steps = 0
	try(store.Pull(ctx, key, kvstore.Scalar(&steps)))
	show("weight by sgd", store, weight)
	report("steps", steps)
}

// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
func means(store *kvstore.Store) {
	weight := named(store, "w")
	try(store.SetWeight(float64(8 * (rank + 1)))) // batches of 8 samples, 16 samples, ...
	try(store.Push(ctx, weight, kvstore.Of(full(24))))
	try(store.ClearWeight())
	round, err := store.LastRound(ctx, weight)
	try(err)
	show("weight by a mean", store, weight)
	report("samples", round.TotalWeight)
	report("contributors", round.Contributors)
}

// Rank 0 has a batch more than the others. Rounds do not wait for workers that are done.
func unequalEpochs(store *kvstore.Store) {
	weight := named(store, "w")
	if rank == 0 {
		try(store.Push(ctx, weight, kvstore.Of(full(1))))
	}
	try(store.Done())
	try(store.Resume(ctx)) // all go on together, in the next epoch
	show("weight of the epoch", store, weight)
	lost, err := store.NumLost()
	try(err)
	report("lost", lost)
}

// Keys and arrays that are checked once: each later call costs little beside the bytes.
func boundList(store *kvstore.Store) {
	weight, gradient, out := named(store, "w"), full(0), full(0)
	bound, err := store.Bind(
		kvstore.Pairs(weight, kvstore.Of(gradient)), kvstore.Pairs(weight, kvstore.Of(out)))
	try(err)
	defer func() { try(bound.Close()) }()
	for step := 1; step <= 3; step++ {
		copy(gradient, full(float32(step*(rank+1))))
		try(bound.PushPull(ctx))
		report(fmt.Sprintf("bound step %d", step), out[0])
	}
}

// A mask is stored and given out; two of them have no sum.
func opaqueValues(store *kvstore.Store) {
	key, mask, out := named(store, "mask"), []bool{true, false, true}, make([]bool, 3)
	number := map[bool]int{true: 1}
	try(store.SetOptimizerFor([]kvstore.Key{key}, "none", nil))
	try(store.Init(ctx, key, kvstore.Of(mask)))
	try(store.Pull(ctx, key, kvstore.Of(out)))
	report("mask", fmt.Sprint(number[out[0]], number[out[1]], number[out[2]]))
	err := store.Push(ctx, key, kvstore.Of(mask), kvstore.Of(mask))
	if errors.Is(err, kvstore.ErrUnsupported) {
		report("two masks", "unsupported")
	} else {
		report("two masks", fmt.Sprint("summed ", err))
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

// Takes the model's tensors without their prefix, and leaves the others out. All workers load together: the file
// of rank 0.
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
	report("new keys", len(after)-len(before))
}

// Gradients of a large norm are scaled down. The norm is that of the sums over the workers.
func clipping(store *kvstore.Store) {
	weight, scale := named(store, "w"), float32(rank+1)
	gradient := []float32{3 * scale, 4 * scale, 0}
	try(store.SetClipping(2.5, 0))
	try(store.Push(ctx, weight, kvstore.Of(gradient)))
	norm, _, err := store.LastNorm()
	try(err)
	report("norm", norm)
	show("weight by a clipped step", store, weight)
	try(store.SetClipping(0, 0))
	try(store.Push(ctx, weight, kvstore.Of(gradient)))
	show("weight by a full step", store, weight)
}

// A group of workers, here of all, has keys and rules of its own.
func aGroup(store *kvstore.Store) {
	ranks := make([]int, workers)
	for i := range ranks {
		ranks[i] = i
	}
	group, err := store.Group("all", ranks...)
	try(err)
	weight := named(group, "w")
	try(group.Init(ctx, weight, kvstore.Of(full(0))))
	try(group.Push(ctx, weight, kvstore.Of(full(float32(4*(rank+1))))))
	show("weight of the group", group, weight)
	show("weight of the job", store, named(store, "w"))
	try(group.Close())
}

// Workers exchange values without a key: a sum, the value of one worker, and the value of each.
func collectiveCalls(store *kvstore.Store) {
	one, two, sum := full(float32(rank+1)), full(float32(2*(rank+1))), full(0)
	values := []kvstore.Tensor{kvstore.Of(one), kvstore.Of(two)}
	try(store.Exchange(ctx, kvstore.AllReduce(kvstore.Sum, values, kvstore.Of(sum))))
	report("sum of all", sum[0])

	value := full(float32(rank + 1))
	try(store.Exchange(ctx, kvstore.BroadcastFrom(workers-1, kvstore.Of(value))))
	report("value of the last", value[0])

	all, outs := make([][]float32, workers), make([]kvstore.Tensor, workers)
	for i := range all {
		all[i] = full(0)
		outs[i] = kvstore.Of(all[i])
	}
	try(store.Exchange(ctx, kvstore.AllGather(kvstore.Of(one), outs...)))
	first := make([]string, workers)
	for i, value := range all {
		first[i] = fmt.Sprint(value[0])
	}
	report("values of all", strings.Join(first, " "))
}

func main() {
	log.SetFlags(0)
	storeType := "local"
	if len(os.Args) > 1 {
		storeType = os.Args[1]
	}
	store, err := kvstore.Open(storeType, nil)
	try(err)
	rank, err = store.Rank()
	try(err)
	workers, err = store.NumWorkers()
	try(err)
	whatThereIs()
	endsOfOperations(store)
	rulesOfKeys(store)
	means(store)
	unequalEpochs(store)
	boundList(store)
	opaqueValues(store)
	aModelOfAnotherProgram(store)
	clipping(store)
	aGroup(store)
	collectiveCalls(store)
	try(store.Barrier(ctx)) // no worker leaves while others need its values
	try(store.Close())
}
