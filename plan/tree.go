package plan

import "github.com/kolo-ccl/kolo"

// The binary tree: position 0 is the root, position v has children 2v+1 and 2v+2.
// Partial sums go up, folded with both children's in one step; results go down. A
// vector of some size is cut into pieces that follow each other through the tree,
// which then costs its depth plus the number of pieces.
var tree = flat(Algorithm{
	Name:   "tree",
	Source: "binary tree, pipelined",
	parts:  oneBlock,
	cuts:   treeCuts,
	shared: never,
}, treePhases(func(s *scope) []branch { return []branch{heapBranch(s)} }, heapCost(treeCuts)))

// maxCuts is the largest number of pieces that a Key may ask for.
const maxCuts = 64

// treeCuts is the number of pieces for a vector of size bytes: few values, since
// each is a Program of its own.
func treeCuts(size int64) int {
	switch {
	case size < 128<<10:
		return 1
	case size < 2<<20:
		return 4
	}
	return 16
}

// uncut is the number of pieces where there is no pipeline.
func uncut(int64) int { return 1 }

// branch is what a position sees of a tree.
type branch struct {
	*scope
	parent   int // -1 at the root
	children []int
	pieces   [][]int // blocks
}

// up folds a piece of the children's into this rank's and passes it on.
func (t *branch) up(piece int) {
	if len(t.children) > 0 {
		t.b.recvReduce(t.lane, t.peers(t.children...), t.pieces[piece], sum(t.final && t.parent < 0))
	}
	if t.parent >= 0 {
		t.b.send(t.lane, t.peers(t.parent), t.pieces[piece])
	}
}

// down takes a piece from the parent and passes it on.
func (t *branch) down(piece int) {
	if t.parent >= 0 {
		t.b.recv(t.lane, t.peers(t.parent), t.pieces[piece])
	}
	if len(t.children) > 0 {
		t.b.send(t.lane, t.peers(t.children...), t.pieces[piece])
	}
}

// treePhases are the phases on trees that carry a share of the vector each.
func treePhases(grow func(*scope) []branch, c treeCost) phases {
	on := func(moves ...func(*branch, int)) func(*scope) {
		return func(s *scope) {
			branches := grow(s)
			for piece := range s.b.cuts {
				for i := range branches {
					for _, move := range moves {
						move(&branches[i], piece)
					}
				}
			}
		}
	}
	allReduce := phase{on((*branch).up, (*branch).down), c.allReduce}
	return phases{
		kolo.AllReduce: allReduce,
		kolo.Broadcast: {on((*branch).down), c.broadcast},
		kolo.Reduce:    {on((*branch).up), c.reduce},
		kolo.Barrier:   allReduce,
	}
}

// heapBranch is this rank's place in the binary tree of all positions.
func heapBranch(s *scope) branch {
	t := branch{scope: s.fromRoot(), parent: -1, pieces: pieces(s.all(), s.b.cuts)}
	if t.me > 0 {
		t.parent = (t.me - 1) / 2
	}
	for v := 2*t.me + 1; v <= 2*t.me+2 && v < t.n; v++ {
		t.children = append(t.children, v)
	}
	return t
}

// pieces cuts a list of blocks into k pieces.
func pieces(blocks []int, k int) [][]int {
	blocks = append([]int(nil), blocks...)
	out := make([][]int, k)
	for q := range out {
		out[q] = blocks[q*len(blocks)/k : (q+1)*len(blocks)/k]
	}
	return out
}

// treeCost are the costs of a kind of tree.
type treeCost struct{ allReduce, broadcast, reduce cost }

// heapCost: the first piece takes a round per level in each direction, and each of
// the others follows a round later. In a round an inner rank moves a piece to, or
// from, each of its k children and in AllReduce one more with its parent.
func heapCost(cuts func(int64) int) treeCost {
	measure := func(p int, n float64) (depth, k, follow, piece float64) {
		c := cuts(int64(n))
		return float64(floorLog(p)), float64(min(2, p-1)), float64(c - 1), n / float64(c)
	}
	return treeCost{
		allReduce: func(p int, n float64) Level {
			depth, k, follow, piece := measure(p, n)
			return Level{2*depth + follow, (2*k*depth + (k+1)*follow) * piece, k * (depth + follow) * piece}
		},
		broadcast: func(p int, n float64) Level {
			depth, k, follow, piece := measure(p, n)
			return Level{depth + follow, k * (depth + follow) * piece, 0}
		},
		reduce: func(p int, n float64) Level {
			depth, k, follow, piece := measure(p, n)
			return Level{depth + follow, k * (depth + follow) * piece, k * (depth + follow) * piece}
		},
	}
}
