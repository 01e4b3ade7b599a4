package plan

import (
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// Three levels: K racks of G servers of M ranks. A reduce-scatter goes through servers,
// then among the servers of a rack, then among racks, each time on the part that is left;
// an all-gather comes back the same way, so that n/M crosses between servers and n/(M*G)
// between racks. AllReduce leaves out the last scatter and the first gather: among racks it
// is one AllReduce.
// HCCL's level0, level1 and level2; see hierarchy.go for two levels and for where this
// differs from HCCL's orders.
func threeLevel(server, rack, top *Algorithm) *Algorithm {
	levels := []*Algorithm{server, rack, top}
	return &Algorithm{
		Name:   "hier:" + server.Name + "+" + rack.Name + "+" + top.Name,
		Source: "three levels; in servers " + server.Source + "; in racks " + rack.Source + "; between them " + top.Source,
		parts:  onePerRank,
		shared: never,
		serves: func(c kolo.Collective, t *Topology) error {
			if climb(c.Base()) == nil {
				return errors.New("it does AllReduce, AllGather, ReduceScatter and Barrier")
			}
			return equalRacks(t)
		},
		write: func(b *builder, t *Topology) {
			s := b.whole()
			scopes := s.stages(coordinates(t), []int{0, 1, 2})
			for _, m := range climb(b.p.Collective) {
				levels[m.level].phases[m.through].write(scopes[m.level])
			}
		},
		terms: func(c kolo.Collective, t *Topology, n float64) (out Terms) {
			p, ranks := t.Ranks(), [3]int{}
			servers, racks := distinct(t.Server), distinct(t.Rack)
			ranks = [3]int{p / servers, servers / racks, racks}
			share := [3]float64{n, n / float64(ranks[0]), n / float64(ranks[0]*ranks[1])}
			for _, m := range climb(c) {
				out[m.level] = out[m.level].plus(levels[m.level].phases[m.through].cost(ranks[m.level], share[m.level]))
			}
			return out
		},
	}
}

// climbing is a phase at a level.
type climbing struct {
	level   int
	through kolo.Collective
}

// climb is the order of phases, nil where there is none.
func climb(c kolo.Collective) []climbing {
	up := []climbing{{0, kolo.ReduceScatter}, {1, kolo.ReduceScatter}, {2, kolo.ReduceScatter}}
	down := []climbing{{2, kolo.AllGather}, {1, kolo.AllGather}, {0, kolo.AllGather}}
	switch c {
	case kolo.AllReduce, kolo.Barrier:
		return append(append(up[:2:2], climbing{2, kolo.AllReduce}), down[1:]...)
	case kolo.ReduceScatter:
		return up
	case kolo.AllGather:
		return down
	}
	return nil
}

// equalRacks says why t is not several racks with equally many servers of equal size, at
// least two each, or nil.
func equalRacks(t *Topology) error {
	servers, racks := distinct(t.Server), distinct(t.Rack)
	if racks < 2 || servers == racks || !t.EqualServers() || !t.EqualRacks() {
		return fmt.Errorf("it needs several racks of equally many servers, at least two, of equal size; here are %d servers in %d racks", servers, racks)
	}
	return nil
}

// coordinates of each rank: among the ranks of its server, among the servers of its
// rack, among racks.
func coordinates(t *Topology) [][]int {
	out := make([][]int, t.Ranks())
	inServer := make([]int, distinct(t.Server))
	inRack := make([]int, distinct(t.Rack))
	number := make([]int, distinct(t.Server)) // of a server in its rack, plus one
	for r, s := range t.Server {
		k := t.Rack[r]
		if number[s] == 0 {
			inRack[k]++
			number[s] = inRack[k]
		}
		out[r] = []int{inServer[s], number[s] - 1, k}
		inServer[s]++
	}
	return out
}
