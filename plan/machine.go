package plan

import "fmt"

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
	open  int // steps begun and not ended
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
	n := len(p.Steps)
	s := &Successors{first: make([]int32, n+1), wait: make([]int32, n), ffirst: make([]int32, n+1),
		nfirst: make([]int32, n)}
	type pair struct{ a, b int32 }
	var order, held []pair
	last := map[connection][]int32{}
	total := 0
	for i := range p.Steps {
		st := &p.Steps[i]
		s.wait[i] = int32(len(st.After))
		s.nfirst[i] = int32(len(s.number))
		total += len(st.After)
		for _, a := range st.After {
			s.first[a+1]++
		}
		for _, q := range st.Peers {
			c := connection{send: st.Op == Send, peer: int32(q), lane: st.Lane}
			seen := last[c]
			if k := len(seen) - 1; k >= 0 {
				order = append(order, pair{seen[k], int32(i)})
				s.wait[i]++
				s.ffirst[seen[k]+1]++
			}
			if k := len(seen) - window; k >= 0 {
				held = append(held, pair{seen[k], int32(i)})
				s.wait[i]++
				s.first[seen[k]+1]++
				total++
			}
			s.number = append(s.number, uint32(len(seen)))
			last[c] = append(seen, int32(i))
		}
	}
	s.next, s.follow = make([]int32, total), make([]int32, len(order))
	for i := range n {
		s.first[i+1] += s.first[i]
		s.ffirst[i+1] += s.ffirst[i]
	}
	fill := append([]int32(nil), s.first[:n]...)
	for i := range p.Steps {
		for _, a := range p.Steps[i].After {
			s.next[fill[a]] = int32(i)
			fill[a]++
		}
	}
	for _, h := range held {
		s.next[fill[h.a]] = h.b
		fill[h.a]++
	}
	ffill := append([]int32(nil), s.ffirst[:n]...)
	for _, o := range order {
		s.follow[ffill[o.a]] = o.b
		ffill[o.a]++
	}
	return s
}

// connection is one end of a FIFO of steps.
type connection struct {
	send bool
	peer int32
	lane uint8
}

// Reset starts a run of p, whose reverse lists are s.
func (m *Machine) Reset(p *Program, s *Successors) {
	m.p, m.after, m.head, m.open, m.left = p, s, 0, 0, len(p.Steps)
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
	m.open++
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
	m.open--
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

// Running is the number of steps begun and not ended.
func (m *Machine) Running() int { return m.open }

// Progress is the number of steps that have ended, and of all.
func (m *Machine) Progress() (ended, all int) { return len(m.wait) - m.left, len(m.wait) }

// Waiting appends the steps that have begun and not ended, for a diagnosis.
func (m *Machine) Waiting(dst []int) []int {
	for i, w := range m.wait {
		if w == -1 {
			dst = append(dst, i)
		}
	}
	return dst
}
