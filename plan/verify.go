package plan

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Report is what Verify has found out about Programs that are right.
type Report struct {
	Ranks    int
	Steps    int // of all ranks
	Messages int // a send to three peers is three
	// Credits is the least number of messages that each connection must be able to
	// hold for a receiver that has not come yet. 0: pure rendezvous is enough.
	Credits int
	// Wasted is the number of blocks that a rank is sent although the same value is
	// at that place already. A barrier, which sends nothing, has none.
	Wasted int
	// SameBits says that all ranks that get a block get it by the same fold, so that
	// rounding gives the same bits everywhere. True where nothing is reduced.
	SameBits bool
	// OnePass says that every result is one fold of all contributions in rank
	// order, so that its bits depend on nothing else. True where nothing is reduced.
	OnePass bool
}

// Check is a part of the proof that Verify makes.
type Check uint8

// The parts, in the order in which they are made. One that fails ends the proof.
const (
	CheckShape    Check = iota // every Program alone: header, bounds, After, spans that fit together
	CheckMatch                 // sends and receives: equal numbers of messages, blocks and bytes
	CheckDeadlock              // the steps can all run, in some order and so in any
	CheckRace                  // accesses to a block are ordered where one of them writes
	CheckValue                 // what a step reads is there and what it makes is meaningful
	CheckResult                // in the end each rank has what the collective promises
)

// String is the name of the part, as "race".
func (c Check) String() string {
	switch c {
	case CheckShape:
		return "shape"
	case CheckMatch:
		return "match"
	case CheckDeadlock:
		return "deadlock"
	case CheckRace:
		return "race"
	case CheckValue:
		return "value"
	case CheckResult:
		return "result"
	}
	return fmt.Sprintf("Check(%d)", uint8(c))
}

// Fault is the error of Verify: what is wrong, and where.
type Fault struct {
	Check Check
	Rank  kolo.Rank // NoRank: no rank in particular
	Step  int       // index in the rank's Program; -1: no step in particular
	Peer  kolo.Rank // the other end, NoRank if there is none
	Text  string    // the whole line without the part's name
}

// Error is one line: part, rank, step in words, and what is wrong with it.
func (f *Fault) Error() string { return "plan: " + f.Check.String() + ": " + f.Text }

// Programs compiles the Program of every rank of t. Where they may be shared, they are.
func Programs(k Key, t *Topology) ([]*Program, error) {
	out := make([]*Program, t.Ranks())
	var w writer
	for r := range out {
		p, shared, err := w.program(k, t, kolo.Rank(r))
		if err != nil {
			return nil, err
		}
		out[r] = p
		if !shared {
			continue
		}
		for q := range out {
			out[q] = p.rotated(kolo.Rank(q))
		}
		break
	}
	return out, nil
}

// Verify proves that programs, one per rank, do what key asks for whatever the
// counts, the timing and the contents are: they fit together, cannot deadlock,
// have no race, and leave the right value in every block. The error is a *Fault.
// What a fabric step does is taken on trust: it is the collective by definition.
func Verify(key Key, programs []*Program) (Report, error) {
	c, err := assemble(key, programs)
	if err != nil {
		return Report{}, err
	}
	_, report, err := c.prove(newValues(c))
	return report, err
}

// Complete is Verify for Programs that do not say which of their steps are final, such
// as those from outside: on the way it sets Final where it belongs. The Programs must
// not share their steps.
func Complete(key Key, programs []*Program) (Report, error) {
	c, err := assemble(key, programs)
	if err != nil {
		return Report{}, err
	}
	v := newValues(c)
	v.mark = true
	_, report, err := c.prove(v)
	return report, err
}

// prove makes all parts of the proof but that of the headers, with an order in which
// the steps may run.
func (c *choreography) prove(v *values) ([]event, Report, error) {
	report := Report{Ranks: len(c.programs), Steps: len(c.owner), SameBits: true, OnePass: true}
	if c.fabric() {
		return nil, report, c.checkFabric()
	}
	alike := c.turned()
	for r := range c.programs {
		if alike && r > 0 {
			break
		}
		if err := c.checkSteps(r); err != nil {
			return nil, Report{}, err
		}
	}
	if err := c.match(); err != nil {
		return nil, Report{}, err
	}
	report.Messages = len(c.sender)
	order, credits, err := c.schedule()
	if err != nil {
		return nil, Report{}, err
	}
	report.Credits = credits
	if err := c.checkRaces(order); err != nil {
		return nil, Report{}, err
	}
	if c.key.Collective == kolo.Barrier {
		return order, report, c.checkBarrier(order)
	}
	if err := v.check(order, &report); err != nil {
		return nil, Report{}, err
	}
	return order, report, nil
}

// choreography is a set of Programs, one per rank, looked at as one. Steps of all
// ranks are numbered through: step i of rank r is first[r]+i.
type choreography struct {
	key      Key
	programs []*Program
	first    []int32           // by rank, and one more
	owner    []int32           // by step: its rank
	base     [][numBuffers]int // by rank: number of block 0 of each buffer among the rank's slots
	after    []*Successors     // by rank

	// A message is one send to one peer. They are numbered by connection, and
	// within it in their order.
	ends     []int32 // by step: ends[i]:ends[i+1] are its places in message
	message  []int32 // for each peer of each step: the message
	sender   []int32 // by message: step
	receiver []int32 // by message: step
	line     []int32 // by message: number of its connection
}

// assemble numbers the steps and checks what the Programs say of themselves.
func assemble(key Key, programs []*Program) (*choreography, error) {
	c := &choreography{key: key, programs: programs, first: make([]int32, 1, len(programs)+1)}
	if len(programs) == 0 || key.Collective.Base().Rooted() && (key.Root < 0 || int(key.Root) >= len(programs)) {
		return nil, &Fault{CheckShape, kolo.NoRank, -1, kolo.NoRank, fmt.Sprintf("%d programs with root %d", len(programs), int(key.Root))}
	}
	for r, p := range programs {
		if p == nil {
			return nil, &Fault{CheckShape, kolo.Rank(r), -1, kolo.NoRank, fmt.Sprintf("rank %d has no program", r)}
		}
		if err := c.checkHeader(kolo.Rank(r)); err != nil {
			return nil, err
		}
		var base [numBuffers]int
		for b := 1; b < int(numBuffers); b++ {
			base[b] = base[b-1] + p.Blocks[b-1]
		}
		c.base = append(c.base, base)
		c.first = append(c.first, c.first[r]+int32(len(p.Steps)))
		for range p.Steps {
			c.owner = append(c.owner, int32(r))
		}
	}
	return c, nil
}

// checkHeader compares a Program's own words and buffers with the key.
func (c *choreography) checkHeader(r kolo.Rank) error {
	p, k, n := c.programs[r], c.key, len(c.programs)
	base := k.Collective.Base()
	chunks := 1
	if chunked(base) {
		chunks = n
	}
	differ := func(what string, got, want any) error {
		return &Fault{CheckShape, r, -1, kolo.NoRank, fmt.Sprintf("program %d says %s %v instead of %v", r, what, got, want)}
	}
	switch {
	case p.Rank != r:
		return differ("rank", int(p.Rank), int(r))
	case p.Ranks != n:
		return differ("number of ranks", p.Ranks, n)
	case p.Collective != base:
		return differ("collective", p.Collective, base)
	case base.Rooted() && p.Root != k.Root:
		return differ("root", int(p.Root), int(k.Root))
	case p.InPlace != k.InPlace:
		return differ("in place", p.InPlace, k.InPlace)
	case p.Chunks != chunks:
		return differ("chunks", p.Chunks, chunks)
	case p.Parts < 1 || p.Parts != c.programs[0].Parts:
		return differ("parts", p.Parts, max(1, c.programs[0].Parts))
	}
	in, out := p.Buffers()
	if p.Blocks[In] != in || p.Blocks[Out] != out {
		return differ("blocks of in and out", p.Blocks[:Scratch], []int{in, out})
	}
	if p.Blocks[Scratch] < 0 {
		return differ("blocks of scratch", p.Blocks[Scratch], 0)
	}
	return checkLike(p, k.Collective, differ)
}

// checkLike looks at what a Program says of the lengths of its blocks.
func checkLike(p *Program, c kolo.Collective, differ func(what string, got, want any) error) error {
	if p.Like == nil {
		return nil
	}
	if c != p.Collective {
		return differ("lengths for scratch and collective", c, p.Collective)
	}
	if len(p.Like) != p.Blocks[Scratch] {
		return differ("number of lengths for scratch", len(p.Like), p.Blocks[Scratch])
	}
	for _, k := range p.Like {
		if k < 0 || int(k) >= p.Chunks*p.Parts {
			return differ("a block of scratch to be like block", k, "one of the vector")
		}
	}
	return nil
}

// chunked says whether the whole vector has a chunk per rank.
func chunked(base kolo.Collective) bool {
	switch base {
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		return true
	}
	return false
}

// Buffers is how many blocks In and Out must have on the Program's rank, by its
// collective, place, root, rank, chunks and parts.
func (p *Program) Buffers() (in, out int) {
	n, root := p.Chunks*p.Parts, p.Rank == p.Root
	switch p.Collective {
	case kolo.Broadcast:
		return 0, n
	case kolo.AllReduce, kolo.Barrier, kolo.AllToAll:
		in, out = n, n
	case kolo.Reduce:
		in = n
		if root {
			out = n
		}
	case kolo.AllGather:
		in, out = p.Parts, n
	case kolo.Gather:
		in = p.Parts
		if root {
			out = n
		}
	case kolo.ReduceScatter:
		in, out = n, p.Parts
	case kolo.Scatter:
		out = p.Parts
		if root {
			in = n
		}
	}
	if p.InPlace && in > 0 && out > 0 {
		if inIsWhole(p.Collective) {
			return in, 0
		}
		return 0, out
	}
	return in, out
}

// inIsWhole says that In is the larger buffer, so that it is In which is written
// where the call is in place.
func inIsWhole(base kolo.Collective) bool { return base == kolo.ReduceScatter || base == kolo.Scatter }

func (c *choreography) fabric() bool {
	for _, p := range c.programs {
		for i := range p.Steps {
			if p.Steps[i].Op == Fabric {
				return true
			}
		}
	}
	return false
}

// checkFabric: the medium does the whole collective, so each rank must come to
// it, and no step may be beside it.
func (c *choreography) checkFabric() error {
	for r, p := range c.programs {
		if len(p.Steps) == 0 {
			return &Fault{CheckMatch, kolo.Rank(r), -1, kolo.NoRank,
				fmt.Sprintf("rank %d has no fabric step, so the others' would wait for it for ever", r)}
		}
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Op != Fabric || i > 0 || len(s.Peers)+len(s.After) > 0 {
				return c.fault(CheckShape, r, i, kolo.NoRank, "a fabric step must be alone in its program")
			}
		}
	}
	return nil
}

// fault is the error for step i of rank r.
func (c *choreography) fault(check Check, r, i int, peer kolo.Rank, format string, args ...any) *Fault {
	return &Fault{check, kolo.Rank(r), i, peer, c.name(r, i) + ": " + fmt.Sprintf(format, args...)}
}

// name is "rank 3, step 4 (send out[2] to rank 4)".
func (c *choreography) name(r, i int) string {
	return fmt.Sprintf("rank %d, step %d (%s)", r, i, c.programs[r].Describe(i))
}

// local is the rank and the index in its Program of a step.
func (c *choreography) local(step int32) (r, i int) {
	r = int(c.owner[step])
	return r, int(step - c.first[r])
}

func (c *choreography) step(step int32) *Step {
	r, i := c.local(step)
	return &c.programs[r].Steps[i]
}

// stepName is name for a step by its number.
func (c *choreography) stepName(step int32) string { return c.name(c.local(step)) }

// slots appends the blocks of spans, in order, numbered through all buffers of
// rank r.
func (c *choreography) slots(dst []int32, r int, spans []Span) []int32 {
	p := c.programs[r]
	for _, s := range spans {
		base, n := int32(c.base[r][s.Buf]), int32(p.Blocks[s.Buf])
		s = p.Span(s)
		at, stride := s.Off, s.Stride%n
		for range s.N {
			dst = append(dst, base+at)
			if at += stride; at >= n {
				at -= n
			} else if at < 0 {
				at += n
			}
		}
	}
	return dst
}

// place is the inverse of slots: which block of which buffer a slot is.
func (c *choreography) place(r int, slot int32) place {
	b := numBuffers - 1
	for b > 0 && c.base[r][b] > int(slot) {
		b--
	}
	return place{b, slot - int32(c.base[r][b])}
}

// slotName is "out[3]".
func (c *choreography) slotName(r int, slot int32) string {
	at := c.place(r, slot)
	return fmt.Sprintf("%v[%d]", at.buf, at.block)
}

// Describe is step i in words, as "send out[2] to rank 4".
func (p *Program) Describe(i int) string {
	s := &p.Steps[i]
	var peers []kolo.Rank
	for _, q := range s.Peers {
		peers = append(peers, p.Peer(q))
	}
	with := "rank " + kolo.RankList(peers)
	if s.Lane > 0 {
		with += fmt.Sprintf(" on lane %d", s.Lane)
	}
	src, dst := p.spanNames(s.Src), p.spanNames(s.Dst)
	switch s.Op {
	case Send:
		return "send " + src + " to " + with
	case Recv:
		return "recv " + dst + " from " + with
	case RecvReduce:
		text := "recv-reduce "
		if s.Final {
			text = "final recv-reduce "
		}
		return text + src + " and " + with + " into " + dst
	case Copy, Scale:
		return s.Op.String() + " " + src + " to " + dst
	case Reduce:
		text := "reduce "
		if s.Final {
			text = "final reduce "
		}
		return text + src + " into " + dst
	}
	return s.Op.String()
}

// spanNames is "in[0:4] out[7 5 3]".
func (p *Program) spanNames(list []Span) string {
	const most = 6
	var b strings.Builder
	for k, s := range list {
		if k > 0 {
			b.WriteByte(' ')
		}
		if k == most {
			fmt.Fprintf(&b, "and %d more spans", len(list)-most)
			break
		}
		if s.Buf >= numBuffers || p.Blocks[s.Buf] == 0 {
			fmt.Fprintf(&b, "%v%v", s.Buf, []int32{s.Off, s.N, s.Stride})
			continue
		}
		q := p.Span(s)
		if q.Stride == 1 && q.N > 1 && int(q.Off+q.N) <= p.Blocks[q.Buf] {
			fmt.Fprintf(&b, "%v[%d:%d]", q.Buf, q.Off, q.Off+q.N)
			continue
		}
		q.N = min(q.N, most)
		var blocks []int
		p.At(Span{q.Buf, s.Off, q.N, q.Stride}, func(block int) { blocks = append(blocks, block) })
		fmt.Fprintf(&b, "%v%v", q.Buf, blocks)
		if s.N > most {
			fmt.Fprintf(&b, " and %d more", s.N-most)
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return b.String()
}
