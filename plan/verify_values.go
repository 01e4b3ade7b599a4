package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// value is what a slot holds, in symbols: which block it is a value of, and for a
// reducing collective whose contributions it has in it.
type value struct {
	// block is one of the whole vector, by which the collective's result is said:
	// rank*blocks + block for AllToAll, where each rank has a vector of its own.
	block  int32
	set    int32  // the ranks that have contributed; see sets
	fold   uint64 // equal numbers: made by the same additions, but for the order of two operands
	scaled bool   // multiplied, for PreMulSum
	final  bool   // divided, for Avg
}

// values runs the Programs on values.
type values struct {
	c     *choreography
	sets  *sets
	known []value           // known[0] stands for nothing known
	at    [][]int32         // by rank and slot: index into known
	begin [][]int32         // at, before the first step
	held  map[int32][]int32 // by send step: what it gave, if it ended before all that was taken
	left  []int32           // by step: messages of a send that were not yet taken
	mark  bool              // the steps do not say which of them are final: note it
	note  func(r, i int)    // called for each step when it is done; may be nil

	wasted int // see Report

	src, dst []int32 // of the step at hand
	got      []int32 // what it has taken
	operands []operand
}

// operand is one source of a fold.
type operand struct {
	rank kolo.Rank
	vals []int32
}

func newValues(c *choreography) *values {
	return &values{c: c, sets: newSets(len(c.programs)), held: map[int32][]int32{}}
}

// check runs the steps in an order in which they may happen, and looks at the
// result. Since there is no race, the values are the same in every order. It adds
// what it learns to the report.
func (v *values) check(order []event, report *Report) error {
	c := v.c
	v.start()
	v.left = make([]int32, len(c.owner))
	for i := range v.left {
		v.left[i] = c.ends[i+1] - c.ends[i]
	}
	for _, e := range order {
		if e&1 == 0 {
			continue
		}
		if err := v.end(e / 2); err != nil {
			return err
		}
	}
	report.Wasted = v.wasted
	return v.checkResult(report)
}

// start gives each rank what it has before the call.
func (v *values) start() {
	c := v.c
	total := 1
	for _, p := range c.programs {
		_, _, n, _ := input(p)
		total += n
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Op == RecvReduce || s.Op == Scale || s.Op == Reduce {
				total += width(s.Dst)
			}
		}
	}
	v.known = make([]value, 1, total)
	for r, p := range c.programs {
		v.at = append(v.at, make([]int32, c.base[r][Scratch]+p.Blocks[Scratch]))
		buf, first, n, block := input(p)
		for i := range n {
			v.at[r][c.base[r][buf]+first+i] = int32(len(v.known))
			v.known = append(v.known, value{block: int32(block + i), set: int32(r), fold: mix(uint64(r) + 1)})
		}
		v.begin = append(v.begin, slices.Clone(v.at[r]))
	}
}

// width is the number of blocks of spans.
func width(spans []Span) int {
	n := 0
	for _, s := range spans {
		n += int(s.N)
	}
	return n
}

// input is where p's rank has its own data: n blocks of a buffer from first on,
// which are the blocks of the whole vector from block on.
func input(p *Program) (buf Buffer, first, n, block int) {
	all, me := p.Chunks*p.Parts, int(p.Rank)*p.Parts
	whole, root := In, p.Rank == p.Root
	if p.Blocks[In] == 0 {
		whole = Out
	}
	switch p.Collective {
	case kolo.Broadcast, kolo.Scatter:
		if !root {
			return In, 0, 0, 0
		}
	case kolo.AllGather, kolo.Gather:
		if whole == Out {
			return Out, me, p.Parts, me
		}
		return In, 0, p.Parts, me
	case kolo.AllToAll:
		return whole, 0, all, int(p.Rank) * all
	}
	return whole, 0, all, 0
}

// output is where p's rank must have its result, in the same way.
func output(p *Program) (buf Buffer, first, n, block int) {
	all, me := p.Chunks*p.Parts, int(p.Rank)*p.Parts
	switch p.Collective {
	case kolo.Reduce, kolo.Gather:
		if p.Rank != p.Root {
			return Out, 0, 0, 0
		}
	case kolo.ReduceScatter, kolo.Scatter:
		if p.Blocks[Out] == 0 {
			return In, me, p.Parts, me
		}
		return Out, 0, p.Parts, me
	}
	return Out, 0, all, 0
}

// end does what a step has done when it ends.
func (v *values) end(step int32) error {
	c := v.c
	r, i := c.local(step)
	s := &c.programs[r].Steps[i]
	v.src, v.dst, v.got = c.slots(v.src[:0], r, s.Src), c.slots(v.dst[:0], r, s.Dst), v.got[:0]
	for k, slot := range v.src {
		if v.at[r][slot] == 0 {
			return c.fault(CheckValue, r, i, kolo.NoRank, "it reads %s, its block %d, which nothing has written", c.slotName(r, slot), k)
		}
		v.src[k] = v.at[r][slot]
	}
	var err error
	switch s.Op {
	case Send:
		if v.left[step] > 0 {
			v.held[step] = slices.Clone(v.src)
		}
	case Copy:
		v.store(r, v.src)
	case Reduce:
		err = v.reduce(r, i)
	case Scale:
		err = v.scale(r, i)
	case Recv:
		var got []int32
		if got, err = v.take(step, c.messages(step)[0]); err == nil {
			for k, slot := range v.dst {
				if v.at[r][slot] == got[k] {
					v.wasted++
				}
			}
			v.store(r, got)
		}
	case RecvReduce:
		err = v.fold(r, i, step)
	}
	if v.note != nil && err == nil {
		v.note(r, i)
	}
	return err
}

func (v *values) store(r int, vals []int32) {
	for k, slot := range v.dst {
		v.at[r][slot] = vals[k]
	}
}

// take is what a message carries. Nobody writes to the sender's blocks before its
// send has ended, so they may be read now even if that send began long ago.
func (v *values) take(step, m int32) ([]int32, error) {
	c, from := v.c, v.c.sender[m]
	v.left[from]--
	if got, ok := v.held[from]; ok {
		if v.left[from] == 0 {
			delete(v.held, from)
		}
		return got, nil
	}
	q, j := c.local(from)
	start := len(v.got)
	v.got = c.slots(v.got, q, c.programs[q].Steps[j].Src)
	got := v.got[start:]
	for k, slot := range got {
		if v.at[q][slot] == 0 {
			return nil, c.fault(CheckValue, q, j, kolo.Rank(c.owner[step]), "it sends %s, its block %d, which nothing has written", c.slotName(q, slot), k)
		}
		got[k] = v.at[q][slot]
	}
	return got, nil
}

// scale multiplies the blocks in v.src.
func (v *values) scale(r, i int) error {
	for k, x := range v.src {
		val := v.known[x]
		switch {
		case !v.c.key.Scale || !v.c.programs[r].Collective.Reduces():
			return v.c.fault(CheckValue, r, i, kolo.NoRank, "this call multiplies nothing")
		case val.scaled:
			return v.c.fault(CheckValue, r, i, kolo.NoRank, "its block %d has been multiplied before", k)
		case v.sets.size[val.set] != 1:
			return v.c.fault(CheckValue, r, i, kolo.NoRank, "its block %d is a sum already; each contribution must be multiplied by itself", k)
		}
		val.scaled = true
		v.src[k] = int32(len(v.known))
		v.known = append(v.known, val)
	}
	v.store(r, v.src)
	return nil
}

// fold adds the messages of a step to the blocks in v.src, in rank order.
func (v *values) fold(r, i int, step int32) error {
	c := v.c
	p := c.programs[r]
	if !p.Collective.Reduces() {
		return c.fault(CheckValue, r, i, kolo.NoRank, "%v reduces nothing", p.Collective)
	}
	v.operands = append(v.operands[:0], operand{kolo.Rank(r), v.src})
	for _, m := range c.messages(step) {
		got, err := v.take(step, m)
		if err != nil {
			return err
		}
		v.operands = append(v.operands, operand{kolo.Rank(c.owner[c.sender[m]]), got})
	}
	slices.SortFunc(v.operands, func(a, b operand) int { return cmp.Compare(a.rank, b.rank) })
	return v.sum(r, i)
}

// reduce adds the blocks in v.src to those of the destination.
func (v *values) reduce(r, i int) error {
	c := v.c
	if p := c.programs[r]; !p.Collective.Reduces() {
		return c.fault(CheckValue, r, i, kolo.NoRank, "%v reduces nothing", p.Collective)
	}
	for k, slot := range v.dst {
		if v.at[r][slot] == 0 {
			return c.fault(CheckValue, r, i, kolo.NoRank, "it adds to %s, its block %d, which nothing has written", c.slotName(r, slot), k)
		}
		v.got = append(v.got, v.at[r][slot])
	}
	v.operands = append(v.operands[:0], operand{kolo.Rank(r), v.got}, operand{kolo.Rank(r), v.src})
	return v.sum(r, i)
}

// sum stores the sums of the operands.
func (v *values) sum(r, i int) error {
	c := v.c
	p := c.programs[r]
	for k, slot := range v.dst {
		sum := v.known[v.operands[0].vals[k]]
		var err error
		for _, o := range v.operands[1:] {
			if err = v.add(&sum, v.known[o.vals[k]], o.rank, r, i, k); err != nil {
				return err
			}
		}
		sum.fold = mix(sum.fold)
		whole := v.sets.size[sum.set] == int32(p.Ranks)
		if v.mark && k == 0 {
			p.Steps[i].Final = whole
		}
		switch final := p.Steps[i].Final; {
		case v.mark && final != whole:
			return c.fault(CheckValue, r, i, kolo.NoRank, "it makes some of its blocks complete and others not, so it cannot say whether it is final; split it")
		case final && !whole:
			return c.fault(CheckValue, r, i, kolo.NoRank, "it is final, but the part of rank %d is not in %s", v.sets.missing(sum.set), c.slotName(r, slot))
		case whole && !final:
			return c.fault(CheckValue, r, i, kolo.NoRank, "every rank's part is in %s, but the step is not final", c.slotName(r, slot))
		}
		sum.final = whole
		v.at[r][slot] = int32(len(v.known))
		v.known = append(v.known, sum)
	}
	return nil
}

// add adds the k-th block of one operand.
func (v *values) add(sum *value, x value, from kolo.Rank, r, i, k int) error {
	c := v.c
	switch {
	case sum.block != x.block:
		return c.fault(CheckValue, r, i, from, "its block %d adds block %d of the vector to block %d", k, x.block, sum.block)
	case sum.scaled != x.scaled:
		return c.fault(CheckValue, r, i, from, "its block %d adds what was multiplied and what was not", k)
	case sum.final || x.final:
		return c.fault(CheckValue, r, i, from, "its block %d has an operand that was final", k)
	}
	set, common := v.sets.join(sum.set, x.set)
	if common >= 0 {
		return c.fault(CheckValue, r, i, from, "its block %d adds the part of rank %d a second time", k, common)
	}
	sum.set, sum.fold = set, pair(sum.fold, x.fold)
	return nil
}

// mix spreads the bits of x; the constants are splitmix64's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// pair stands for a sum of two, in either order: that rounds alike.
func pair(a, b uint64) uint64 { return mix(min(a, b) ^ mix(max(a, b))) }

// inRankOrder stands for the fold of all n contributions in one pass.
func inRankOrder(n int) uint64 {
	sum := mix(1)
	for r := 1; r < n; r++ {
		sum = pair(sum, mix(uint64(r)+1))
	}
	if n > 1 {
		sum = mix(sum)
	}
	return sum
}

// checkResult compares each rank's result with the collective's promise.
func (v *values) checkResult(report *Report) error {
	c := v.c
	folds := map[int32]uint64{}
	ordered := inRankOrder(len(c.programs))
	for r, p := range c.programs {
		buf, first, n, block := output(p)
		for i := range n {
			slot := int32(c.base[r][buf] + first + i)
			want := int32(block + i)
			if p.Collective == kolo.AllToAll {
				me, from := r*p.Parts+i%p.Parts, i/p.Parts
				want = int32(from*p.Chunks*p.Parts + me)
			}
			if why := v.wrong(p, slot, want); why != "" {
				return &Fault{CheckResult, kolo.Rank(r), -1, kolo.NoRank, fmt.Sprintf("%s of rank %d %s", c.slotName(r, slot), r, why)}
			}
			if !p.Collective.Reduces() {
				continue
			}
			fold := v.known[v.at[r][slot]].fold
			if old, ok := folds[want]; ok && old != fold {
				report.SameBits = false
			}
			folds[want] = fold
			report.OnePass = report.OnePass && fold == ordered
		}
		if err := v.checkInput(r, buf, first, n); err != nil {
			return err
		}
	}
	return nil
}

// wrong says what is wrong with a result slot, "" for nothing.
func (v *values) wrong(p *Program, slot, want int32) string {
	val := v.known[v.at[p.Rank][slot]]
	n := int32(p.Ranks)
	switch {
	case v.at[p.Rank][slot] == 0:
		return "is never written"
	case val.block != want:
		return fmt.Sprintf("holds block %d of the vector instead of %d", val.block, want)
	case !p.Collective.Reduces():
		return ""
	case v.sets.size[val.set] != n:
		return fmt.Sprintf("lacks the part of rank %d", v.sets.missing(val.set))
	case val.scaled != v.c.key.Scale:
		return "was not multiplied"
	case n > 1 && !val.final:
		return "was not made by a final step"
	}
	return ""
}

// checkInput: what is not result of In is as it was.
func (v *values) checkInput(r int, result Buffer, first, n int) error {
	for i := range v.c.programs[r].Blocks[In] {
		if result == In && i >= first && i < first+n || v.at[r][i] == v.begin[r][i] || v.c.programs[r].Even {
			continue
		}
		return &Fault{CheckResult, kolo.Rank(r), -1, kolo.NoRank,
			fmt.Sprintf("in[%d] of rank %d is not part of the result and has been changed", i, r)}
	}
	return nil
}

// checkBarrier: no rank may end before all have begun. Each step knows of the
// ranks that have begun before it ended, whatever the bytes say.
func (c *choreography) checkBarrier(order []event) error {
	s := newSets(len(c.programs))
	know := make([]int32, len(order)) // by event
	end := make([]int32, len(c.programs))
	for r := range end {
		end[r] = int32(r)
	}
	causes := search{c: c}
	for _, e := range order {
		r, _ := c.local(e / 2)
		know[e] = int32(r)
		causes.causes(e, func(x event) { know[e], _ = s.join(know[e], know[x]) })
		end[r], _ = s.join(end[r], know[e])
	}
	for r, set := range end {
		if int(s.size[set]) != len(c.programs) {
			return &Fault{CheckResult, kolo.Rank(r), -1, kolo.Rank(s.missing(set)),
				fmt.Sprintf("rank %d can leave the barrier before rank %d has come", r, s.missing(set))}
		}
	}
	return nil
}
