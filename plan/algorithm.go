package plan

import (
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
	// collective has one chunk) is cut into.
	parts func(c kolo.Collective, t *Topology) int
	// shared says that the Program of rank 0 serves all ranks by rotation.
	shared func(c kolo.Collective) bool
	// write says what the rank of b does.
	write func(b *builder, t *Topology)
	// terms is the cost of c over n bytes of the whole vector; see Terms.
	terms func(c kolo.Collective, t *Topology, n float64) Terms
}

// Algorithms is the table, in the order in which ties are decided.
func Algorithms() []*Algorithm {
	return []*Algorithm{
		ring,
	}
}

// Lookup finds an algorithm by name.
func Lookup(name string) (*Algorithm, error) {
	var names []string
	for _, a := range Algorithms() {
		if a.Name == name {
			return a, nil
		}
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

// serving makes a serves function from a list of collectives, for algorithms that
// take any number of ranks. A V form is listed apart from its base.
func serving(list ...kolo.Collective) func(kolo.Collective, *Topology) error {
	return func(c kolo.Collective, _ *Topology) error {
		if slices.Contains(list, c) {
			return nil
		}
		return fmt.Errorf("it serves %v", list)
	}
}

// flatParts cuts the vector into one part per rank.
func flatParts(c kolo.Collective, t *Topology) int {
	switch c {
	case kolo.AllReduce, kolo.Barrier, kolo.Reduce, kolo.Broadcast:
		return t.Ranks()
	}
	return 1
}

// unrooted says that a collective has no root, so that an algorithm that treats
// all ranks alike may share its Program.
func unrooted(c kolo.Collective) bool { return !c.Rooted() }

// Key says which Program a call needs: everything but sizes, addresses and rank.
type Key struct {
	Algorithm  string
	Collective kolo.Collective
	Root       kolo.Rank
	InPlace    bool
	Scale      bool // PreMulSum: multiply each contribution first
}

// KeyOf is the key of a call for an algorithm.
func KeyOf(c *kolo.Call, algorithm string) Key {
	return Key{Algorithm: algorithm, Collective: c.Collective, Root: c.Root,
		InPlace: c.InPlace || c.Collective == kolo.Broadcast,
		Scale:   c.Collective.Reduces() && c.Op.Kind == kolo.OpPreMulSum}
}

// Compiled is a Program with its reverse lists, ready for a Machine.
type Compiled struct {
	*Program
	Successors *Successors
}

// Compile makes the Program of one rank. If it may be shared, the second result
// is true and For gives the other ranks' from it.
func Compile(k Key, t *Topology, rank kolo.Rank) (Compiled, bool, error) {
	a, err := Lookup(k.Algorithm)
	if err != nil {
		return Compiled{}, false, err
	}
	if err := a.Serves(k.Collective, t); err != nil {
		return Compiled{}, false, err
	}
	n := t.Ranks()
	if rank < 0 || int(rank) >= n || k.Root < 0 || int(k.Root) >= n {
		return Compiled{}, false, fmt.Errorf("%w: rank %d and root %d in a group of %d", kolo.ErrArgument, rank, k.Root, n)
	}
	base := k.Collective.Base()
	r := request{collective: base, ranks: n, rank: rank, root: k.Root, inPlace: k.InPlace, scale: k.Scale, parts: a.parts(base, t)}
	shared := a.shared != nil && a.shared(base)
	if shared {
		r.rank = 0
	}
	b := newBuilder(a.Name, r)
	if n > 1 || a == fabric {
		a.write(b, t)
	} else {
		b.alone()
	}
	p := b.finish()
	c := Compiled{Program: p, Successors: NewSuccessors(p)}
	if shared {
		return c.For(rank), true, nil
	}
	return c, false, nil
}

// For is the Program of rank r, from one that Compile said may be shared.
func (c Compiled) For(r kolo.Rank) Compiled {
	return Compiled{Program: c.Program.rotated(r), Successors: c.Successors}
}
