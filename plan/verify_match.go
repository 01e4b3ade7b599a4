package plan

import (
	"cmp"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// turned says that all Programs are that of rank 0, rotated, so that what holds for it
// holds for all.
func (c *choreography) turned() bool {
	p := c.programs[0]
	if p.Blocks[Scratch] != p.Chunks*p.Parts {
		return false
	}
	for r, q := range c.programs {
		if len(p.Steps) == 0 || len(q.Steps) != len(p.Steps) || &q.Steps[0] != &p.Steps[0] ||
			q.shift != r || q.Blocks != p.Blocks || q.Even != p.Even || q.Like != nil || p.Like != nil {
			return false
		}
	}
	return true
}

// checkSteps looks at the Program of one rank alone.
func (c *choreography) checkSteps(r int) error {
	p := c.programs[r]
	slots := c.base[r][numBuffers-1] + p.Blocks[numBuffers-1]
	at := make([]int32, slots) // by slot: position in Dst of the step, plus one
	var src, dst []int32
	for i := range p.Steps {
		if why, peer := c.stepShape(r, i); why != "" {
			return c.fault(CheckShape, r, i, peer, "%s", why)
		}
		s := &p.Steps[i]
		src, dst = c.slots(src[:0], r, s.Src), c.slots(dst[:0], r, s.Dst)
		why := c.placesShape(r, s, src, dst, at)
		for _, slot := range dst {
			at[slot] = 0
		}
		if why != "" {
			return c.fault(CheckShape, r, i, kolo.NoRank, "%s", why)
		}
	}
	return nil
}

// stepShape says what is wrong with the fields of a step, "" for nothing.
func (c *choreography) stepShape(r, i int) (string, kolo.Rank) {
	p := c.programs[r]
	s := &p.Steps[i]
	for _, a := range s.After {
		if a < 0 || int(a) >= i {
			return fmt.Sprintf("it comes after step %d, which is not an earlier step", a), kolo.NoRank
		}
	}
	for k, q := range s.Peers {
		if q < 0 || int(q) >= p.Ranks {
			return fmt.Sprintf("there is no rank %d", q), kolo.NoRank
		}
		if p.Peer(q) == kolo.Rank(r) {
			return "a rank cannot be its own peer", kolo.Rank(r)
		}
		for _, o := range s.Peers[:k] {
			if o == q {
				return fmt.Sprintf("it names rank %d twice", p.Peer(q)), p.Peer(q)
			}
		}
	}
	for _, list := range [][]Span{s.Src, s.Dst} {
		for _, x := range list {
			if x.Buf >= numBuffers || x.N < 1 || int(x.N) > p.Blocks[x.Buf] {
				return fmt.Sprintf("a span of %d blocks in %v, which has %d", x.N, x.Buf, blocksOf(p, x.Buf)), kolo.NoRank
			}
		}
	}
	peers, src, dst := len(s.Peers), len(s.Src) > 0, len(s.Dst) > 0
	ok := false
	switch s.Op {
	case Send:
		ok = peers > 0 && src && !dst
	case Recv:
		ok = peers == 1 && !src && dst
	case RecvReduce:
		ok = peers > 0 && src && dst
	case Copy, Scale, Reduce:
		ok = peers == 0 && src && dst
	}
	if !ok {
		return "peers, source or destination do not suit the opcode", kolo.NoRank
	}
	if s.Final && s.Op != RecvReduce && s.Op != Reduce {
		return "only a reduction can be final", kolo.NoRank
	}
	return "", kolo.NoRank
}

func blocksOf(p *Program, b Buffer) int {
	if b < numBuffers {
		return p.Blocks[b]
	}
	return 0
}

// placesShape says what is wrong with the blocks of a step, "" for nothing: each
// is written once, sources and destinations are equally many and of equal
// sizes, and lie apart or on one another. at is zero, and left with marks.
func (c *choreography) placesShape(r int, s *Step, src, dst, at []int32) string {
	p := c.programs[r]
	if s.Op != Send && s.Op != Recv && len(src) != len(dst) {
		return fmt.Sprintf("%d source blocks and %d destination blocks", len(src), len(dst))
	}
	for k, slot := range dst {
		if at[slot] != 0 {
			return "it writes " + c.slotName(r, slot) + " twice"
		}
		at[slot] = int32(k + 1)
		if c.place(r, slot).buf == In && !(p.InPlace && inIsWhole(p.Collective)) {
			return "it writes " + c.slotName(r, slot) + ", but input may only be written in place"
		}
	}
	if s.Op == Send {
		return ""
	}
	for k, slot := range src {
		if s.Op == Reduce && at[slot] == int32(k+1) {
			return "it adds " + c.slotName(r, slot) + " to itself"
		}
		if at[slot] != 0 && at[slot] != int32(k+1) {
			return fmt.Sprintf("it reads %s for its block %d and writes it as its block %d", c.slotName(r, slot), k, at[slot]-1)
		}
		if c.size(r, slot) != c.size(r, dst[k]) {
			return c.unequal(r, slot, r, dst[k])
		}
	}
	return ""
}

// size stands for the number of bytes of a slot: two slots with equal numbers have
// the same size for all counts that the collective may be called with, and two
// with different numbers do not for some.
func (c *choreography) size(r int, slot int32) int64 {
	p := c.programs[r]
	if p.Even {
		return 0
	}
	at := c.place(r, slot)
	block, n := int64(at.block), int64(p.Ranks)
	if at.buf == Scratch && p.Like != nil {
		block = int64(p.Like[at.block])
	}
	if !chunked(p.Collective) {
		return block
	}
	parts := int64(p.Parts)
	chunk, part := block/parts, block%parts
	if c.key.Collective == p.Collective {
		return part
	}
	if p.Collective != kolo.AllToAll {
		if mine := (at.buf == Out) == inIsWhole(p.Collective); mine && at.buf != Scratch {
			chunk = int64(r)
		}
		return chunk*parts + part
	}
	from, to := chunk, int64(r)
	if at.buf == In {
		from, to = to, from
	}
	if p.InPlace && at.buf != In { // what a rank takes from another is as long as what it gives
		from, to = min(from, to), max(from, to)
	}
	return (from*n+to)*parts + part
}

func (c *choreography) unequal(r int, a int32, q int, b int32) string {
	return fmt.Sprintf("%s of rank %d and %s of rank %d are of unequal size for some counts of %v",
		c.slotName(r, a), r, c.slotName(q, b), q, c.key.Collective)
}

// match pairs the k-th send of each connection with the k-th receive and compares
// what they carry.
func (c *choreography) match() error {
	if err := c.connect(); err != nil {
		return err
	}
	var a, b []int32
	alike := c.turned()
	for m := range c.sender {
		r, i := c.local(c.sender[m])
		if alike && r > 0 {
			continue // what rank 0 sends, turned
		}
		q, j := c.local(c.receiver[m])
		a = c.slots(a[:0], r, c.programs[r].Steps[i].Src)
		b = c.slots(b[:0], q, c.programs[q].Steps[j].Dst)
		if len(a) != len(b) {
			return c.fault(CheckMatch, r, i, kolo.Rank(q), "%d blocks meet %d of %s", len(a), len(b), c.name(q, j))
		}
		for k := range a {
			if c.size(r, a[k]) != c.size(q, b[k]) {
				return c.fault(CheckMatch, r, i, kolo.Rank(q), "block %d does not fit into %s: %s", k, c.name(q, j), c.unequal(r, a[k], q, b[k]))
			}
		}
	}
	return nil
}

// line is a connection: a FIFO of messages from one rank to another.
type line struct {
	from, to kolo.Rank
	lane     uint8
}

func (l line) compare(m line) int {
	return cmp.Or(cmp.Compare(l.from, m.from), cmp.Compare(l.to, m.to), cmp.Compare(l.lane, m.lane))
}

// connect numbers the messages.
func (c *choreography) connect() error {
	peers, lanes := 0, 1
	for _, p := range c.programs {
		for i := range p.Steps {
			peers += len(p.Steps[i].Peers)
			lanes = max(lanes, int(p.Steps[i].Lane)+1)
		}
	}
	c.ends, c.message = make([]int32, 1, len(c.owner)+1), make([]int32, peers)
	for i := range c.owner {
		c.ends = append(c.ends, c.ends[i]+int32(len(c.step(int32(i)).Peers)))
	}
	x := &lines{c: c, number: make([]int32, lanes*len(c.programs)), lanes: lanes}
	for r := range c.programs {
		x.walk(r, true)
	}
	into := x.into()
	for r := range c.programs {
		clear(x.number)
		for _, k := range into[r] {
			x.number[int(x.list[k].from)*lanes+int(x.list[k].lane)] = k + 1
		}
		x.walk(r, false)
	}
	odd := -1
	for k, l := range x.list {
		if x.sent[k] != x.taken[k] && (odd < 0 || l.compare(x.list[odd]) < 0) {
			odd = k
		}
	}
	if odd >= 0 {
		return c.unmatched(x.list[odd], int32(odd), x.sent[odd], x.taken[odd])
	}
	c.number(x.sent)
	return nil
}

// lines finds the connections.
type lines struct {
	c           *choreography
	list        []line
	sent, taken []int32 // by connection: messages at its two ends
	lanes       int
	number      []int32 // of the rank at hand, by peer and lane: 1 + connection; 0 none yet
}

// walk notes the connection of each message at one end of those of rank r. The sending
// ends come first, rank by rank.
func (x *lines) walk(r int, sends bool) {
	c, p := x.c, x.c.programs[r]
	if sends {
		clear(x.number)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if (s.Op == Send) != sends {
			continue
		}
		at := c.ends[c.first[r]+int32(i)]
		for k, q := range s.Peers {
			peer := p.Peer(q)
			place := &x.number[int(peer)*x.lanes+int(s.Lane)]
			if *place == 0 {
				l := line{kolo.Rank(r), peer, s.Lane}
				if !sends {
					l.from, l.to = l.to, l.from
				}
				x.list, x.sent, x.taken = append(x.list, l), append(x.sent, 0), append(x.taken, 0)
				*place = int32(len(x.list))
			}
			if sends {
				x.sent[*place-1]++
			} else {
				x.taken[*place-1]++
			}
			c.message[at+int32(k)] = *place - 1
		}
	}
}

// into is, for each rank, the connections to it.
func (x *lines) into() [][]int32 {
	count := make([]int, len(x.c.programs))
	for _, l := range x.list {
		count[l.to]++
	}
	all, out := make([]int32, 0, len(x.list)), make([][]int32, len(count))
	for r, n := range count {
		out[r] = all[len(all) : len(all) : len(all)+n]
		all = all[:len(all)+n]
	}
	for k, l := range x.list {
		out[l.to] = append(out[l.to], int32(k))
	}
	return out
}

// number turns connections in c.message into messages. sent is how many messages
// each has.
func (c *choreography) number(sent []int32) {
	total := int32(0)
	next, taken := make([]int32, len(sent)), make([]int32, len(sent))
	for k, n := range sent {
		next[k], taken[k] = total, total
		total += n
		for range n {
			c.line = append(c.line, int32(k))
		}
	}
	c.sender, c.receiver = make([]int32, total), make([]int32, total)
	for i := range c.owner {
		end, at := c.receiver, taken
		if c.step(int32(i)).Op == Send {
			end, at = c.sender, next
		}
		for x := c.ends[i]; x < c.ends[i+1]; x++ {
			k := c.message[x]
			c.message[x] = at[k]
			end[at[k]] = int32(i)
			at[k]++
		}
	}
}

// unmatched is the error for connection k with more messages at one end. It names
// the first step that has no partner.
func (c *choreography) unmatched(l line, k, sent, taken int32) error {
	few, r, peer, op := min(sent, taken), l.from, l.to, Send
	if taken > sent {
		r, peer, op = l.to, l.from, Recv
	}
	for step := c.first[r]; step < c.first[r+1]; step++ {
		for _, m := range c.message[c.ends[step]:c.ends[step+1]] {
			if m != k {
				continue
			}
			if few--; few < 0 {
				_, i := c.local(step)
				return c.fault(CheckMatch, int(r), i, peer, "it has no partner: rank %d sends %d messages to rank %d on lane %d, which takes %d",
					l.from, sent, l.to, l.lane, taken)
			}
		}
	}
	panic(fmt.Sprintf("plan: %v messages of connection %d cannot be found", op, k))
}
