// Trains a small network on handwritten digits, data-parallel: four goroutines share the weights
// through one store. Each computes the gradients of its quarter of a batch; then one push gives the
// store the list of the four for each parameter; the store adds them up and descends; all pull.
//
// Usage: train_digits DATA [-epochs N]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

const (
	workers          = 4
	batch            = 128
	quarter          = batch / workers
	learningRate     = 0.5
	requiredAccuracy = 0.96
	timeLimit        = 10 * time.Minute
)

// worker has weights and gradients of its own, as if on a device of its own.
type worker struct {
	weights, gradient network
	loss              float64
}

// training is one job. The workers run between its steps, each on its own data.
type training struct {
	store          *kvstore.Store
	keys           []kvstore.Key
	workers        [workers]worker
	train, heldOut []digit
	order          []int // of the digits in this epoch
	random         splitMix
}

// descend is the updater: plain gradient descent.
func descend(_ kvstore.Key, gradient, stored kvstore.Tensor) error {
	weights := kvstore.Slice[float32](stored)
	for i, g := range kvstore.Slice[float32](gradient) {
		weights[i] -= learningRate * g
	}
	return nil
}

// begin gives the store the first weights and everybody a copy.
func (t *training) begin(ctx context.Context) error {
	for _, name := range names {
		key, err := t.store.Intern(name)
		if err != nil {
			return err
		}
		t.keys = append(t.keys, key)
	}
	var first network
	first.initialise(&t.random)
	if err := t.store.InitList(ctx, t.pairs(&first)); err != nil {
		return err
	}
	for i := range t.train {
		t.order = append(t.order, i)
	}
	if err := t.store.SetUpdater(descend); err != nil {
		return err
	}
	return t.all(func(_ int, w *worker) error { return t.pull(ctx, w) })
}

// pairs puts the keys to the parameters of a network, or their gradients.
func (t *training) pairs(n *network) []kvstore.Pair {
	var pairs []kvstore.Pair
	for i, tensor := range n.tensors() {
		pairs = append(pairs, kvstore.Pair{Key: t.keys[i], Tensor: tensor})
	}
	return pairs
}

func (t *training) pull(ctx context.Context, w *worker) error {
	return t.store.PullList(ctx, t.pairs(&w.weights))
}

// all lets every worker do something on its own goroutine, and waits for them.
func (t *training) all(work func(index int, w *worker) error) error {
	var group sync.WaitGroup
	var failed [workers]error
	for i := range t.workers {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			failed[i] = work(i, &t.workers[i])
		}(i)
	}
	group.Wait()
	return errors.Join(failed[:]...)
}

// epoch trains on every digit once and returns the mean loss. The last digits are left out if they
// do not fill a batch.
func (t *training) epoch(ctx context.Context) (float64, error) {
	t.random.shuffle(t.order)
	batches := len(t.order) / batch
	for i := 0; i < batches; i++ {
		if err := t.step(ctx, t.order[i*batch:(i+1)*batch]); err != nil {
			return 0, err
		}
	}
	loss := 0.0
	for i := range t.workers {
		loss += t.workers[i].loss
		t.workers[i].loss = 0
	}
	return loss / float64(batches*batch), nil
}

func (t *training) step(ctx context.Context, indices []int) error {
	err := t.all(func(self int, w *worker) error {
		w.gradient = network{}
		for _, index := range indices[self*quarter : (self+1)*quarter] {
			w.loss += w.weights.addGradient(&t.train[index], &w.gradient)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// The order of the values of a key fixes every bit of their sum.
	var values []kvstore.Pair
	for i := range t.workers {
		values = append(values, t.pairs(&t.workers[i].gradient)...)
	}
	if err := t.store.PushList(ctx, values); err != nil {
		return err
	}
	return t.all(func(_ int, w *worker) error { return t.pull(ctx, w) })
}

// run trains and returns the accuracy on the digits held out.
func run(path string, epochs int) (accuracy float64, err error) {
	ctx, stop := context.WithTimeout(context.Background(), timeLimit)
	defer stop()
	t := &training{random: 2026}
	t.train, t.heldOut, err = readDigits(path)
	if err != nil {
		return 0, err
	}
	t.store, err = kvstore.Open("local", nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.store.Close()) }()
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	for epoch := 1; epoch <= epochs; epoch++ {
		loss, err := t.epoch(ctx)
		if err != nil {
			return 0, err
		}
		accuracy = t.workers[0].weights.accuracy(t.heldOut)
		fmt.Printf("epoch %2d of %d: loss %.4f, accuracy %.4f\n", epoch, epochs, loss, accuracy)
	}
	return accuracy, nil
}

func main() {
	log.SetFlags(0)
	flags := flag.NewFlagSet("train_digits", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: train_digits DATA [-epochs N]")
		flags.PrintDefaults()
	}
	epochs := flags.Int("epochs", 30, "how often to go through the digits")
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		flags.Usage()
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:]) // ends the program itself
	if flags.NArg() > 0 || *epochs < 1 {
		flags.Usage()
		os.Exit(2)
	}
	accuracy, err := run(os.Args[1], *epochs)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("accuracy on the digits held out: %.4f\n", accuracy)
	if accuracy < requiredAccuracy {
		log.Fatalf("that is below %.2f", requiredAccuracy)
	}
}
