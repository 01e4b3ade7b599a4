package plan

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// maxCredits is how many messages a connection may have to hold for Programs that
// Rendezvous takes.
const maxCredits = 8

// Rendezvous makes of Programs from outside such as the runtime wants: they serve any
// count, and every connection works without credits. The Programs must pass Verify with
// key; key.Collective is a base collective. The results are in place or not as asked,
// whichever the Programs are: where the two differ, a rank copies first or last.
//
// What is kept is who sends which values to whom in which order on each connection,
// and what each rank computes from them. What is made anew:
//
//   - A block that lies where a block of another length may be wanted moves to a place
//     in Scratch that has its length (Program.Like), and so does one that lies in input
//     which is not part of the result.
//   - A step comes after those whose memory it reads or overwrites and no others, where
//     the Programs may have had one worker do its steps one after the other.
//   - A connection on which that leaves a circle of steps that wait for each other gets
//     room for its credits in the sender's Scratch: the message is copied there, and the
//     steps behind it go on. The circle is then as open as the credits make it, over any
//     driver.
func Rendezvous(key Key, programs []*Program, inPlace bool) ([]*Program, Report, error) {
	c, err := assemble(key, programs)
	if err != nil {
		return nil, Report{}, err
	}
	if base := key.Collective.Base(); base != key.Collective || base == kolo.Barrier || key.Scale {
		return nil, Report{}, fmt.Errorf("%w: %v with key %+v cannot be made anew", kolo.ErrUnsupported, key.Collective, key)
	}
	x := &revision{c: c, inPlace: inPlace, eager: map[line]int{}, blocks: make([]stepBlocks, len(c.owner))}
	v := newValues(c)
	v.note = func(r, i int) { x.note(v, r, i) }
	order, report, err := c.prove(v)
	switch {
	case err != nil:
		return nil, Report{}, err
	case c.fabric() || report.Credits > maxCredits:
		return nil, Report{}, fmt.Errorf("%w: programs of the medium, or with %d credits per connection; at most %d", kolo.ErrUnsupported, report.Credits, maxCredits)
	}
	x.depth = max(report.Credits, 1)
	x.order = make([][]int32, len(programs))
	for _, e := range order {
		if r, i := c.local(e / 2); e&1 == 0 {
			x.order[r] = append(x.order[r], int32(i))
		}
	}
	key.InPlace = inPlace
	for {
		out := make([]*Program, len(programs))
		for r := range out {
			out[r] = x.write(r)
		}
		if done, err := x.open(key, out); err != nil {
			return nil, Report{}, err
		} else if done {
			report, err := Verify(key, out)
			return out, report, err
		}
	}
}

// revision is Programs being made anew.
type revision struct {
	c       *choreography
	inPlace bool
	depth   int          // messages that an eager connection holds
	eager   map[line]int // connections that hold messages, numbered
	order   [][]int32    // by rank: its steps in an order in which they may begin
	blocks  []stepBlocks // by step
}

// stepBlocks are the blocks of the vector that a step reads and writes, in its order;
// ^block where the place holds what it did at first.
type stepBlocks struct{ src, dst []int32 }

// note takes down what step i of rank r has read and written.
func (x *revision) note(v *values, r, i int) {
	list := make([]int32, 0, len(v.src)+len(v.dst))
	slots := x.c.slots(nil, r, x.c.programs[r].Steps[i].Src)
	for n, k := range v.src {
		block := v.known[k].block
		if v.begin[r][slots[n]] == k {
			block = ^block
		}
		list = append(list, block)
	}
	n := len(list)
	for _, slot := range v.dst {
		list = append(list, v.known[v.at[r][slot]].block)
	}
	x.blocks[x.c.first[r]+int32(i)] = stepBlocks{list[:n:n], list[n:]}
}

// length stands for the length of a block of the vector: that of another one with the
// same number.
func (x *revision) length(block int32) int32 {
	if block < 0 {
		block = ^block
	}
	if p := x.c.programs[0]; chunked(p.Collective) {
		return block % int32(p.Parts)
	}
	return block
}

// spot is a place of the old Programs and the length of what lies in it. Messages that
// wait for their receiver are at kind numBuffers and above, by connection.
type spot struct {
	kind  int32
	block int32
	like  int32
}

// reviser makes the Program of one rank. It goes through the steps twice: first to
// find the places in Scratch, then to write.
type reviser struct {
	x       *revision
	old     *Program
	b       *builder
	scratch map[spot]int32
	sent    map[line]int
	moves   [2][2][]place // copies before and after: from, to
}

func (x *revision) write(r int) *Program {
	old := x.c.programs[r]
	w := &reviser{x: x, old: old, scratch: map[spot]int32{}}
	w.b = newBuilder(old.Algorithm, request{collective: old.Collective, ranks: old.Ranks, rank: old.Rank,
		root: old.Root, inPlace: x.inPlace, parts: old.Parts, cuts: 1})
	w.steps(false)
	w.bridge()
	like := make([]int32, len(w.scratch))
	for s, i := range w.scratch {
		like[i] = s.like
	}
	w.b.growScratch(len(like))
	w.b.p.Like = like
	w.copy(w.moves[0])
	w.steps(true)
	w.copy(w.moves[1])
	return w.b.p
}

func (w *reviser) copy(m [2][]place) {
	if len(m[0]) > 0 {
		w.b.copyPlaces(m[0], m[1])
	}
}

// bridge makes the copies between the buffers that the Program was written for and
// those of the call, where they are not the same.
func (w *reviser) bridge() {
	if !w.moved() {
		return
	}
	p, own := w.old, w.b.p
	me := int32(int(p.Rank) * p.Parts)
	add := func(when int, from, to place) {
		w.moves[when][0] = append(w.moves[when][0], from)
		w.moves[when][1] = append(w.moves[when][1], to)
	}
	mine := int32(0) // where input lies in place
	if max(p.Blocks[In], own.Blocks[In]) < max(p.Blocks[Out], own.Blocks[Out]) {
		mine = me
	}
	switch whole := inIsWhole(p.Collective); {
	case whole && p.InPlace:
		for i := range int32(p.Parts) {
			from := place{In, me + i}
			if k, ok := w.scratch[spot{int32(In), me + i, w.x.length(me + i)}]; ok {
				from = place{Scratch, k}
			}
			add(1, from, place{Out, i})
		}
	case whole:
		for i := range int32(p.Parts) {
			add(1, w.at(Out, i, i), place{In, me + i})
		}
	case p.InPlace:
		for i := range int32(own.Blocks[In]) {
			add(0, place{In, i}, place{Out, mine + i})
		}
	default:
		for i := range int32(p.Blocks[In]) {
			add(0, place{Out, mine + i}, w.at(In, i, i))
		}
	}
}

// moved says that the rank's buffers are not those that the Program was written for.
func (w *reviser) moved() bool {
	a, b := w.old.Blocks, w.b.p.Blocks
	return a[In] != b[In] || a[Out] != b[Out]
}

// at is where the place of an old Program that holds a block of the vector is; see
// stepBlocks for block.
func (w *reviser) at(buf Buffer, i, block int32) place {
	like, p := w.x.length(block), w.old
	natural := buf != Scratch && w.x.length(i) == like
	if whole := inIsWhole(p.Collective); whole {
		me := int32(int(p.Rank) * p.Parts)
		result := buf == Out || p.InPlace && i >= me && i < me+int32(p.Parts)
		natural = natural && (buf == In && (block < 0 || !p.InPlace) || result && !w.moved())
	} else if w.moved() && buf == In {
		natural = false // in place there is no In
	}
	if natural {
		return place{buf, i}
	}
	return w.room(spot{int32(buf), i, like})
}

// room is the place in Scratch for a spot.
func (w *reviser) room(s spot) place {
	i, ok := w.scratch[s]
	if !ok {
		i = int32(len(w.scratch))
		w.scratch[s] = i
	}
	return place{Scratch, i}
}

// steps goes through the steps, and writes them if asked.
func (w *reviser) steps(write bool) {
	r := int(w.old.Rank)
	w.sent = map[line]int{}
	var src, dst, hold []place
	for _, i := range w.x.order[r] {
		s := &w.old.Steps[i]
		is := w.x.blocks[w.x.c.first[r]+i]
		src, dst = w.places(src[:0], s.Src, is.src), w.places(dst[:0], s.Dst, is.dst)
		peers := make([]kolo.Rank, len(s.Peers))
		for k, q := range s.Peers {
			peers[k] = w.old.Peer(q)
		}
		if s.Op == Send {
			hold = w.held(hold[:0], line{w.old.Rank, peers[0], s.Lane}, is.src)
			if len(hold) > 0 {
				if write {
					w.b.copyPlaces(src, hold)
				}
				src = append(src[:0], hold...)
			}
		}
		if write {
			w.b.step(Step{Op: s.Op, Lane: s.Lane, Final: s.Final, Peers: peers}, src, dst)
		}
	}
}

func (w *reviser) places(dst []place, spans []Span, blocks []int32) []place {
	k := 0
	for _, s := range spans {
		w.old.At(s, func(i int) {
			dst = append(dst, w.at(s.Buf, int32(i), blocks[k]))
			k++
		})
	}
	return dst
}

// held is where a message waits that its connection holds, nothing if it holds none.
func (w *reviser) held(dst []place, l line, blocks []int32) []place {
	number, ok := w.x.eager[l]
	if !ok {
		return dst
	}
	turn := int32(w.sent[l] % w.x.depth)
	w.sent[l]++
	for k, block := range blocks {
		dst = append(dst, w.room(spot{int32(numBuffers) + int32(number), turn<<24 | int32(k), w.x.length(block)}))
	}
	return dst
}

// open says whether the Programs can run. If not, the connections whose sends are
// stuck are made to hold messages.
func (x *revision) open(key Key, programs []*Program) (bool, error) {
	c, err := assemble(key, programs)
	if err != nil {
		return false, err
	}
	if err := c.match(); err != nil {
		return false, err
	}
	c.reverse()
	p := newPlay(c, 0)
	order, ok := p.run()
	if ok {
		return true, nil
	}
	happened := make([]bool, 2*len(c.owner))
	for _, e := range order {
		happened[e] = true
	}
	before := len(x.eager)
	for step := range c.owner {
		s := c.step(int32(step))
		if s.Op != Send || !happened[2*step] || happened[2*step+1] {
			continue
		}
		l := line{kolo.Rank(c.owner[step]), s.Peers[0], s.Lane}
		if _, ok := x.eager[l]; !ok {
			x.eager[l] = len(x.eager)
		}
	}
	if len(x.eager) == before || slices.ContainsFunc(programs, func(p *Program) bool { return len(p.Steps) > maxRevised }) {
		return false, p.deadlock()
	}
	return false, nil
}

// maxRevised bounds the steps of a rank, so that connections cannot be opened one by
// one for ever.
const maxRevised = 1 << 20
