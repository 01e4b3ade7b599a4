package plan

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Every step has two events, begin and end. What must come before what:
//
//	begin(i) -> end(i)
//	end(a)   -> begin(i)   for a in After(i)
//	begin(i) -> begin(j)   j the next step of i's connection
//	begin(s) -> end(r)     send s meets receive r: data
//	end(r)   -> end(s)     only without credits: the sender's memory is read until then
//
// No event ever takes away what another one waits for, so if one order of events
// reaches the end, all do: running the Programs once proves them free of deadlock.
//
// With C credits a connection holds up to C messages that were sent and not yet
// received, so the k-th send may also end once receive k-C has ended.

// event is 2*step for its begin and 2*step+1 for its end.
type event = int32

// schedule finds the least number of credits with which all steps can run, and an
// order of their events.
func (c *choreography) schedule() (order []event, credits int, err error) {
	c.reverse()
	if order, ok := newPlay(c, 0).run(); ok {
		return order, 0, nil
	}
	low, high := 0, len(c.sender) // low is too few
	p := newPlay(c, high)
	if order, ok := p.run(); !ok {
		return nil, 0, p.deadlock()
	} else if high <= 1 {
		return order, high, nil
	}
	for high-low > 1 {
		mid := (low + high) / 2
		if low == 0 && high > 2 {
			mid = 1 // the likely answer
		}
		if _, ok := newPlay(c, mid).run(); ok {
			high = mid
		} else {
			low = mid
		}
	}
	order, _ = newPlay(c, high).run()
	return order, high, nil
}

// reverse makes the Successors of each rank, once for Programs that share their steps.
func (c *choreography) reverse() {
	c.after = make([]*Successors, len(c.programs))
	made := map[*Step]*Successors{}
	for r, p := range c.programs {
		if len(p.Steps) == 0 {
			c.after[r] = NewSuccessors(p)
			continue
		}
		key := &p.Steps[0]
		if made[key] == nil {
			made[key] = NewSuccessors(p)
		}
		c.after[r] = made[key]
	}
}

// play runs all steps once.
type play struct {
	c       *choreography
	credits int32
	wait    []int32 // by step: what its begin still waits for
	hold    []int32 // by step: what its end still waits for
	free    []bool  // by message: it no longer holds up its send
	order   []event // events that may happen, in the order in which they were found
	taken   int     // events of order that have happened
}

func newPlay(c *choreography, credits int) *play {
	n := len(c.owner)
	p := &play{c: c, credits: int32(credits), wait: make([]int32, 0, n), hold: make([]int32, n),
		free: make([]bool, len(c.sender)), order: make([]event, 0, 2*n)}
	for r := range c.programs {
		p.wait = append(p.wait, c.after[r].wait...)
	}
	for i := range n {
		p.hold[i] = 1 + c.ends[i+1] - c.ends[i]
		if p.wait[i] == 0 {
			p.order = append(p.order, event(2*i))
		}
	}
	for m := range c.sender {
		if k := int32(m) - p.credits; k < 0 || c.line[k] != c.line[m] {
			p.release(int32(m))
		}
	}
	return p
}

// run returns the order of all events, or false if some can never happen.
func (p *play) run() ([]event, bool) {
	for ; p.taken < len(p.order); p.taken++ {
		if e := p.order[p.taken]; e&1 == 0 {
			p.begin(e / 2)
		} else {
			p.end(e / 2)
		}
	}
	return p.order, len(p.order) == cap(p.order)
}

func (p *play) begin(step int32) {
	c := p.c
	r, i := c.local(step)
	s := c.after[r]
	for _, k := range s.follow[s.ffirst[i]:s.ffirst[i+1]] {
		p.allow(c.first[r] + k)
	}
	p.let(step)
	if c.programs[r].Steps[i].Op == Send {
		for _, m := range c.messages(step) {
			p.let(c.receiver[m])
		}
	}
}

func (p *play) end(step int32) {
	c := p.c
	r, i := c.local(step)
	s := c.after[r]
	for _, k := range s.next[s.first[i]:s.first[i+1]] {
		p.allow(c.first[r] + k)
	}
	if c.programs[r].Steps[i].Op == Send {
		return
	}
	for _, m := range c.messages(step) {
		p.release(m)
		if k := int(m) + int(p.credits); k < len(c.line) && c.line[k] == c.line[m] {
			p.release(int32(k))
		}
	}
}

// messages are those of a step, one per peer.
func (c *choreography) messages(step int32) []int32 {
	return c.message[c.ends[step]:c.ends[step+1]]
}

func (p *play) allow(step int32) {
	if p.wait[step]--; p.wait[step] == 0 {
		p.order = append(p.order, 2*step)
	}
}

func (p *play) let(step int32) {
	if p.hold[step]--; p.hold[step] == 0 {
		p.order = append(p.order, 2*step+1)
	}
}

func (p *play) release(m int32) {
	if !p.free[m] {
		p.free[m] = true
		p.let(p.c.sender[m])
	}
}

// deadlock is the error of a run that got stuck: a circle of steps each of which
// waits for the next.
func (p *play) deadlock() error {
	happened := make([]bool, 2*len(p.c.owner))
	for _, e := range p.order {
		happened[e] = true
	}
	at := int32(0)
	for happened[2*at+1] {
		at++
	}
	seen := map[int32]int{}
	var circle []int32
	for {
		if k, ok := seen[at]; ok {
			circle = circle[k:]
			break
		}
		seen[at] = len(circle)
		circle = append(circle, at)
		at = p.blocker(at, happened)
	}
	const most = 6
	var b strings.Builder
	for k, step := range circle {
		if k == most {
			fmt.Fprintf(&b, " ... waits for %d more, the last of which", len(circle)-most)
			break
		}
		if k > 0 {
			b.WriteString(" waits for ")
		}
		b.WriteString(p.c.stepName(step))
	}
	r, i := p.c.local(circle[0])
	peer := kolo.NoRank
	for _, step := range circle {
		if q, _ := p.c.local(step); q != r {
			peer = kolo.Rank(q)
			break
		}
	}
	return &Fault{CheckDeadlock, kolo.Rank(r), i, peer, b.String() + " waits for the first"}
}

// blocker is a step that must begin or end before the given one can go on.
func (p *play) blocker(step int32, happened []bool) int32 {
	c := p.c
	r, i := c.local(step)
	s := &c.programs[r].Steps[i]
	if happened[2*step] {
		for _, m := range c.messages(step) {
			if s.Op == Send && !p.free[m] {
				return c.receiver[m]
			}
			if s.Op != Send && !happened[2*c.sender[m]] {
				return c.sender[m]
			}
		}
	}
	for _, a := range s.After {
		if at := c.first[r] + a; !happened[2*at+1] {
			return at
		}
	}
	// The step before it must have begun; and where Successors has a window, the
	// one that is the window before it must have ended.
	for late := range int32(2) {
		for _, m := range c.messages(step) {
			for q := c.previous(step, m); q >= 0; m-- {
				if !happened[2*q+late] {
					return q
				}
				q = c.previous(q, m-1)
			}
		}
	}
	panic("plan: " + c.stepName(step) + " is stuck and nothing holds it")
}

// previous is the step before this one at this rank's end of message m's
// connection, -1 if it is the first.
func (c *choreography) previous(step, m int32) int32 {
	if m == 0 || c.line[m-1] != c.line[m] {
		return -1
	}
	if c.sender[m] == step {
		return c.sender[m-1]
	}
	return c.receiver[m-1]
}
