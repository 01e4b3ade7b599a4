package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
)

// sample is a point and the height of the surface that the network learns.
type sample struct{ x, y, z float32 }

// samples makes data: the same for one seed.
func samples(n int, seed uint64) []sample {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := make([]sample, n)
	for i := range list {
		x, y := 2*rng.Float64()-1, 2*rng.Float64()-1
		list[i] = sample{float32(x), float32(y), float32(math.Sin(3*x) * math.Cos(2*y))}
	}
	return list
}

// layer is a fully connected layer. weights[o*in+i] goes from input i to output o.
type layer struct {
	in, out                      int
	weights, bias                []float32
	weightGradient, biasGradient []float32
	input, output                []float32 // of the batch, sample behind sample
}

// network has layers with tanh between them.
type network []*layer

func newNetwork(seed uint64, sizes ...int) network {
	rng := rand.New(rand.NewPCG(seed, 3))
	var n network
	for i, out := range sizes[1:] {
		in := sizes[i]
		l := &layer{in: in, out: out, weights: make([]float32, in*out), bias: make([]float32, out),
			weightGradient: make([]float32, in*out), biasGradient: make([]float32, out)}
		for k := range l.weights {
			l.weights[k] = float32(rng.NormFloat64() / math.Sqrt(float64(in)))
		}
		n = append(n, l)
	}
	return n
}

// params are two for each layer: parameter 2*l is the weights of layer l, 2*l+1 its bias.
func (n network) params() (list []pipeline.Param) {
	for i, l := range n {
		list = append(list,
			pipeline.Param{Name: fmt.Sprintf("layer %d weights", i), Gradient: rank.Of(l.weightGradient)},
			pipeline.Param{Name: fmt.Sprintf("layer %d bias", i), Gradient: rank.Of(l.biasGradient)})
	}
	return list
}

// forward returns what the network says of each sample.
func (n network) forward(batch []sample) []float32 {
	x := make([]float32, 0, 2*len(batch))
	for _, s := range batch {
		x = append(x, s.x, s.y)
	}
	for i, l := range n {
		l.input, l.output = x, make([]float32, len(batch)*l.out)
		for b := range batch {
			for o := range l.out {
				sum := l.bias[o]
				for k := range l.in {
					sum += l.weights[o*l.in+k] * x[b*l.in+k]
				}
				if i < len(n)-1 {
					sum = float32(math.Tanh(float64(sum)))
				}
				l.output[b*l.out+o] = sum
			}
		}
		x = l.output
	}
	return x
}

// loss is the mean of the squared errors.
func (n network) loss(batch []sample) float64 {
	sum := 0.0
	for i, z := range n.forward(batch) {
		d := float64(z - batch[i].z)
		sum += d * d
	}
	return sum / float64(len(batch))
}

// backward adds the gradients of the loss times scale, and says of each layer when
// its own are there: the last one first.
func (n network) backward(batch []sample, scale float64, ready func(layer int) error) error {
	z := n.forward(batch)
	delta := make([]float32, len(z))
	for i := range z {
		delta[i] = float32(2*scale/float64(len(batch))) * (z[i] - batch[i].z)
	}
	for i := len(n) - 1; i >= 0; i-- {
		l := n[i]
		before := make([]float32, len(batch)*l.in)
		for b := range batch {
			for o := range l.out {
				d := delta[b*l.out+o]
				l.biasGradient[o] += d
				for k := range l.in {
					l.weightGradient[o*l.in+k] += d * l.input[b*l.in+k]
					before[b*l.in+k] += d * l.weights[o*l.in+k]
				}
			}
		}
		for k, a := range l.input { // the slope of tanh, which made the input of all but the first
			before[k] *= 1 - a*a
		}
		delta = before
		if err := ready(i); err != nil {
			return err
		}
	}
	return nil
}

// update takes a step against the gradients and clears them.
func (n network) update(rate float32) {
	for _, l := range n {
		for k, g := range l.weightGradient {
			l.weights[k] -= rate * g
		}
		for k, g := range l.biasGradient {
			l.bias[k] -= rate * g
		}
		clear(l.weightGradient)
		clear(l.biasGradient)
	}
}
