package main

import (
	"math"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

const (
	pixels  = 64
	hidden  = 64
	classes = 10
)

// splitMix is SplitMix64 (Steele, Lea and Flood, 2014): the same numbers on every machine.
type splitMix uint64

func (s *splitMix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	mixed := uint64(*s)
	mixed = (mixed ^ mixed>>30) * 0xbf58476d1ce4e5b9
	mixed = (mixed ^ mixed>>27) * 0x94d049bb133111eb
	return mixed ^ mixed>>31
}

// uniform gives numbers in [-1, 1) of 24 random bits, so that each is exact in float32.
func (s *splitMix) uniform() float32 { return float32(s.next()>>40)*0x1p-23 - 1 }

// shuffle is the one of Fisher and Yates.
func (s *splitMix) shuffle(order []int) {
	for i := len(order) - 1; i > 0; i-- {
		j := int(s.next() % uint64(i+1))
		order[i], order[j] = order[j], order[i]
	}
}

// network holds the parameters, or their gradients; matrices are row-major, [in][out].
type network struct {
	weight1 [pixels * hidden]float32
	bias1   [hidden]float32
	weight2 [hidden * classes]float32
	bias2   [classes]float32
}

// names are those of the tensors, in their order.
var names = []string{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}

func (n *network) tensors() []kvstore.Tensor {
	return []kvstore.Tensor{
		kvstore.Of(n.weight1[:], pixels, hidden), kvstore.Of(n.bias1[:]),
		kvstore.Of(n.weight2[:], hidden, classes), kvstore.Of(n.bias2[:]),
	}
}

func (n *network) initialise(random *splitMix) {
	fill := func(weights []float32, units float64) {
		scale := float32(math.Sqrt(6 / units))
		for i := range weights {
			weights[i] = random.uniform() * scale
		}
	}
	fill(n.weight1[:], pixels+hidden)
	fill(n.weight2[:], hidden+classes)
}

// forward computes the rectified hidden units and the classes' scores before the softmax.
func (n *network) forward(image *[pixels]float32) (units [hidden]float32, scores [classes]float32) {
	units = n.bias1
	for i, pixel := range image {
		if pixel == 0 {
			continue
		}
		for j, weight := range n.weight1[i*hidden : (i+1)*hidden] {
			units[j] += pixel * weight
		}
	}
	scores = n.bias2
	for j := range units {
		units[j] = max(units[j], 0)
		for c, weight := range n.weight2[j*classes : (j+1)*classes] {
			scores[c] += units[j] * weight
		}
	}
	return units, scores
}

// addGradient adds a digit's share of a batch's gradient, and returns its loss.
func (n *network) addGradient(d *digit, gradient *network) float64 {
	units, scores := n.forward(&d.image)
	loss := softmaxGradient(&scores, d.label)
	for c := range scores {
		scores[c] /= batch
		gradient.bias2[c] += scores[c]
	}
	var byUnits [hidden]float32 // the loss by the hidden units, before they are rectified
	for j, unit := range units {
		if unit == 0 {
			continue
		}
		row := gradient.weight2[j*classes : (j+1)*classes]
		for c, weight := range n.weight2[j*classes : (j+1)*classes] {
			byUnits[j] += weight * scores[c]
			row[c] += unit * scores[c]
		}
		gradient.bias1[j] += byUnits[j]
	}
	for i, pixel := range d.image {
		if pixel == 0 {
			continue
		}
		row := gradient.weight1[i*hidden : (i+1)*hidden]
		for j, by := range byUnits {
			row[j] += pixel * by
		}
	}
	return loss
}

// softmaxGradient turns scores into the gradient of the cross entropy by them, and returns the
// cross entropy.
func softmaxGradient(scores *[classes]float32, label int) float64 {
	highest := scores[best(scores)] // taken off, so that the exponentials cannot overflow
	right := float64(scores[label] - highest)
	sum := float32(0)
	for c := range scores {
		scores[c] = float32(math.Exp(float64(scores[c] - highest)))
		sum += scores[c]
	}
	for c := range scores {
		scores[c] /= sum
	}
	scores[label]--
	return math.Log(float64(sum)) - right
}

func best(scores *[classes]float32) int {
	best := 0
	for c, score := range scores {
		if score > scores[best] {
			best = c
		}
	}
	return best
}

// accuracy is the share of digits whose class has the highest score.
func (n *network) accuracy(digits []digit) float64 {
	right := 0
	for i := range digits {
		_, scores := n.forward(&digits[i].image)
		if best(&scores) == digits[i].label {
			right++
		}
	}
	return float64(right) / float64(len(digits))
}
