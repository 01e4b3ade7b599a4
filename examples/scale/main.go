// Command scale asks what a data-parallel step of a thousand NPUs loses to
// communication. It simulates the AllReduce of one bucket of each size, composes the step
// of them, and looks where 5 % are lost: over tokens, NPUs, and flat against two-level.
//
// The figures of the machine are stated, not measured: 8 NPUs to a server, HCCS
// 56 GB/s and 2 us inside, RoCE 25 GB/s and 5 us between, a network without contention.
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// The model, as a step of training sees it.
const (
	parameters = 1_300_000_000
	gradients  = 2 * parameters // bytes: bfloat16
	bucketSize = 25 << 20
	firstSize  = 1 << 20 // the first bucket, as a pipeline.Reducer has it
	// FLOP of a parameter and token: 2 forward and 4 backward, in which gradients come.
	forwardFLOP, backwardFLOP = 2, 4
	rate                      = 320e12 * 0.40 // FLOP per second of an NPU, and what of it is reached
)

// The cluster.
const (
	perServer = 8
	flat      = "ring"
	twoLevel  = "hier:ring+nhr"
)

// cluster is servers of 8 NPUs each.
func cluster(npus int) (*plan.Topology, error) {
	sizes := make([]int, max(npus/perServer, 1))
	for i := range sizes {
		sizes[i] = min(perServer, npus)
	}
	t, err := plan.Servers(sizes...)
	if err != nil {
		return nil, err
	}
	t.Levels[0] = kolo.Edge{Link: kolo.LinkHCCS, Latency: 2 * time.Microsecond, Bandwidth: 56e9}
	t.Levels[1] = kolo.Edge{Link: kolo.LinkRoCE, Latency: 5 * time.Microsecond, Bandwidth: 25e9}
	t.Reduce = 400e9 // HBM of 1200 GB/s, which a fold reads twice and writes once
	return t, nil
}

// algorithmFor is what a plan of two levels is for so many NPUs: a ring inside one server.
func algorithmFor(npus int, name string) string {
	if npus <= perServer {
		return flat
	}
	return name
}

// bucketTime is the time of an AllReduce of size bytes, simulated.
func bucketTime(npus int, algorithm string, size int64) (time.Duration, error) {
	t, err := cluster(npus)
	if err != nil {
		return 0, err
	}
	c := &kolo.Call{Collective: kolo.AllReduce, DType: kolo.BFloat16, Count: size / 2, InPlace: true}
	programs, err := plan.Programs(plan.KeyOf(c, algorithmFor(npus, algorithm)), t)
	if err != nil {
		return 0, err
	}
	line, err := plan.Simulate(programs, t, c)
	return line.Total, err
}

// formula is the same in closed form. Of two levels it is the cost table's: latencies,
// bytes and folds, added. Of a flat ring it is the longer of two: what a block takes
// that goes 2(P-1) hops, one of eight between servers; and what a server's way out
// takes for all blocks.
func formula(npus int, algorithm string, size int64) (time.Duration, error) {
	t, err := cluster(npus)
	if err != nil {
		return 0, err
	}
	if algorithmFor(npus, algorithm) != flat {
		c, err := plan.ChooseSize(kolo.AllReduce, size, t, plan.Policy{Algorithm: algorithm})
		return c.Cost, err
	}
	p, block := float64(npus), float64(size)/float64(npus)
	hop := func(e kolo.Edge) float64 { return e.Latency.Seconds() + block/e.Bandwidth }
	inside, between := hop(t.Levels[0]), hop(t.Levels[1])
	out := t.Levels[1].Bandwidth
	if npus <= perServer {
		between, out = inside, t.Levels[0].Bandwidth
	}
	chain := 2*(p-1)*(7*inside+between)/8 + (p-1)*block/t.Reduce
	return time.Duration(max(chain, 2*(p-1)*block/out) * float64(time.Second)), nil
}

// buckets are the sizes of a step's buckets, in the order in which they come.
func buckets() []int64 {
	rest := int64(gradients - firstSize)
	n := (rest + bucketSize - 1) / bucketSize
	list := []int64{firstSize}
	for i := range n {
		list = append(list, (rest*(i+1)/n-rest*i/n)&^1)
	}
	return list
}

// step is one step of training.
type step struct{ compute, comm, exposed time.Duration }

// lost is the exposed part, of the time to compute.
func (s step) lost() float64 { return float64(s.exposed) / float64(s.compute) }

// compose puts buckets on the wire one after the other, each when its gradients are
// computed: first after the forward pass, the last with the backward pass.
func compose(tokens int, first, other time.Duration) step {
	forward, backward := passes(tokens)
	var s step
	s.compute = forward + backward
	sizes := buckets()
	done, at := int64(0), time.Duration(0)
	for i, size := range sizes {
		done += size
		ready := forward + time.Duration(float64(backward)*float64(done)/float64(gradients))
		took := other
		if i == 0 {
			took = first
		}
		at = max(at, ready) + took
		s.comm += took
	}
	s.exposed = max(at-s.compute, 0)
	return s
}

// passes are how long an NPU computes for some tokens.
func passes(tokens int) (forward, backward time.Duration) {
	one := float64(parameters) * float64(tokens) / rate * float64(time.Second)
	return time.Duration(forwardFLOP * one), time.Duration(backwardFLOP * one)
}

// exposedFormula is compose in closed form, for n equal buckets of time t that come
// every b: the last one, if each is gone before the next comes; else what all of them
// take, less the time from the first's coming to the last's.
func exposedFormula(n int, t, b time.Duration) time.Duration {
	return max(t, time.Duration(n)*t-time.Duration(n-1)*b)
}

// tokensFor is the least number of tokens with which no more than 5 % are lost.
func tokensFor(first, other time.Duration) int {
	return sort.Search(1<<20, func(tokens int) bool { return tokens > 0 && compose(tokens, first, other).lost() <= 0.05 })
}

func main() {
	if err := run(os.Stdout, []int{8, 32, 128, 512, 1000, 2048, 4096}); err != nil {
		slog.Error("scale", "error", err)
		os.Exit(1)
	}
}

var tokenCounts = [...]int{1024, 2048, 3072, 4096, 8192}

// simulatedRing is up to where a flat ring is simulated, which has 2(P-1) steps on each
// of P ranks. Beyond, the formula stands for it.
const simulatedRing = 1000

func run(out io.Writer, counts []int) error {
	if err := thousand(out); err != nil {
		return err
	}
	for _, algorithm := range []string{twoLevel, flat} {
		fmt.Fprintf(out, "\n%s: exposed communication, in percent of the computation\n%8s %10s %8s", algorithm, "NPUs", "a bucket", "formula")
		for _, tokens := range tokenCounts {
			fmt.Fprintf(out, " %6d tok", tokens)
		}
		fmt.Fprintf(out, " %16s\n", "5 % are lost at")
		for _, npus := range counts {
			if err := row(out, npus, algorithm); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintln(out, "* not simulated")
	return err
}

// row is the steps of so many NPUs, by the number of tokens.
func row(out io.Writer, npus int, algorithm string) error {
	_, closed, err := firstAndOther(formula, npus, algorithm)
	if err != nil {
		return err
	}
	times, mark := bucketTime, ""
	if algorithm == flat && npus > simulatedRing {
		times, mark = formula, "*"
	}
	first, other, err := firstAndOther(times, npus, algorithm)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%7d%1s %10v %+7.1f%%", npus, mark, other.Round(time.Microsecond), 100*(float64(closed)/float64(other)-1))
	for _, tokens := range tokenCounts {
		fmt.Fprintf(out, " %9.1f%%", 100*compose(tokens, first, other).lost())
	}
	_, err = fmt.Fprintf(out, " %12d tok\n", tokensFor(first, other))
	return err
}

// firstAndOther are the times of the first bucket and of any other, found side by side.
func firstAndOther(times func(int, string, int64) (time.Duration, error), npus int, algorithm string) (first, other time.Duration, err error) {
	sizes := buckets()
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { first, failed = times(npus, algorithm, sizes[0]) }) // ends by itself, and is waited for
	other, err = times(npus, algorithm, sizes[1])
	wg.Wait()
	return first, other, errors.Join(failed, err)
}

// thousand is the step that the mission names: 125 servers, 4,096 tokens.
func thousand(out io.Writer) error {
	const npus, tokens = 1000, 4096
	first, other, err := firstAndOther(bucketTime, npus, twoLevel)
	if err != nil {
		return err
	}
	closed, err := formula(npus, twoLevel, buckets()[1])
	if err != nil {
		return err
	}
	s, n := compose(tokens, first, other), len(buckets())
	_, backward := passes(tokens)
	fmt.Fprintf(out, "%d NPUs, %d tokens each, %s, %d buckets\n", npus, tokens, twoLevel, n)
	fmt.Fprintf(out, "a bucket of %.1f MiB: %v simulated, %v by the formula (%+.1f %%)\n",
		float64(buckets()[1])/(1<<20), other, closed, 100*(float64(closed)/float64(other)-1))
	fmt.Fprintf(out, "computation %v, communication %v, exposed %v: %.2f %% of the computation (%v by the formula)\n",
		s.compute.Round(time.Microsecond), s.comm.Round(time.Microsecond), s.exposed, 100*s.lost(),
		exposedFormula(n-1, other, backward/time.Duration(n-1)))
	wire := time.Duration(float64(buckets()[1]) / perServer * 2 * 124 / 125 / 25e9 * float64(time.Second))
	inside := time.Duration(float64(buckets()[1]) * 2 * 7 / 8 / 56e9 * float64(time.Second))
	_, err = fmt.Fprintf(out, "of a bucket, %v are HCCS at its bandwidth and %v RoCE; the rest are latencies and folding\n", inside, wire)
	return err
}
