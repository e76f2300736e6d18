// Trains a small network on handwritten digits with Gorgonia:
//
//	kvstore run -n 2 -- train_digits digits.csv
//
// Each process computes gradients of its part of a batch, and all step by their mean.
package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"strconv"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

const (
	pixels, hidden, classes = 64, 64, 10
	batch, heldOut, epochs  = 64, 360, 20
	learningRate            = 0.3
)

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	try(err)
	return value
}

// load reads 64 pixel values from 0 to 16 and the label on each line.
func load(path string) (samples [][]float32, labels []int) {
	file := must(os.Open(path))
	defer file.Close()
	for _, row := range must(csv.NewReader(file).ReadAll()) {
		sample := make([]float32, pixels)
		for i := range sample {
			sample[i] = float32(must(strconv.ParseFloat(row[i], 32))) / 16
		}
		samples = append(samples, sample)
		labels = append(labels, int(must(strconv.ParseFloat(row[pixels], 32))))
	}
	return samples, labels
}

// network is a graph for so many samples at a time, with weights that are shared by all graphs.
type network struct {
	inputs, targets, scores *gorgonia.Node
	learned                 gorgonia.Nodes
	machine                 gorgonia.VM
}

func newWeights(random *rand.Rand) []*tensor.Dense {
	uniform := func(rows, columns int) *tensor.Dense {
		values, limit := make([]float32, rows*columns), math.Sqrt(6/float64(rows+columns))
		for i := range values {
			values[i] = float32(limit * (2*random.Float64() - 1))
		}
		return tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(values))
	}
	zeros := func(columns int) *tensor.Dense {
		return tensor.New(tensor.WithShape(1, columns), tensor.WithBacking(make([]float32, columns)))
	}
	return []*tensor.Dense{uniform(pixels, hidden), zeros(hidden), uniform(hidden, classes), zeros(classes)}
}

func newNetwork(samples int, weights []*tensor.Dense) *network {
	graph := gorgonia.NewGraph()
	matrix := func(name string, columns int) *gorgonia.Node {
		shape := gorgonia.WithShape(samples, columns)
		return gorgonia.NewMatrix(graph, tensor.Float32, shape, gorgonia.WithName(name))
	}
	n := &network{inputs: matrix("inputs", pixels), targets: matrix("targets", classes)}
	for i, each := range weights {
		shape, name := gorgonia.WithShape(each.Shape()...), fmt.Sprintf("weights%d", i)
		node := gorgonia.NewMatrix(graph, tensor.Float32, shape, gorgonia.WithName(name), gorgonia.WithValue(each))
		n.learned = append(n.learned, node)
	}
	layer := func(inputs, weights, bias *gorgonia.Node) *gorgonia.Node {
		product := gorgonia.Must(gorgonia.Mul(inputs, weights))
		return gorgonia.Must(gorgonia.BroadcastAdd(product, bias, nil, []byte{0}))
	}
	units := gorgonia.Must(gorgonia.Rectify(layer(n.inputs, n.learned[0], n.learned[1])))
	n.scores = gorgonia.Must(gorgonia.SoftMax(layer(units, n.learned[2], n.learned[3])))
	likelihood := gorgonia.Must(gorgonia.HadamardProd(gorgonia.Must(gorgonia.Log(n.scores)), n.targets))
	sum := gorgonia.Must(gorgonia.Sum(likelihood))
	loss := gorgonia.Must(gorgonia.Div(sum, gorgonia.NewConstant(float32(-samples))))
	must(gorgonia.Grad(loss, n.learned...))
	n.machine = gorgonia.NewTapeMachine(graph, gorgonia.BindDualValues(n.learned...))
	return n
}

// run computes scores and gradients of some samples.
func (n *network) run(samples [][]float32, labels, which []int) {
	inputs := make([]float32, 0, len(which)*pixels)
	targets := make([]float32, len(which)*classes)
	for i, sample := range which {
		inputs = append(inputs, samples[sample]...)
		targets[i*classes+labels[sample]] = 1
	}
	of := func(values []float32, columns int) *tensor.Dense {
		return tensor.New(tensor.WithShape(len(which), columns), tensor.WithBacking(values))
	}
	n.machine.Reset()
	try(gorgonia.Let(n.inputs, of(inputs, pixels)))
	try(gorgonia.Let(n.targets, of(targets, classes)))
	try(n.machine.RunAll())
}

// step changes the weights by the mean of the gradients of all processes.
func (n *network) step(ctx context.Context, store *kvstore.Store, weights []*tensor.Dense) {
	for i, node := range n.learned {
		gradient := must(node.Grad()).Data().([]float32)
		own := kvstore.Of(gradient)
		try(store.Exchange(ctx, kvstore.AllReduce(kvstore.Mean, []kvstore.Tensor{own}, own)))
		values := weights[i].Data().([]float32)
		for j, each := range gradient {
			values[j] -= learningRate * each
			gradient[j] = 0 // Gorgonia adds to it.
		}
	}
}

func accuracy(samples [][]float32, labels []int, weights []*tensor.Dense) float64 {
	first, right := len(samples)-heldOut, 0
	which := make([]int, heldOut)
	for i := range which {
		which[i] = first + i
	}
	n := newNetwork(heldOut, weights)
	defer n.machine.Close()
	n.run(samples, labels, which)
	scores := n.scores.Value().Data().([]float32)
	for i, sample := range which {
		best, row := 0, scores[i*classes:][:classes]
		for class, score := range row {
			if score > row[best] {
				best = class
			}
		}
		if best == labels[sample] {
			right++
		}
	}
	return float64(right) / heldOut
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: train_digits digits.csv")
	}
	storeType := "local"
	if os.Getenv("KV_ROOT") != "" {
		storeType = "dist_sync"
	}
	ctx, store := context.Background(), must(kvstore.Open(storeType, nil))
	rank, workers := must(store.Rank()), must(store.NumWorkers())
	samples, labels := load(os.Args[1])
	random := rand.New(rand.NewSource(1)) // All processes begin with the same weights.
	weights := newWeights(random)
	n := newNetwork(batch/workers, weights)
	for epoch := 0; epoch < epochs; epoch++ {
		order := random.Perm(len(samples) - heldOut)
		for ; len(order) >= batch; order = order[batch:] {
			var mine []int
			for i := rank; i < batch; i += workers {
				mine = append(mine, order[i])
			}
			n.run(samples, labels, mine)
			n.step(ctx, store, weights)
		}
	}
	try(n.machine.Close())
	var total float64
	for _, each := range weights {
		for _, value := range each.Data().([]float32) {
			total += math.Abs(float64(value))
		}
	}
	fmt.Printf("accuracy %.4f, weights %.3f\n", accuracy(samples, labels, weights), total)
	try(store.Shutdown(ctx)) // The others may still exchange.
}
