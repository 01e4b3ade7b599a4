package plan

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Timeline is what Simulate has found out about a call.
type Timeline struct {
	Total    time.Duration   // when the last rank has ended
	Finish   []time.Duration // by rank
	Levels   [3]Traffic      // by level of the topology; see Topology.Level
	Critical []Leg           // what took the Total: each leg begins where the one before it ends
}

// Traffic is what crosses a level.
type Traffic struct {
	Messages int
	Bytes    int64
}

// Leg is a part of the critical path: a step of a rank that sends to Peer, or that
// folds or copies, where Peer is NoRank.
type Leg struct {
	Rank       kolo.Rank
	Step       int
	Peer       kolo.Rank
	Start, End time.Duration
}

// Simulate runs programs, one per rank of t, in virtual time for call c. It knows no
// chance: the same input gives the same Timeline. Ranks are taken to be devices of
// their own. Each has one port to send and one to receive, and a unit that folds and
// copies one thing after the other at t.Reduce.
//
// A message can go once both its steps have begun. It holds the sender's and the
// receiver's port for size/bandwidth, and arrives a latency later; the latencies of
// several messages overlap. The figures are those of Topology.Edge. A rank's messages
// go in the order in which they could go first, those of one time in the order of the
// Program.
//
// A fabric step costs what Choose takes it to cost.
// AllToAllV, where no rank knows all counts, is simulated as AllToAllVC.
func Simulate(programs []*Program, t *Topology, c *kolo.Call) (Timeline, error) {
	if len(programs) != t.Ranks() || len(programs) == 0 {
		return Timeline{}, fmt.Errorf("%w: %d programs for %d ranks", kolo.ErrArgument, len(programs), t.Ranks())
	}
	if c.Collective == kolo.AllToAllV {
		return Timeline{}, fmt.Errorf("%w: AllToAllV in a simulation: give the whole matrix, as AllToAllVC", kolo.ErrUnsupported)
	}
	if c.Collective == kolo.Barrier {
		c = &kolo.Call{Collective: kolo.Barrier}
	}
	key := KeyOf(c, programs[0].Algorithm)
	key.InPlace = programs[0].InPlace
	all, err := assemble(key, programs)
	if err != nil {
		return Timeline{}, err
	}
	if all.fabric() {
		return all.simulateFabric(t, c)
	}
	for r := range programs {
		if err := all.checkSteps(r); err != nil {
			return Timeline{}, err
		}
	}
	if err := all.match(); err != nil {
		return Timeline{}, err
	}
	s := newSimulation(all, t, c)
	s.run()
	for step, n := range s.left {
		if n >= 0 {
			return Timeline{}, fmt.Errorf("simulation stands still at %v; Verify says why", all.stepName(int32(step)))
		}
	}
	return s.timeline(), nil
}

func (c *choreography) simulateFabric(t *Topology, call *kolo.Call) (Timeline, error) {
	if err := c.checkFabric(); err != nil {
		return Timeline{}, err
	}
	size, err := VectorSize(call, t.Ranks())
	if err != nil {
		return Timeline{}, err
	}
	var row Row
	t.estimate(&row, fabric, call.Collective.Base(), float64(size))
	return Timeline{
		Total:    row.Cost,
		Finish:   slices.Repeat([]time.Duration{row.Cost}, t.Ranks()),
		Critical: []Leg{{Peer: kolo.NoRank, End: row.Cost}},
	}, nil
}

// picos is virtual time in picoseconds. Whole numbers add up to the same on every
// machine; a nanosecond would be too coarse for the blocks of small messages.
type picos int64

func (x picos) duration() time.Duration { return time.Duration((x + 500) / 1000) }

// picosAt is the time that size bytes take at a rate in bytes per second.
func picosAt(size int64, rate float64) picos {
	if size == 0 || rate == 0 {
		return 0
	}
	return picos(math.Round(float64(size) * (1e12 / rate)))
}

// An activity takes time: message m is activity m, and the work of step i, a fold
// or a copy, is activity len(messages)+i. Each has the one that it waited for last as
// its cause.
type activity = int32

const nothing activity = -1

// simulation is the state of Simulate.
type simulation struct {
	c   *choreography
	t   *Topology
	now picos

	size  []int64    // bytes by message
	place []int32    // by message: its place among all that its sender sends
	work  []int64    // bytes by step that it folds or copies
	wait  []int32    // by step: what its begin waits for
	left  []int32    // by step: messages that have not arrived; -1 once it has ended
	begun []bool     // by step
	cause []activity // by activity
	start []picos    // by activity
	stop  []picos    // by activity: when a message has left the port; when work is done

	ranks []device
	wake  []int32 // ranks that may have something to send now
	due   agenda
	sent  int // number of the last entry
}

// device is what a rank has.
type device struct {
	queue       []int32  // messages that could go, in the order in which they came
	out, in     bool     // the ports are in use
	lastOut     activity // that used the port last
	lastIn      activity
	lastWork    activity
	free        picos   // when the unit that folds is free
	blocked     []int32 // ranks that wait for in
	awake       bool    // is in simulation.wake
	finish      picos
	finishCause activity
}

// entry is something that happens at a time.
type entry struct {
	at       picos
	number   int // entries of one time happen in the order of their making
	activity activity
	arrival  bool // of a message; else it has left the port, or the work is done
}

// agenda is a heap of entries.
type agenda []entry

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(a[i].at, a[j].at), cmp.Compare(a[i].number, a[j].number)) < 0
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(entry)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

func newSimulation(c *choreography, t *Topology, call *kolo.Call) *simulation {
	c.reverse()
	steps, messages := len(c.owner), len(c.sender)
	s := &simulation{c: c, t: t, size: make([]int64, messages), place: make([]int32, messages), work: make([]int64, steps),
		left: make([]int32, steps), begun: make([]bool, steps), cause: make([]activity, messages+steps),
		start: make([]picos, messages+steps), stop: make([]picos, messages+steps), ranks: make([]device, len(c.programs))}
	for r, p := range c.programs {
		s.ranks[r] = device{lastOut: nothing, lastIn: nothing, lastWork: nothing, finishCause: nothing}
		s.wait = append(s.wait, c.after[r].wait...)
		l := LayoutOf(p, call, Displs{})
		for i := range p.Steps {
			step := c.first[r] + int32(i)
			s.left[step] = int32(len(p.Steps[i].Peers))
			s.measure(step, p, &p.Steps[i], &l)
		}
	}
	return s
}

// measure sets how many bytes a step sends to each peer, or folds and copies.
func (s *simulation) measure(step int32, p *Program, st *Step, l *Layout) {
	spans, size := st.Src, int64(0)
	if st.Op == Recv {
		return
	}
	for _, x := range spans {
		p.At(x, func(block int) {
			_, n := l.Range(x.Buf, block)
			size += n
		})
	}
	switch st.Op {
	case Send:
		for k, m := range s.c.messages(step) {
			s.size[m], s.place[m] = size, s.c.ends[step]+int32(k)
		}
	case RecvReduce:
		s.work[step] = size * int64(len(st.Peers))
	default:
		s.work[step] = size
	}
}

// run lets things happen until there is nothing more to happen. All that happens
// at one time happens before ports are given to messages.
func (s *simulation) run() {
	for step, n := range slices.Clone(s.wait) { // begin changes it
		if n == 0 {
			s.begin(int32(step), nothing)
		}
	}
	s.dispatch()
	for len(s.due) > 0 {
		s.now = s.due[0].at
		for len(s.due) > 0 && s.due[0].at == s.now {
			s.happen(heap.Pop(&s.due).(entry))
		}
		s.dispatch()
	}
}

func (s *simulation) post(at picos, a activity, arrival bool) {
	s.sent++
	heap.Push(&s.due, entry{at, s.sent, a, arrival})
}

func (s *simulation) happen(e entry) {
	c := s.c
	if step := e.activity - int32(len(c.sender)); step >= 0 {
		s.end(step, e.activity)
		return
	}
	m := e.activity
	if !e.arrival {
		from, to := c.owner[c.sender[m]], c.owner[c.receiver[m]]
		s.ranks[from].out, s.ranks[to].in = false, false
		s.rouse(from)
		for _, r := range s.ranks[to].blocked {
			s.rouse(r)
		}
		s.ranks[to].blocked = s.ranks[to].blocked[:0]
		return
	}
	for _, step := range [2]int32{c.sender[m], c.receiver[m]} {
		if s.left[step]--; s.left[step] > 0 {
			continue
		}
		if c.step(step).Op == RecvReduce {
			s.labour(step, m)
		} else {
			s.end(step, m)
		}
	}
}

// begin lets a step begin, because of an activity that has ended.
func (s *simulation) begin(step int32, why activity) {
	c := s.c
	r, i := c.local(step)
	s.begun[step] = true
	for _, m := range c.messages(step) {
		if s.begun[c.sender[m]] && s.begun[c.receiver[m]] {
			s.cause[m], s.start[m] = why, s.now
			s.enqueue(m)
		}
	}
	if len(c.messages(step)) == 0 {
		s.labour(step, why)
	}
	after := c.after[r]
	for _, k := range after.follow[after.ffirst[i]:after.ffirst[i+1]] {
		s.allow(c.first[r]+k, why)
	}
}

// enqueue puts a message into its sender's queue, behind all that could go before.
// Of those of one time the order is that of the Program.
func (s *simulation) enqueue(m int32) {
	r := s.c.owner[s.c.sender[m]]
	d := &s.ranks[r]
	k := len(d.queue)
	for k > 0 && s.start[d.queue[k-1]] == s.now && s.place[d.queue[k-1]] > s.place[m] {
		k--
	}
	d.queue = slices.Insert(d.queue, k, m)
	s.rouse(r)
}

// end lets a step end, because of its last activity.
func (s *simulation) end(step int32, why activity) {
	c := s.c
	r, i := c.local(step)
	s.left[step] = -1
	s.ranks[r].finish, s.ranks[r].finishCause = s.now, why
	after := c.after[r]
	for _, k := range after.next[after.first[i]:after.first[i+1]] {
		s.allow(c.first[r]+k, why)
	}
}

func (s *simulation) allow(step int32, why activity) {
	if s.wait[step]--; s.wait[step] == 0 {
		s.begin(step, why)
	}
}

// labour gives the work of a step to its rank's unit.
func (s *simulation) labour(step int32, why activity) {
	d := &s.ranks[s.c.owner[step]]
	a := int32(len(s.c.sender)) + step
	s.start[a], s.cause[a] = s.now, why
	if d.free > s.now {
		s.start[a], s.cause[a] = d.free, d.lastWork
	}
	s.stop[a] = s.start[a] + picosAt(s.work[step], s.t.reduce())
	d.free, d.lastWork = s.stop[a], a
	s.post(s.stop[a], a, false)
}

func (s *simulation) rouse(r int32) {
	if !s.ranks[r].awake {
		s.ranks[r].awake = true
		s.wake = append(s.wake, r)
	}
}

// dispatch gives free ports to messages, rank by rank.
func (s *simulation) dispatch() {
	slices.Sort(s.wake)
	for _, r := range s.wake {
		s.ranks[r].awake = false
		s.transmit(r)
	}
	s.wake = s.wake[:0]
}

// transmit lets the first message in the queue of rank r go if its receiver can
// take it. Those behind it wait, though theirs might: in a mesh, where rank r sends
// to r+1, r+2 and so on, overtaking would soon have many ranks send to one.
func (s *simulation) transmit(r int32) {
	d := &s.ranks[r]
	if d.out || len(d.queue) == 0 {
		return
	}
	m := d.queue[0]
	to := s.c.owner[s.c.receiver[m]]
	peer := &s.ranks[to]
	if peer.in {
		peer.blocked = append(peer.blocked, r)
		return
	}
	d.queue = d.queue[1:]
	if s.start[m] < s.now { // a port held it up: which was given back last?
		s.cause[m] = peer.lastIn
		if at := d.lastOut; at != nothing && s.stop[at] == s.now {
			s.cause[m] = at
		}
	}
	e := s.t.Edge(kolo.Rank(r), kolo.Rank(to))
	s.start[m], s.stop[m] = s.now, s.now+picosAt(s.size[m], e.Bandwidth)
	d.out, peer.in, d.lastOut, peer.lastIn = true, true, m, m
	s.post(s.stop[m], m, false)
	s.post(s.stop[m]+picos(e.Latency)*1000, m, true)
}

// timeline is the result of a run.
func (s *simulation) timeline() Timeline {
	var out Timeline
	last := 0
	for r, d := range s.ranks {
		out.Finish = append(out.Finish, d.finish.duration())
		if d.finish > s.ranks[last].finish {
			last = r
		}
	}
	c := s.c
	for m, size := range s.size {
		l := &out.Levels[s.t.Level(kolo.Rank(c.owner[c.sender[m]]), kolo.Rank(c.owner[c.receiver[m]]))]
		l.Messages++
		l.Bytes += size
	}
	out.Total = s.ranks[last].finish.duration()
	until := s.ranks[last].finish
	for a := s.ranks[last].finishCause; a != nothing; a = s.cause[a] {
		if s.start[a] == until {
			continue // it took no time
		}
		leg := Leg{Peer: kolo.NoRank, Start: s.start[a].duration(), End: until.duration()}
		step := a - int32(len(c.sender))
		if step < 0 {
			step = c.sender[a]
			leg.Peer = kolo.Rank(c.owner[c.receiver[a]])
		}
		r, i := c.local(step)
		leg.Rank, leg.Step = kolo.Rank(r), i
		out.Critical = append(out.Critical, leg)
		until = s.start[a]
	}
	slices.Reverse(out.Critical)
	return out
}
