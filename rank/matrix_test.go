package rank_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// The matrix: every collective by every algorithm that serves it, over places, element
// types, operations, counts, roots, layouts of memory and ways to call, against the
// naive answer. A case is a value for each factor; -1 where the factor has no meaning,
// as a root for AllReduce.
type matrixCase [numFactors]int

const (
	atPlace = iota
	byAlgorithm
	ofCollective
	ofDType
	withOp
	ofCount
	atRoot
	inLayout
	ofVector
	inStyle
	numFactors
)

// place is where the ranks of a World are.
type place struct {
	name string
	topo *plan.Topology
	long bool // left to the long matrix
}

// places are 1 to 9, 16 and 33 ranks, in one server and in several.
func places() []place {
	var out []place
	add := func(name string, t *plan.Topology, err error) {
		if err != nil {
			panic(err)
		}
		t.Medium = true
		out = append(out, place{name: fmt.Sprintf("n=%d %s", t.Ranks(), name), topo: t})
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33} {
		add("in one server", plan.OneProcess(n), nil)
	}
	for _, sizes := range [][]int{{1, 1}, {2, 2}, {3, 3}, {2, 2, 2}, {3, 4}, {4, 4}, {3, 3, 3}, {4, 4, 4, 4}, {11, 11, 11}} {
		t, err := plan.Servers(sizes...)
		add(fmt.Sprint("in servers of ", sizes), t, err)
	}
	t, err := plan.Servers(slices.Repeat([]int{3}, 11)...)
	add("in 11 servers", t, err)
	out[len(out)-1].long = true
	t, err = plan.Racks([]int{2, 2}, []int{2, 2})
	add("in two racks", t, err)
	t, err = plan.Places([]int{0, 1, 2, 0, 1, 2, 0, 1, 2}, nil)
	add("in three servers in turn", t, err)
	return out
}

var (
	matrixPlaces      = places()
	matrixAlgorithms  = plan.Algorithms()
	matrixCollectives = kolo.Collectives()
	matrixDTypes      = kolo.DTypes() // those that are only moved last
	matrixOps         = []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(2)}
	matrixCounts      = []string{"none", "one", "seven", "fewer than ranks", "more than ranks", "thousands", "blocks of the engine"}
	matrixRoots       = []string{"first", "middle", "last"}
	matrixLayouts     = []string{"out of place", "in place", "in place on odd ranks"}
	matrixVectors     = []string{"packed", "displaced"}
	matrixStyles      = []string{"blocking", "async"}
)

// blocks is the index of the count that makes the engine cut its jobs.
const blocks = 6

// String is the case in words.
func (c matrixCase) String() string {
	var out []string
	add := func(factor int, name func(i int) string) {
		if i := c[factor]; i >= 0 {
			out = append(out, name(i))
		}
	}
	from := func(list []string) func(int) string { return func(i int) string { return list[i] } }
	add(ofCollective, func(i int) string { return matrixCollectives[i].String() })
	add(byAlgorithm, func(i int) string { return "by " + matrixAlgorithms[i].Name })
	add(atPlace, func(i int) string { return matrixPlaces[i].name })
	add(ofDType, func(i int) string { return matrixDTypes[i].String() })
	add(withOp, func(i int) string { return matrixOps[i].String() })
	add(ofCount, func(i int) string { return "count " + matrixCounts[i] })
	add(atRoot, func(i int) string { return "root " + matrixRoots[i] })
	add(inLayout, from(matrixLayouts))
	add(ofVector, from(matrixVectors))
	add(inStyle, from(matrixStyles))
	return strings.Join(out, ", ")
}

// sizes is the number of values of each factor that means something to a
// collective at a place, 0 for the others.
func (c matrixCase) sizes() (n [numFactors]int) {
	k := matrixCollectives[c[ofCollective]]
	n[inStyle] = len(matrixStyles)
	if k == kolo.Barrier {
		return n
	}
	n[ofDType], n[ofCount] = len(matrixDTypes), len(matrixCounts)
	if matrixPlaces[c[atPlace]].topo.Ranks() > 9 {
		n[ofCount] = blocks // the large vectors are for few ranks
	}
	if k.Reduces() {
		n[ofDType], n[withOp] = len(kolo.ReducibleDTypes()), len(matrixOps)
	}
	if k.Rooted() {
		n[atRoot] = len(matrixRoots)
	}
	if k != kolo.Broadcast && k != kolo.AllToAllV && k != kolo.AllToAllVC {
		n[inLayout] = len(matrixLayouts)
	}
	if k == kolo.AllToAll && matrixAlgorithms[c[byAlgorithm]].Name == "fabric" {
		n[inLayout] = 1 // the medium moves blocks in any order, so none may trade places
	}
	if k.Base() != k && k != kolo.AllToAllVC {
		n[ofVector] = len(matrixVectors)
	}
	return n
}

// triples are the cases of every place, algorithm and collective that go
// together, with the other factors open. In several equal servers flat algorithms do
// what they do in one, and are left out.
func triples() []matrixCase {
	var out []matrixCase
	for p, at := range matrixPlaces {
		several := len(at.topo.Groups()) > 1 && at.topo.EqualServers()
		for a, by := range matrixAlgorithms {
			for k, of := range matrixCollectives {
				if several && by.Serves(of, plan.OneServer(at.topo.Ranks())) == nil {
					continue
				}
				if by.Serves(of, at.topo) == nil {
					out = append(out, matrixCase{atPlace: p, byAlgorithm: a, ofCollective: k})
				}
			}
		}
	}
	return out
}

// random gives the open factors values.
func (c matrixCase) random(rng *rand.Rand) matrixCase {
	for f, n := range c.sizes() {
		if f > ofCollective {
			c[f] = -1
			if n > 0 {
				c[f] = rng.IntN(n)
			}
		}
	}
	return c
}

// pairs are the pairs of values that are covered, or to be covered.
type pairs map[[4]int]bool

func (c matrixCase) pairs(f func(k [4]int)) {
	for a := range numFactors {
		for b := range a {
			if c[a] >= 0 && c[b] >= 0 {
				f([4]int{a, c[a], b, c[b]})
			}
		}
	}
}

// feasible are all pairs that some case has.
func feasible(list []matrixCase) pairs {
	out := pairs{}
	for _, c := range list {
		n := c.sizes()
		for a := range numFactors {
			for b := range a {
				for v := range max(n[a], 1) {
					for w := range max(n[b], 1) {
						k := [4]int{a, v, b, w}
						if a <= ofCollective {
							k[1] = c[a]
						}
						if b <= ofCollective {
							k[3] = c[b]
						}
						if (n[a] > 0 || a <= ofCollective) && (n[b] > 0 || b <= ofCollective) {
							out[k] = true
						}
					}
				}
			}
		}
	}
	return out
}

// pairwise is a case for every triple, and as many more as it takes for every
// pair of values to occur in one.
func pairwise(rng *rand.Rand) []matrixCase {
	list := slices.DeleteFunc(triples(), func(c matrixCase) bool { return matrixPlaces[c[atPlace]].long })
	open := feasible(list)
	gain := func(c matrixCase) (n int) {
		c.pairs(func(k [4]int) {
			if open[k] {
				n++
			}
		})
		return n
	}
	best := func(from func() matrixCase, tries int) matrixCase {
		c := from()
		most := gain(c)
		for range tries {
			d := from()
			if g := gain(d); g > most || g == most && c[ofCount] == blocks { // the large ones only where they are needed
				c, most = d, g
			}
		}
		return c
	}
	var out []matrixCase
	take := func(c matrixCase) {
		c.pairs(func(k [4]int) { delete(open, k) })
		out = append(out, c)
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, t := range list {
		take(best(func() matrixCase { return t.random(rng) }, 12))
	}
	for tries := 0; len(open) > 0; tries++ {
		if tries > 5000 {
			panic(fmt.Sprintf("no case found for %d pairs", len(open)))
		}
		if c := best(func() matrixCase { return list[rng.IntN(len(list))].random(rng) }, 100); gain(c) > 0 {
			take(c)
		}
	}
	return out
}

// matrixWorld is the ranks of one place, with a group for each algorithm.
type matrixWorld struct {
	worlds []*rank.World
	groups map[string][]*rank.Group
	all    []kolo.Rank
	made   int
}

func openMatrix(t *testing.T, at place, c ...rank.Config) *matrixWorld {
	n := at.topo.Ranks()
	cfg := append(c, rank.Config{})[0]
	cfg.Topology, cfg.Timeout = at.topo, 20*time.Second
	worlds, err := rank.Open(n, cfg)
	require.NoError(t, err)
	m := &matrixWorld{worlds: worlds, groups: map[string][]*rank.Group{}}
	for r := range n {
		m.all = append(m.all, kolo.Rank(r))
	}
	t.Cleanup(func() {
		for _, w := range worlds {
			require.NoError(t, w.Close(context.Background()))
		}
	})
	return m
}

// group is the group for an algorithm, by rank.
func (m *matrixWorld) group(t *testing.T, algorithm string) []*rank.Group {
	if g := m.groups[algorithm]; g != nil {
		return g
	}
	m.made++
	c := rank.GroupConfig{Name: fmt.Sprintf("%s %d", algorithm, m.made), Ranks: m.all, Algorithm: algorithm}
	var list []*rank.Group
	for _, w := range m.worlds {
		g, err := w.NewGroup(c)
		require.NoError(t, err)
		list = append(list, g)
	}
	m.groups[algorithm] = list
	return list
}

// call makes the calls of all ranks and returns their errors.
func (m *matrixWorld) call(t *testing.T, algorithm string, calls []rank.Request, async bool) []error {
	groups := m.group(t, algorithm)
	errs := make([]error, len(calls))
	if async {
		works := make([]rank.Work, len(calls))
		for r, c := range calls {
			works[r] = rank.DoAsync(groups[r], c)
		}
		for r, w := range works {
			errs[r] = w.Wait(t.Context())
		}
	} else {
		var wg sync.WaitGroup
		for r, c := range calls {
			wg.Go(func() { errs[r] = rank.Do(t.Context(), groups[r], c) }) // ends with the call
		}
		wg.Wait()
	}
	for _, err := range errs {
		if err != nil {
			delete(m.groups, algorithm) // it has failed as a whole
		}
	}
	return errs
}

// run makes the calls of a case and compares all memory with what it must be.
func (m *matrixWorld) run(t *testing.T, c matrixCase) error {
	b := newCalls(c)
	want := b.after()
	for r, err := range m.call(t, matrixAlgorithms[c[byAlgorithm]].Name, b.calls, c[inStyle] == 1) {
		if err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for r := range want {
		if bytes.Equal(want[r], b.memory[r]) {
			continue
		}
		i := 0
		for want[r][i] == b.memory[r][i] {
			i++
		}
		lo, hi := b.outAt[r], b.outAt[r]+len(b.calls[r].Out.Memory.Host)
		return fmt.Errorf("rank %d: byte %d of its memory is %#x, not %#x; the output is bytes %d to %d of %d",
			r, i, b.memory[r][i], want[r][i], lo, hi, len(want[r]))
	}
	return nil
}

// matrixCalls are the calls of all ranks for a case, in memory with guards around
// what they may touch.
type matrixCalls struct {
	c      matrixCase
	n      int // ranks
	k      kolo.Collective
	dtype  kolo.DType
	count  int64
	root   kolo.Rank
	calls  []rank.Request
	memory [][]byte
	outAt  []int // where Out begins in memory
}

const guard = 64 // bytes before, between and behind the buffers

func newCalls(c matrixCase) *matrixCalls {
	b := &matrixCalls{c: c, n: matrixPlaces[c[atPlace]].topo.Ranks(), k: matrixCollectives[c[ofCollective]]}
	b.calls, b.memory, b.outAt = make([]rank.Request, b.n), make([][]byte, b.n), make([]int, b.n)
	if b.k != kolo.Barrier {
		b.dtype = matrixDTypes[c[ofDType]]
		b.count = b.elements()
	}
	if b.k.Rooted() {
		b.root = kolo.Rank([]int{0, b.n / 2, b.n - 1}[c[atRoot]])
	}
	for r := range b.n {
		b.make(r)
	}
	return b
}

// elements is the count of the case: of the vector, or of a part of it.
func (b *matrixCalls) elements() int64 {
	n := int64(b.n)
	switch b.c[ofCount] {
	case blocks:
		k := int64(300<<10)/int64(b.dtype.Size()) + 13
		if base := b.k.Base(); base != kolo.AllReduce && base != kolo.Reduce && base != kolo.Broadcast {
			k = k/n + 1
		}
		return k
	case 5:
		switch base := b.k.Base(); {
		case base == kolo.AllReduce || base == kolo.Reduce || base == kolo.Broadcast:
			return 5003 // from 128 a rank on, 4-byte elements are cut at cache lines
		case n > 9:
			return 301
		}
		return 3001
	}
	return []int64{0, 1, 7, max(n-1, 1), n + 1}[b.c[ofCount]]
}

// counts are uneven, some of them 0. which tells the lists of a matrix apart.
func (b *matrixCalls) counts(which int) []int64 {
	out := make([]int64, b.n)
	for i := range out {
		out[i] = (b.count*int64((i*3+which*5+1)%4) + 1) / 2
		if b.count == 0 {
			out[i] = 0
		}
	}
	return out
}

// column is what each rank sends to rank to, where rank i's list is counts(i).
func (b *matrixCalls) column(to int) []int64 {
	out := make([]int64, b.n)
	for i := range out {
		out[i] = b.counts(i)[to]
	}
	return out
}

// vector puts counts one behind the other, or from the end to the front with gaps.
func (b *matrixCalls) vector(counts []int64) (v rank.Vector, size int64) {
	v.Counts = counts
	if b.c[ofVector] <= 0 {
		for _, k := range counts {
			size += k
		}
		return v, size
	}
	v.Displs = make([]int64, len(counts))
	for i := len(counts) - 1; i >= 0; i-- {
		size += 3
		v.Displs[i] = size
		size += counts[i]
	}
	return v, size + 3
}

// make lays out the memory of rank r and makes its call.
func (b *matrixCalls) make(r int) {
	q := &b.calls[r]
	*q = rank.Request{Collective: b.k, Root: b.root}
	if b.k.Reduces() {
		q.Op = matrixOps[b.c[withOp]]
	}
	n, isRoot := int64(b.n), kolo.Rank(r) == b.root
	in, out := b.count, b.count // elements; -1: no such buffer
	mine := int64(0)            // where, in place, the smaller buffer lies in the larger
	switch b.k {
	case kolo.Barrier:
		in, out = -1, -1
	case kolo.Broadcast:
		in = -1
	case kolo.AllGather, kolo.Gather:
		out, mine = n*b.count, int64(r)*b.count
	case kolo.ReduceScatter, kolo.Scatter:
		in, mine = n*b.count, int64(r)*b.count
	case kolo.AllToAll:
		in, out = n*b.count, n*b.count
	case kolo.AllGatherV, kolo.GatherV:
		q.Recv, out = b.vector(b.counts(0))
		in, mine = q.Recv.Counts[r], offset(q.Recv, r)
	case kolo.ReduceScatterV, kolo.ScatterV:
		q.Send, in = b.vector(b.counts(0))
		out, mine = q.Send.Counts[r], offset(q.Send, r)
	case kolo.AllToAllV:
		q.Send, in = b.vector(b.counts(r))
		q.Recv, out = b.vector(b.column(r))
	case kolo.AllToAllVC:
		for i := range b.n {
			q.Send.Counts = append(q.Send.Counts, b.counts(i)...)
		}
		in, out = sum(b.counts(r)), sum(b.column(r))
	}
	switch b.k {
	case kolo.Reduce, kolo.Gather, kolo.GatherV:
		if !isRoot {
			out = -1
		}
	case kolo.Scatter, kolo.ScatterV:
		if !isRoot {
			in = -1
		}
	}
	b.place(r, in, out, mine)
}

// place gives rank r buffers of so many elements, in place if the case says so.
func (b *matrixCalls) place(r int, in, out, mine int64) {
	size := int64(b.dtype.Size())
	inPlace := in >= 0 && out >= 0 && (b.c[inLayout] == 1 || b.c[inLayout] == 2 && r%2 == 1)
	whole := max(in, 0) + max(out, 0)
	if inPlace {
		whole = max(in, out)
	}
	mem := rank.Of(make([]uint64, (3*guard+whole*size)/8+1)).Memory.Host
	ranktest.Noise(mem, kolo.Rank(1000+r))
	b.memory[r] = mem
	first := int64(guard)
	take := func(n int64) (buf rank.Buffer, at int64) {
		if n < 0 {
			return rank.Buffer{}, 0
		}
		at = first
		first += n*size + guard
		first -= first % 8
		return rank.Buffer{Memory: kolo.HostMemory(mem[at : at+n*size : at+n*size]), DType: b.dtype}, at
	}
	part := func(of rank.Buffer, n int64) rank.Buffer {
		return rank.Buffer{Memory: of.Memory.Slice(mine*size, n*size), DType: b.dtype}
	}
	q := &b.calls[r]
	var at int64
	switch {
	case inPlace && in >= out:
		q.In, at = take(in)
		q.Out = part(q.In, out)
		at += mine * size
	case inPlace:
		q.Out, at = take(out)
		q.In = part(q.Out, in)
	default:
		q.In, _ = take(in)
		q.Out, at = take(out)
	}
	b.outAt[r] = int(at)
	if b.k.Reduces() {
		ranktest.Fill(q.In, q.Op, kolo.Rank(r))
	} else {
		ranktest.Noise(q.In.Memory.Host, kolo.Rank(r))
	}
}

func offset(v rank.Vector, r int) int64 {
	if v.Displs != nil {
		return v.Displs[r]
	}
	return sum(v.Counts[:r])
}

func sum(list []int64) (n int64) {
	for _, k := range list {
		n += k
	}
	return n
}

// after is what the memory of every rank must be after the call.
func (b *matrixCalls) after() [][]byte {
	var out [][]byte
	for r, answer := range ranktest.Answer(b.calls) {
		mem := slices.Clone(b.memory[r])
		copy(mem[b.outAt[r]:], answer)
		out = append(out, mem)
	}
	return out
}

// runMatrix runs cases, place by place, and says how many of each there were.
func runMatrix(t *testing.T, seed uint64, list []matrixCase, cfg ...rank.Config) {
	start := time.Now()
	byPlace := map[int][]matrixCase{}
	for _, c := range list {
		byPlace[c[atPlace]] = append(byPlace[c[atPlace]], c)
	}
	for p, at := range matrixPlaces {
		if len(byPlace[p]) == 0 {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			start := time.Now()
			m := openMatrix(t, at, cfg...)
			failed := 0
			for _, c := range byPlace[p] {
				if err := m.run(t, c); err != nil {
					t.Errorf("seed %d: %v: %v", seed, c, err)
					if failed++; failed == 10 {
						t.Fatal("and so on")
					}
				}
			}
			t.Logf("%d calls in %v", len(byPlace[p]), time.Since(start).Round(time.Millisecond))
		})
	}
	t.Logf("%d calls in %v, seed %d", len(list), time.Since(start).Round(time.Millisecond), seed)
}

func TestEveryCollectiveByEveryAlgorithmGivesTheNaiveAnswer(t *testing.T) {
	seed := rand.Uint64()
	runMatrix(t, seed, pairwise(rand.New(rand.NewPCG(seed, 0))))
}

// A buffer without elements still says of what type it is, also where the other is
// no buffer at all.
func TestEmptyInputKeepsItsElementType(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		v := rank.Vector{Counts: []int64{2, 0}}
		in, out := make([]float32, v.Counts[g.Rank()]), make([]float32, 2)
		gather := rank.Request{Collective: kolo.GatherV, In: rank.Of(in), Recv: v}
		reduce := rank.Request{Collective: kolo.Reduce, In: rank.Of([]float32{}), Op: kolo.Sum}
		scatter := rank.Request{Collective: kolo.ScatterV, Out: rank.Of(in), Send: v}
		if g.Rank() == 0 {
			gather.Out, reduce.Out, scatter.In = rank.Of(out), reduce.In, rank.Of(out)
		}
		for _, r := range []rank.Request{gather, reduce, scatter} {
			require.NoError(t, rank.Do(t.Context(), g, r))
		}
	})
}

func TestAlgorithmThatDoesNotServeIsRefusedAndTheGroupGoesOn(t *testing.T) {
	ranks := ranktest.Open(t, 3, rank.Config{})
	for _, a := range plan.Algorithms() {
		ranks.RunGroup(t, rank.GroupConfig{Name: a.Name, Algorithm: a.Name}, func(t *testing.T, g *rank.Group) {
			topo := plan.OneProcess(3)
			for _, k := range kolo.Collectives() {
				if a.Serves(k, topo) == nil || k != k.Base() {
					continue
				}
				b := make([]int32, 3)
				r := rank.Request{Collective: k, In: rank.Of(b), Out: rank.Of(make([]int32, 3))}
				switch k {
				case kolo.AllGather, kolo.Gather:
					r.In = rank.Of(b[:1])
				case kolo.ReduceScatter, kolo.Scatter:
					r.Out = rank.Of(make([]int32, 1))
				}
				err := rank.Do(t.Context(), g, r)
				require.ErrorIs(t, err, kolo.ErrUnsupported, "%v by %s", k, a.Name)
				require.ErrorContains(t, err, a.Name)
				require.NoError(t, g.Err())
			}
		})
	}
}

func TestMediumRefusesAnAllToAllInPlaceAndTheGroupGoesOn(t *testing.T) {
	ranktest.RunConfig(t, 3, rank.Config{Algorithm: "fabric"}, func(t *testing.T, g *rank.Group) {
		b := ranktest.Data[int32](g.Rank(), 6)
		require.ErrorIs(t, rank.AllToAll(t.Context(), g, b, b), kolo.ErrUnsupported)
		require.Equal(t, ranktest.Data[int32](g.Rank(), 6), b)
		require.NoError(t, rank.AllToAll(t.Context(), g, make([]int32, 6), b))
	})
}
