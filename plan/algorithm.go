package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Algorithm is one row of the fixed, ordered table of ways to do a collective.
type Algorithm struct {
	Name   string // what Choose, HCCL_ALGO and a Program call it
	Source string // the paper or specification that it follows

	// serves says why the algorithm cannot do c on t, or nil.
	serves func(c kolo.Collective, t *Topology) error
	// parts is the number of blocks that a chunk (or the whole vector, where the
	// collective has one chunk) of p ranks is cut into.
	parts func(c kolo.Collective, p int) int
	// blocks is what parts is where it depends on where the ranks are; nil: parts says it.
	blocks func(c kolo.Collective, t *Topology) int
	// cuts is the number of pieces that follow each other through a pipeline for a
	// vector of so many bytes; each of parts is cut into that many. nil: one.
	cuts func(size int64) int
	// shared says that the Program of rank 0 serves all ranks by rotation.
	shared func(c kolo.Collective) bool
	// write says what the rank of b does.
	write func(b *builder, t *Topology)
	// terms is the cost of base collective c over n bytes of the whole vector.
	terms func(c kolo.Collective, t *Topology, n float64) Terms
	// phases are what hierarchical algorithms are made from; nil where the algorithm
	// runs on a group as a whole only.
	phases phases
}

// phase is one collective of an algorithm, within a scope.
type phase struct {
	write func(s *scope)
	cost  cost
}

// phases are the phases of an algorithm by base collective.
type phases map[kolo.Collective]phase

// table is every algorithm, in the order in which ties are decided.
var table = slices.Concat(
	[]*Algorithm{ring, ringBidir, meshOneShot, mesh, tree, doubleTree, recursiveDoubling,
		halvingDoubling, nhr, nb, star, pairwise, bruck, pat, swing, multiRing, scatterRing, chain, binomial, torus},
	hierarchical([]*Algorithm{ring, mesh, nhr}, []*Algorithm{ring, nhr, recursiveDoubling, doubleTree, mesh}),
	[]*Algorithm{threeLevel(ring, ring, ring), threeLevel(ring, nhr, ring), threeLevel(ring, nhr, nhr),
		threeLevel(mesh, nhr, ring), threeLevel(mesh, nhr, nhr), ahc, pipeline, hierAllToAll},
	[]*Algorithm{fabric},
)

// Algorithms is the table, in the order in which ties are decided.
func Algorithms() []*Algorithm { return slices.Clone(table) }

// Lookup finds an algorithm by name.
func Lookup(name string) (*Algorithm, error) {
	for _, a := range table {
		if a.Name == name {
			return a, nil
		}
	}
	var names []string
	for _, a := range table {
		names = append(names, a.Name)
	}
	return nil, fmt.Errorf("%w: no algorithm %q; known: %s", kolo.ErrArgument, name, strings.Join(names, ", "))
}

// Serves says why the algorithm cannot do collective c for the ranks of t, or nil.
// The V forms are served as their base collectives are, unless a choreography
// needs equal counts.
func (a *Algorithm) Serves(c kolo.Collective, t *Topology) error {
	if t.Ranks() < 1 {
		return fmt.Errorf("%w: a group of %d ranks", kolo.ErrArgument, t.Ranks())
	}
	if err := a.serves(c, t); err != nil {
		return fmt.Errorf("%w: algorithm %s does not serve %v: %s", kolo.ErrUnsupported, a.Name, c, err)
	}
	return nil
}

// flat fills in what is the same for all algorithms that treat a group as one
// scope of any number of ranks: unless a says otherwise, the vector has one part
// per rank and the collectives without a root share their Program.
func flat(a Algorithm, list phases) *Algorithm {
	a.phases = list
	a.terms = flatTerms(list)
	a.write = func(b *builder, _ *Topology) { list[b.p.Collective].write(b.whole()) }
	if a.serves == nil {
		a.serves = list.serves
	}
	if a.parts == nil {
		a.parts = onePerRank
	}
	if a.shared == nil {
		a.shared = unrooted
	}
	return &a
}

// serves says that c is not among the phases, or nil.
func (l phases) serves(c kolo.Collective, _ *Topology) error {
	if _, ok := l[c.Base()]; ok {
		return nil
	}
	var names []string
	for _, k := range kolo.Collectives() {
		if _, ok := l[k]; ok {
			names = append(names, k.String())
		}
	}
	return errors.New("it does " + strings.Join(names, ", "))
}

// onePerRank cuts the vector into one part per rank.
func onePerRank(c kolo.Collective, p int) int {
	switch c {
	case kolo.AllReduce, kolo.Barrier, kolo.Reduce, kolo.Broadcast:
		return p
	}
	return 1
}

// oneBlock leaves the vector, or each chunk of it, whole.
func oneBlock(kolo.Collective, int) int { return 1 }

// unrooted says that a collective has no root, so that an algorithm that treats
// all ranks alike may share its Program.
func unrooted(c kolo.Collective) bool { return !c.Rooted() }

// never says that ranks have parts of their own in every collective.
func never(kolo.Collective) bool { return false }

// Key says which Program a call needs: everything but sizes, addresses and rank.
type Key struct {
	Algorithm  string
	Collective kolo.Collective
	Root       kolo.Rank
	InPlace    bool
	Scale      bool // PreMulSum: multiply each contribution first
	Cuts       int  // pieces of a pipelined algorithm; 0 is 1
}

// KeyOf is the key of a call for an algorithm.
func KeyOf(c *kolo.Call, algorithm string) Key {
	k := Key{Algorithm: algorithm, Collective: c.Collective,
		InPlace: c.InPlace || c.Collective == kolo.Broadcast,
		Scale:   c.Collective.Reduces() && c.Op.Kind == kolo.OpPreMulSum}
	if c.Collective.Rooted() {
		k.Root = c.Root
	}
	switch size := c.Count * int64(c.DType.Size()); algorithm {
	case tree.Name, doubleTree.Name:
		k.Cuts = treeCuts(size)
	case chain.Name:
		k.Cuts = chainCuts(size)
	}
	return k
}

// Compiled is a Program with its reverse lists, ready for a Machine.
type Compiled struct {
	*Program
	Successors *Successors
}

// Compile makes the Program of one rank. If it may be shared, the second result
// is true and For gives the other ranks' from it.
func Compile(k Key, t *Topology, rank kolo.Rank) (Compiled, bool, error) {
	var w writer
	p, shared, err := w.program(k, t, rank)
	if err != nil {
		return Compiled{}, false, err
	}
	return Compiled{Program: p, Successors: NewSuccessors(p)}, shared, nil
}

// writer makes Programs, the next one with the memory that was used for the last.
type writer struct{ b builder }

// program is Compile without the reverse lists.
func (w *writer) program(k Key, t *Topology, rank kolo.Rank) (*Program, bool, error) {
	a, err := Lookup(k.Algorithm)
	if err != nil {
		return nil, false, err
	}
	if err := a.Serves(k.Collective, t); err != nil {
		return nil, false, err
	}
	n, base := t.Ranks(), k.Collective.Base()
	if rank < 0 || int(rank) >= n || k.Root < 0 || int(k.Root) >= n || k.Cuts < 0 || k.Cuts > maxCuts {
		return nil, false, fmt.Errorf("%w: rank %d, root %d and %d cuts in a group of %d", kolo.ErrArgument, rank, k.Root, k.Cuts, n)
	}
	r := request{collective: base, ranks: n, rank: rank, root: k.Root, inPlace: k.InPlace,
		scale: k.Scale && a != fabric, parts: a.parts(base, n), cuts: 1}
	if a.blocks != nil {
		r.parts = a.blocks(base, t)
	}
	if a.cuts != nil {
		r.cuts = max(k.Cuts, 1)
		r.parts *= r.cuts
	}
	shared := a.shared(base)
	if shared {
		r.rank = 0
	}
	w.b.begin(a.Name, r)
	if n > 1 || a == fabric {
		a.write(&w.b, t)
	} else {
		w.b.alone()
	}
	p := w.b.finish()
	if shared {
		p = p.rotated(rank)
	}
	return p, shared, nil
}

// For is the Program of rank r, from one that Compile said may be shared.
func (c Compiled) For(r kolo.Rank) Compiled {
	return Compiled{Program: c.Program.rotated(r), Successors: c.Successors}
}
