package plan

import (
	"cmp"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// A step uses its memory from its begin to its end. Two uses of one slot of which
// one writes must not meet: the end of one must come before the begin of the
// other, by the edges in verify_order.go without that of missing credits, since a
// runtime may well have credits.
//
// It is enough to look, in an order that agrees with these edges, at each use
// against the last write before it, and at each write also against the reads since
// that write: all other pairs follow.

// races is the state of the check.
type races struct {
	c      *choreography
	last   []int32   // by slot: the step of the rank that wrote it last, -1 none
	reads  [][]int32 // by slot: the steps that have read it since
	proven []int32   // by step: the later step for which the order is known
	stamp  []int32   // by step: the later step whose ancestors were marked
	stack  []int32
	src    []int32
	dst    []int32
	global *search // for orders that come about through other ranks; nil until needed
}

// shape is what the checks inside a Program depend on; Programs made from one by
// rotation are equal in it.
type shape struct {
	steps         *Step
	n             int
	blocks        [numBuffers]int
	chunks, parts int
}

// checkRaces looks at each rank in the order in which its steps are written, with
// what After alone says. Only where that is not enough are the other ranks looked at.
func (c *choreography) checkRaces(order []event) error {
	v := &races{c: c}
	done := map[shape]bool{}
	for r, p := range c.programs {
		if len(p.Steps) == 0 {
			continue
		}
		s := shape{&p.Steps[0], len(p.Steps), p.Blocks, p.Chunks, p.Parts}
		if done[s] {
			continue
		}
		written := make([]int32, len(p.Steps))
		for i := range written {
			written[i] = int32(i)
		}
		if f := v.scan(r, written, v.follows); f == nil {
			done[s] = true
			continue
		}
		if v.global == nil {
			v.global = newSearch(c, order)
		}
		if f := v.scan(r, v.global.begun(r), v.global.before); f != nil {
			return f
		}
	}
	return nil
}

// scan goes through the steps of rank r in the given order; before says whether
// step a has ended when step b of the rank begins.
func (v *races) scan(r int, steps []int32, before func(r int, a, b int32) bool) *Fault {
	p := v.c.programs[r]
	v.reset(v.c.base[r][numBuffers-1]+p.Blocks[numBuffers-1], len(p.Steps))
	ordered := func(a, b int32) bool {
		if a < 0 || a == b || v.proven[a] == b {
			return true
		}
		if before(r, a, b) {
			v.proven[a] = b
			return true
		}
		return false
	}
	for _, i := range steps {
		s := &p.Steps[i]
		v.src, v.dst = v.c.slots(v.src[:0], r, s.Src), v.c.slots(v.dst[:0], r, s.Dst)
		for _, slot := range v.src {
			if w := v.last[slot]; !ordered(w, i) {
				return v.fault(r, slot, i, "reads", w, "write")
			}
		}
		for _, slot := range v.dst {
			if w := v.last[slot]; !ordered(w, i) {
				return v.fault(r, slot, i, "writes", w, "write")
			}
			for _, q := range v.reads[slot] {
				if !ordered(q, i) {
					return v.fault(r, slot, i, "writes", q, "read")
				}
			}
		}
		for _, slot := range v.src {
			v.reads[slot] = append(v.reads[slot], i)
		}
		for _, slot := range v.dst {
			v.last[slot], v.reads[slot] = i, v.reads[slot][:0]
		}
	}
	return nil
}

func (v *races) reset(slots, steps int) {
	for len(v.last) < slots {
		v.last, v.reads = append(v.last, -1), append(v.reads, nil)
	}
	for i := range slots {
		v.last[i], v.reads[i] = -1, v.reads[i][:0]
	}
	v.proven, v.stamp = fill(v.proven, steps), fill(v.stamp, steps)
}

// fill makes list n times -1.
func fill(list []int32, n int) []int32 {
	list = list[:0]
	for range n {
		list = append(list, -1)
	}
	return list
}

// follows says whether b comes after a by the After lists of the rank.
func (v *races) follows(r int, a, b int32) bool {
	steps := v.c.programs[r].Steps
	for _, x := range steps[b].After {
		if x == a {
			return true
		}
	}
	if v.stamp[b] != b {
		v.stamp[b], v.stack = b, append(v.stack[:0], b)
		for len(v.stack) > 0 {
			top := v.stack[len(v.stack)-1]
			v.stack = v.stack[:len(v.stack)-1]
			for _, x := range steps[top].After {
				if v.stamp[x] != b {
					v.stamp[x] = b
					v.stack = append(v.stack, x)
				}
			}
		}
	}
	return v.stamp[a] == b
}

func (v *races) fault(r int, slot, i int32, does string, other int32, what string) *Fault {
	peer := kolo.NoRank
	if s := &v.c.programs[r].Steps[i]; len(s.Peers) > 0 {
		peer = v.c.programs[r].Peer(s.Peers[0])
	}
	return v.c.fault(CheckRace, r, int(i), peer, "it %s %s, and nothing orders that with the %s by step %d (%s)",
		does, v.c.slotName(r, slot), what, other, v.c.programs[r].Describe(int(other)))
}

// search finds paths between events of all ranks.
type search struct {
	c     *choreography
	pos   []int32 // by event: its place in an order that agrees with all edges
	seen  []int32 // by event: number of the search that came by
	round int32
	stack []event
}

func newSearch(c *choreography, order []event) *search {
	s := &search{c: c, pos: make([]int32, len(order)), seen: make([]int32, len(order))}
	for k, e := range order {
		s.pos[e] = int32(k)
	}
	return s
}

// begun is the steps of rank r in an order in which they may begin.
func (s *search) begun(r int) []int32 {
	first := s.c.first[r]
	n := s.c.first[r+1] - first
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(i)
	}
	slices.SortFunc(list, func(a, b int32) int {
		return cmp.Compare(s.pos[2*(first+a)], s.pos[2*(first+b)])
	})
	return list
}

// before says whether the end of step a of rank r leads to the begin of step b.
func (s *search) before(r int, a, b int32) bool {
	c := s.c
	from, to := 2*(c.first[r]+a)+1, 2*(c.first[r]+b)
	s.round++
	s.stack = append(s.stack[:0], to)
	visit := func(e event) {
		if s.seen[e] != s.round && s.pos[e] >= s.pos[from] {
			s.seen[e] = s.round
			s.stack = append(s.stack, e)
		}
	}
	for len(s.stack) > 0 {
		e := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		if e == from {
			return true
		}
		s.causes(e, visit)
	}
	return false
}

// causes calls f for each event that must come directly before e, but for those
// that only missing credits ask for.
func (s *search) causes(e event, f func(event)) {
	c, step := s.c, e/2
	r, i := c.local(step)
	st := &c.programs[r].Steps[i]
	if e&1 == 1 {
		f(e - 1)
		if st.Op != Send {
			for _, m := range c.messages(step) {
				f(2 * c.sender[m])
			}
		}
		return
	}
	for _, a := range st.After {
		f(2*(c.first[r]+a) + 1)
	}
	for _, m := range c.messages(step) {
		if q := c.previous(step, m); q >= 0 {
			f(2 * q)
		}
	}
}
