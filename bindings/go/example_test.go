package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	ctx := context.Background()
	store, err := kvstore.Open("local", kvstore.Config{"threads": "2"})
	check(err)
	defer store.Close()

	weights := []float32{1, 2, 3, 4, 5, 6}
	check(store.Init(ctx, 3, kvstore.Of(weights, 2, 3)))

	// One gradient per device; the store adds them up.
	gradA := []float32{1, 1, 1, 1, 1, 1}
	gradB := []float32{2, 2, 2, 2, 2, 2}
	check(store.Push(ctx, 3, kvstore.Of(gradA, 2, 3), kvstore.Of(gradB, 2, 3)))
	check(store.Pull(ctx, 3, kvstore.Of(weights, 2, 3)))
	fmt.Println(weights)
	// Output: [3 3 3 3 3 3]
}

func ExampleInt() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	for layer, gradient := range [][]float32{{1, 2}, {3, 4, 5}} {
		key, err := kvstore.Int(layer)
		check(err)
		check(store.Init(ctx, key, kvstore.Of(gradient)))
		check(store.Push(ctx, key, kvstore.Of(gradient)))
		fmt.Println(key)
	}
	_, err = kvstore.Int(-1)
	fmt.Println(err)
	// Output:
	// 0
	// 1
	// kvstore: key -1 is negative; keys are integers from 0, or names
}

func ExampleStore_SetUpdater() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	const rate = 0.5
	check(store.SetUpdater(func(_ kvstore.Key, input, stored kvstore.Tensor) error {
		weights := kvstore.Slice[float32](stored)
		for i, gradient := range kvstore.Slice[float32](input) {
			weights[i] -= rate * gradient
		}
		return nil
	}))
	weights := []float32{10, 20}
	check(store.Init(ctx, 0, kvstore.Of(weights)))
	check(store.PushPull(ctx, 0,
		[]kvstore.Tensor{kvstore.Of([]float32{1, 2}), kvstore.Of([]float32{3, 4})},
		[]kvstore.Tensor{kvstore.Of(weights)}))
	fmt.Println(weights)
	// Output: [8 17]
}

func ExampleStore_SetOptimizer() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	check(store.SetOptimizer("sgd", kvstore.Params{"learning_rate": 0.5}))
	weights := []float32{10, 20}
	check(store.Init(ctx, 0, kvstore.Of(weights)))
	check(store.PushPull(ctx, 0,
		[]kvstore.Tensor{kvstore.Of([]float32{1, 2}), kvstore.Of([]float32{3, 4})},
		[]kvstore.Tensor{kvstore.Of(weights)}))
	fmt.Println(weights)

	check(store.SetHyperparameter("learning_rate", 0.25))
	check(store.Push(ctx, 0, kvstore.Of([]float32{4, 4})))
	check(store.Pull(ctx, 0, kvstore.Of(weights)))
	fmt.Println(weights)
	// Output:
	// [8 17]
	// [7 16]
}

func ExampleStore_Intern() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	weight, err := store.Intern("fc1.weight")
	check(err)
	bias, err := store.Intern("fc1.bias")
	check(err)
	check(store.InitList(ctx, []kvstore.Pair{
		{Key: weight, Tensor: kvstore.Of(make([]float32, 12), 3, 4)},
		{Key: bias, Tensor: kvstore.Of(make([]float32, 4))},
	}))
	name, err := store.KeyName(bias)
	check(err)
	dtype, shape, err := store.KeyInfo(weight)
	check(err)
	fmt.Println(name, dtype, shape)
	// Output: fc1.bias float32 [3 4]
}

func ExampleStore_PushAsync() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()
	check(store.Init(ctx, 1, kvstore.Of([]float64{0, 0})))

	gradient := []float64{1, 2}
	ticket, err := store.PushAsync(kvstore.Pairs(1, kvstore.Of(gradient)), 0)
	check(err)
	// The gradient is the store's until the operation has ended.
	select {
	case <-ticket.Done():
	case <-time.After(time.Minute):
		check(ticket.Cancel(ctx))
	}
	check(ticket.Wait(ctx))
	check(store.Pull(ctx, 1, kvstore.Of(gradient)))
	fmt.Println(gradient)
	// Output: [1 2]
}

func ExampleStrided() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	matrix := []int32{
		1, 2, 3,
		4, 5, 6,
	}
	transposed := kvstore.Strided(matrix, 0, []int{3, 2}, []int{1, 3})
	check(store.Init(ctx, 1, transposed))
	out := make([]int32, 6)
	check(store.Pull(ctx, 1, kvstore.Of(out, 3, 2)))
	fmt.Println(out)
	// Output: [1 4 2 5 3 6]
}

func ExampleError() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	check(err)
	defer store.Close()

	err = store.Pull(ctx, 7, kvstore.Of(make([]float32, 2)))
	fmt.Println(errors.Is(err, kvstore.ErrKeyNotFound))
	var detail *kvstore.Error
	if errors.As(err, &detail) {
		fmt.Println(detail.Status)
	}
	// Output:
	// true
	// KV_ERR_KEY_NOT_FOUND
}

// Without a GPU it is only compiled.
func ExampleStream() {
	ctx := context.Background()
	store, err := kvstore.Open("device", nil)
	check(err)
	defer store.Close()

	var handle, weight, gradient uintptr // a stream of GPU 0 and addresses there, of CUDA code
	stream := kvstore.Stream{Device: 0, Handle: handle}
	weights := stream.Tensor(weight, kvstore.F32, 256, 10)
	check(store.Init(ctx, 3, weights))

	// All of it is queued behind what the stream has; nothing waits.
	check(store.Push(ctx, 3, stream.Tensor(gradient, kvstore.F32, 256, 10)))
	check(store.Pull(ctx, 3, weights))
}
