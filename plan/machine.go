package plan

import (
	"fmt"
	"slices"
)

// Machine runs one Program: it says which steps may begin and takes note of
// those that have ended. It has no clock and calls nothing back. One owner at a
// time; Reset makes it ready for another run without allocating where the
// Program is no longer than the last.
type Machine struct {
	p     *Program
	after *Successors
	wait  []int32 // per step: what it still waits for; -1 begun, -2 ended
	ready []int32 // may begin, in step order of becoming ready
	head  int
	left  int // steps that have not ended
}

// Successors is the reverse of a Program's After lists and of the order in which
// the steps of a connection begin. It belongs to the Program and may be shared.
type Successors struct {
	first []int32 // steps that come after step i: next[first[i]:first[i+1]]
	next  []int32
	wait  []int32 // per step: number of After
	// follow[i] is the step that may begin only when i has begun: the next one of
	// the same connection; -1 none. A step on several connections has several.
	ffirst, follow []int32
	// number[nfirst[i]+k] is which message of its connection step i's k-th peer gets.
	nfirst []int32
	number []uint32
}

// Number is which message of its connection step i exchanges with its k-th peer,
// from 0. Both ends count alike.
func (s *Successors) Number(i, k int) uint32 { return s.number[int(s.nfirst[i])+k] }

// window is how many steps of one connection run at a time. A step waits for the
// end of the window-th before it. That cannot deadlock what rendezvous does not:
// the ends of a connection's steps come in order anyway.
const window = 8

// NewSuccessors makes the reverse lists of p.
func NewSuccessors(p *Program) *Successors {
	n, peers := len(p.Steps), 0
	for i := range p.Steps {
		peers += len(p.Steps[i].Peers)
	}
	s := &Successors{first: make([]int32, n+1), wait: make([]int32, n), ffirst: make([]int32, n+1),
		nfirst: make([]int32, n), number: make([]uint32, 0, peers)}
	ends := newEnds(p, peers)
	before := make([]int32, 0, 2*peers) // for each message: the step before it at this end, and the one a window before it; -1 none
	total, order := 0, 0
	for i := range p.Steps {
		st := &p.Steps[i]
		s.wait[i] = int32(len(st.After))
		s.nfirst[i] = int32(len(s.number))
		total += len(st.After)
		for _, a := range st.After {
			s.first[a+1]++
		}
		for _, q := range st.Peers {
			number, last, late := ends.of(connection{send: st.Op == Send, peer: int32(q), lane: st.Lane}).add(int32(i))
			if last >= 0 {
				s.wait[i]++
				s.ffirst[last+1]++
				order++
			}
			if late >= 0 {
				s.wait[i]++
				s.first[late+1]++
				total++
			}
			s.number, before = append(s.number, number), append(before, last, late)
		}
	}
	s.next, s.follow = make([]int32, total), make([]int32, order)
	s.fill(p, before)
	return s
}

// fill writes next and follow, whose sizes are in first and ffirst.
func (s *Successors) fill(p *Program, before []int32) {
	n := len(p.Steps)
	for i := range n {
		s.first[i+1] += s.first[i]
		s.ffirst[i+1] += s.ffirst[i]
	}
	next, follow := slices.Clone(s.first[:n]), slices.Clone(s.ffirst[:n])
	put := func(list, at []int32, a int32, i int) {
		if a >= 0 {
			list[at[a]] = int32(i)
			at[a]++
		}
	}
	for i := range p.Steps {
		for _, a := range p.Steps[i].After {
			put(s.next, next, a, i)
		}
		for range p.Steps[i].Peers {
			put(s.follow, follow, before[0], i)
			put(s.next, next, before[1], i)
			before = before[2:]
		}
	}
}

// connection is one end of a FIFO of steps.
type connection struct {
	send bool
	peer int32
	lane uint8
}

// end is how far a connection has come.
type end struct {
	count uint32
	steps [window]int32 // the last ones, by their number modulo window
}

// add makes step the next one of the connection: its number, the step before it and the
// one that is window before it, -1 where there is none.
func (e *end) add(step int32) (number uint32, last, late int32) {
	number, last, late = e.count, -1, -1
	if number > 0 {
		last = e.steps[(number-1)%window]
	}
	if number >= window {
		late = e.steps[number%window]
	}
	e.steps[number%window] = step
	e.count++
	return number, last, late
}

// ends finds the connections of one rank.
type ends struct {
	ranks int
	dense []int32              // 1 + index in list, by lane, direction and peer; nil: there are few for so many ranks
	other map[connection]int32 // those that are not in dense
	list  []end
}

func newEnds(p *Program, messages int) *ends {
	lanes := 0
	for i := range p.Steps {
		lanes = max(lanes, int(p.Steps[i].Lane)+1)
	}
	e := &ends{ranks: p.Ranks, other: map[connection]int32{}}
	if size := 2 * lanes * p.Ranks; size <= 8*messages {
		e.dense = make([]int32, size)
	}
	return e
}

func (e *ends) of(c connection) *end {
	at := 2*int(c.lane)*e.ranks + int(c.peer)
	if c.send {
		at += e.ranks
	}
	inside := c.peer >= 0 && int(c.peer) < e.ranks && at < len(e.dense)
	k := int32(0)
	if inside {
		k = e.dense[at]
	} else {
		k = e.other[c]
	}
	if k > 0 {
		return &e.list[k-1]
	}
	e.list = append(e.list, end{})
	k = int32(len(e.list))
	if inside {
		e.dense[at] = k
	} else {
		e.other[c] = k
	}
	return &e.list[k-1]
}

// Reset starts a run of p, whose reverse lists are s.
func (m *Machine) Reset(p *Program, s *Successors) {
	m.p, m.after, m.head, m.left = p, s, 0, len(p.Steps)
	m.wait = append(m.wait[:0], s.wait...)
	m.ready = m.ready[:0]
	for i, w := range m.wait {
		if w == 0 {
			m.ready = append(m.ready, int32(i))
		}
	}
}

// Next begins a step and returns its index, or false when none may begin now.
func (m *Machine) Next() (int, bool) {
	if m.head == len(m.ready) {
		m.ready, m.head = m.ready[:0], 0
		return 0, false
	}
	i := m.ready[m.head]
	m.head++
	m.wait[i] = -1
	for _, k := range m.after.follow[m.after.ffirst[i]:m.after.ffirst[i+1]] {
		m.release(k)
	}
	return int(i), true
}

// Done says that step i has ended. It panics if the step is not running.
func (m *Machine) Done(i int) {
	if m.wait[i] != -1 {
		panic(fmt.Sprintf("plan: step %d ended but is not running", i))
	}
	m.wait[i] = -2
	m.left--
	for _, k := range m.after.next[m.after.first[i]:m.after.first[i+1]] {
		m.release(k)
	}
}

func (m *Machine) release(k int32) {
	if m.wait[k]--; m.wait[k] == 0 {
		m.ready = append(m.ready, k)
	}
}

// Ended says whether every step has ended.
func (m *Machine) Ended() bool { return m.left == 0 }

// Progress is the number of steps that have ended, and of all.
func (m *Machine) Progress() (ended, all int) { return len(m.wait) - m.left, len(m.wait) }

// State says whether step i has begun, and whether it has ended.
func (m *Machine) State(i int) (begun, ended bool) { return m.wait[i] < 0, m.wait[i] == -2 }
