// Five rounds of pushes and pulls, in one process or in a job of many. Only the type differs:
//
//	rounds                     one process, the only worker
//	rounds dist_sync           one process of a job; `kvstore run` starts them all:
//	                           kvstore run -n 4 -s 2 --serve-with-program -- rounds dist_sync
//
// In each round every worker pushes its rank + 1. The servers add up what the n workers push, and
// add the sum to the value: after round i it is 1 + i * n * (n + 1) / 2.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

const key, rows, columns, rounds = 3, 2, 3, 5

func full(value float32) []float32 {
	elements := make([]float32, rows*columns)
	for i := range elements {
		elements[i] = value
	}
	return elements
}

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func work(ctx context.Context, store *kvstore.Store) {
	rank, err := store.Rank()
	try(err)
	weight, gradient := full(1), full(float32(rank)+1)

	// All workers make the same calls. A rule of the library runs where the values are.
	try(store.SetOptimizer("test", kvstore.Params{"rescale_grad": 1}))
	try(store.Init(ctx, key, kvstore.Of(weight, rows, columns)))
	for round := 1; round <= rounds; round++ {
		try(store.Push(ctx, key, kvstore.Of(gradient, rows, columns)))
		// Waits until the pushes of all workers in this round are in the value.
		try(store.Pull(ctx, key, kvstore.Of(weight, rows, columns)))
		if rank == 0 {
			fmt.Printf("after round %d: %.1f\n", round, weight[0])
		}
	}
	try(store.Barrier(ctx))
}

func main() {
	log.SetFlags(0)
	storeType := "local"
	if len(os.Args) > 1 {
		storeType = os.Args[1]
	}
	ctx := context.Background()
	store, err := kvstore.Open(storeType, nil)
	try(err)
	role, err := store.Role()
	try(err)
	if role == kvstore.RoleWorker {
		work(ctx, store)
	} else {
		try(store.Serve(ctx)) // until all workers have closed their stores
	}
	try(store.Close())
}
