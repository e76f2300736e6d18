// Command consumer uses the Go package from a module of its own.
package main

import (
	"context"
	"fmt"
	"log"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

func main() {
	ctx := context.Background()
	store, err := kvstore.Open("local", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	out := make([]float32, 2)
	if err := store.Init(ctx, 3, kvstore.Of([]float32{2, 2})); err != nil {
		log.Fatal(err)
	}
	if err := store.Pull(ctx, 3, kvstore.Of(out)); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("pulled %g %g\n", out[0], out[1])
}
