package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// An activity takes time: a message on a link or between two ports, what a message
// costs a processor, a fold or a copy. Activities are numbered in the order in which
// they become certain. Each has the one that it waited for last as its cause.
type activity = int32

const (
	nothing   activity = -1
	noMessage int32    = -1
	noLink    int32    = -1
)

// act is what is known of an activity.
type act struct {
	start, stop picos // stop: when the way is free again, when a message has arrived, when work is done
	cause       activity
	message     int32 // noMessage: the work of step
	step        int32
	link        int32 // noLink: the ports, or a processor
}

// simulation is the state of Simulate and SimulateOn. net is nil for ports.
type simulation struct {
	c    *choreography
	t    *Topology
	net  *wiring
	end  Endpoint
	keep int
	now  picos

	size  []int64    // bytes by message
	place []int32    // by message: its place among all that its sender sends
	work  []picos    // by step: what it folds or copies takes
	wait  []int32    // by step: what its begin waits for
	left  []int32    // by step: messages that have not arrived; -1 once it has ended
	begun []bool     // by step
	ready []picos    // by message: when it could go, or, if eager, when it has come
	why   []activity // by message: and because of what
	log   []act

	ranks []device
	wake  []int32 // ranks that may have something to send now
	due   agenda
	sent  uint32 // number of the last entry

	// With net only.
	wires []wireState
	route []int32 // links of the messages under way, one message after the other
	first []int32 // by message: where its links begin in route
	hops  []int32 // and their number
	tail  []picos // by message, with cut-through: when its last byte comes to where its head is
	came  []bool  // by message: an eager one has come before its receiver was ready
	err   error
}

// device is what a rank has.
type device struct {
	queue       []int32 // messages that could go, in the order in which they came; those before head have gone
	head        int
	out, in     bool     // the ports are in use
	lastOut     activity // that used the port last
	lastIn      activity
	lastWork    activity
	lastCall    activity // that used the processor last
	free        picos    // when the unit that folds is free
	processor   picos    // when the processor is free
	next        picos    // when the gap after the last message is over
	blocked     []int32  // ranks that wait for in
	awake       bool     // is in simulation.wake
	finish      picos
	finishCause activity
}

// wireState is what is going on on a link.
type wireState struct {
	free picos
	last activity
	busy picos
	use  Traffic
}

// occasion is the kind of an entry.
type occasion uint8

const (
	portFree  occasion = iota // a message has left the ports
	arrival                   // a message has come to the rank
	taken                     // the receiver's processor has taken it
	worked                    // a fold or a copy has ended
	onWire                    // a message is at the begin of its next link
	handedOff                 // the sender's processor has done with an eager message
	starting                  // the call begins
)

// entry is something that happens at a time.
type entry struct {
	at       picos
	number   uint32 // entries of one time happen in the order of their making
	activity activity
	subject  int32 // a message or, for worked, a step
	hop      int32 // for onWire
	what     occasion
}

// agenda is a heap of entries with four branches, which allocates only to grow.
type agenda []entry

func (e *entry) before(f *entry) bool {
	return e.at < f.at || e.at == f.at && e.number < f.number
}

func (a *agenda) push(e entry) {
	list := append(*a, e)
	at := len(list) - 1
	for at > 0 {
		up := (at - 1) / 4
		if !e.before(&list[up]) {
			break
		}
		list[at] = list[up]
		at = up
	}
	list[at] = e
	*a = list
}

func (a *agenda) pop() entry {
	list := *a
	top, e := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	*a = list
	at := 0
	for {
		low := 4*at + 1
		if low >= len(list) {
			break
		}
		for k := low + 1; k < min(low+4, len(list)); k++ {
			if list[k].before(&list[low]) {
				low = k
			}
		}
		if !list[low].before(&e) {
			break
		}
		list[at] = list[low]
		at = low
	}
	if len(list) > 0 {
		list[at] = e
	}
	return top
}

// init makes room and finds how many bytes each message has. The choreography has
// its messages by then.
func (s *simulation) init(call *kolo.Call) error {
	c := s.c
	c.reverse()
	steps, messages := len(c.owner), len(c.sender)
	s.size, s.place, s.work = make([]int64, messages), make([]int32, messages), make([]picos, steps)
	s.wait, s.left, s.begun = make([]int32, 0, steps), make([]int32, steps), make([]bool, steps)
	s.ready, s.why = make([]picos, messages), make([]activity, messages)
	s.log = make([]act, 0, messages+steps/2)
	s.ranks = make([]device, len(c.programs))
	for r, p := range c.programs {
		s.ranks[r] = device{lastOut: nothing, lastIn: nothing, lastWork: nothing, lastCall: nothing, finishCause: nothing}
		s.wait = append(s.wait, c.after[r].wait...)
		l := LayoutOf(p, call, Displs{})
		for i := range p.Steps {
			step := c.first[r] + int32(i)
			s.left[step] = int32(len(p.Steps[i].Peers))
			s.measure(step, p, &p.Steps[i], &l)
		}
	}
	if s.net != nil {
		s.wires = make([]wireState, len(s.net.links))
		s.first, s.hops = make([]int32, messages), make([]int32, messages)
		for k := range s.wires {
			s.wires[k].last = nothing
		}
		if s.net.n.Model == CutThrough {
			s.tail = make([]picos, messages)
		}
		if s.end.Eager > 0 {
			s.came = make([]bool, messages)
		}
	}
	return s.checkSizes(call)
}

// measure sets how many bytes a step sends to each peer, or folds and copies.
func (s *simulation) measure(step int32, p *Program, st *Step, l *Layout) {
	spans := st.Src
	if st.Op == Recv {
		if s.end.Memory == 0 {
			return
		}
		spans = st.Dst
	}
	size := int64(0)
	for _, x := range spans {
		size += l.spanSize(p, x)
	}
	switch st.Op {
	case Send:
		for k, m := range s.c.messages(step) {
			s.size[m], s.place[m] = size, s.c.ends[step]+int32(k)
		}
	case Recv:
		s.work[step] = s.whole(picosAt(size, s.end.Memory))
	case RecvReduce:
		size *= int64(len(st.Peers))
		s.work[step] = s.whole(picosAt(size, s.end.Memory)) + s.whole(picosAt(size, s.t.FoldRate()))
	default:
		s.work[step] = s.whole(picosAt(size, s.t.FoldRate()))
	}
}

// whole rounds down to whole nanoseconds where the network says so.
func (s *simulation) whole(x picos) picos {
	if s.net != nil && s.net.n.Whole {
		x -= x % 1000
	}
	return x
}

// checkSizes compares what a message carries with the room at its receiver.
func (s *simulation) checkSizes(call *kolo.Call) error {
	c := s.c
	for r, p := range c.programs {
		l := LayoutOf(p, call, Displs{})
		for i := range p.Steps {
			if st := &p.Steps[i]; st.Op == Recv || st.Op == RecvReduce {
				room := int64(0)
				for _, x := range st.Dst {
					room += l.spanSize(p, x)
				}
				for _, m := range c.messages(c.first[r] + int32(i)) {
					if s.size[m] != room {
						return c.fault(CheckMatch, r, i, kolo.Rank(c.owner[c.sender[m]]), "%d bytes come from %s, and there is room for %d", s.size[m], c.stepName(c.sender[m]), room)
					}
				}
			}
		}
	}
	return nil
}

// run lets things happen until there is nothing more to happen. All that happens
// at one time happens before ports and links are given to messages.
func (s *simulation) run() error {
	s.post(picos(s.end.Start)*1000, starting, 0, nothing, 0)
	for len(s.due) > 0 && s.err == nil {
		s.now = s.due[0].at
		for len(s.due) > 0 && s.due[0].at == s.now && s.err == nil {
			s.happen(s.due.pop())
		}
		s.dispatch()
	}
	return s.err
}

func (s *simulation) post(at picos, what occasion, subject int32, a activity, hop int32) {
	if at > longest/2 && s.err == nil {
		s.err = fmt.Errorf("%w: the simulated time exceeds %v", kolo.ErrLimit, (longest / 2).duration())
	}
	s.sent++
	s.due.push(entry{at, s.sent, a, subject, hop, what})
}

// note keeps an activity.
func (s *simulation) note(x act) activity {
	s.log = append(s.log, x)
	return activity(len(s.log) - 1)
}

func (s *simulation) happen(e entry) {
	switch e.what {
	case starting:
		for step, n := range slices.Clone(s.wait) { // begin changes it
			if n == 0 {
				s.begin(int32(step), nothing)
			}
		}
	case worked:
		s.finish(e.subject, e.activity)
	case portFree:
		s.portFree(e.subject)
	case onWire:
		s.onWire(e.subject, e.hop, e.activity)
	case handedOff:
		s.part(s.c.sender[e.subject], e.activity)
	case arrival:
		s.arrive(e.subject, e.activity)
	case taken:
		s.part(s.c.receiver[e.subject], e.activity)
	}
}

// arrive is when a message has come to its rank.
func (s *simulation) arrive(m int32, a activity) {
	if s.eager(m) {
		s.came[m], s.ready[m], s.why[m] = true, s.now, a
		if s.begun[s.c.receiver[m]] {
			s.take(m, a)
		}
		return
	}
	s.part(s.c.sender[m], a)
	s.take(m, a)
}

// take lets the receiver's processor take a message that is there.
func (s *simulation) take(m int32, why activity) {
	if s.end.Recv == 0 {
		s.part(s.c.receiver[m], why)
		return
	}
	stop, a := s.process(m, s.c.owner[s.c.receiver[m]], picos(s.end.Recv)*1000, why)
	s.post(stop, taken, m, a, 0)
}

// process lets a rank's processor do its part for a message.
func (s *simulation) process(m, r int32, takes picos, why activity) (stop picos, a activity) {
	d := &s.ranks[r]
	start := s.now
	if d.processor > start {
		start, why = d.processor, d.lastCall
	}
	d.processor = start + takes
	d.lastCall = s.note(act{start, d.processor, why, m, 0, noLink})
	return d.processor, d.lastCall
}

// part is when one of the messages of a step needs it no longer.
func (s *simulation) part(step int32, why activity) {
	if s.left[step]--; s.left[step] > 0 {
		return
	}
	if s.work[step] > 0 || s.c.step(step).Op == RecvReduce {
		s.labour(step, why)
	} else {
		s.finish(step, why)
	}
}

// begin lets a step begin, because of an activity that has ended.
func (s *simulation) begin(step int32, why activity) {
	c := s.c
	r, i := c.local(step)
	s.begun[step] = true
	for _, m := range c.messages(step) {
		switch {
		case s.eager(m) && c.receiver[m] == step:
			if s.came[m] {
				if s.ready[m] == s.now {
					why = s.why[m]
				}
				s.take(m, why)
			}
		case s.eager(m), s.begun[c.sender[m]] && s.begun[c.receiver[m]]:
			s.why[m], s.ready[m] = why, s.now
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

// eager says that a message goes before its receiver is ready.
func (s *simulation) eager(m int32) bool { return s.end.Eager > 0 && s.size[m] <= s.end.Eager }

// enqueue puts a message into its sender's queue, behind all that could go before.
// Of those of one time the order is that of the Program.
func (s *simulation) enqueue(m int32) {
	r := s.c.owner[s.c.sender[m]]
	d := &s.ranks[r]
	if d.head == len(d.queue) {
		d.queue, d.head = d.queue[:0], 0
	}
	k := len(d.queue)
	for k > d.head && s.ready[d.queue[k-1]] == s.now && s.place[d.queue[k-1]] > s.place[m] {
		k--
	}
	d.queue = slices.Insert(d.queue, k, m)
	s.rouse(r)
}

// finish lets a step end, because of its last activity.
func (s *simulation) finish(step int32, why activity) {
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
	start := s.now
	if d.free > start {
		start, why = d.free, d.lastWork
	}
	d.free = start + s.work[step]
	d.lastWork = s.note(act{start, d.free, why, noMessage, step, noLink})
	s.post(d.free, worked, step, d.lastWork, 0)
}

func (s *simulation) rouse(r int32) {
	if !s.ranks[r].awake {
		s.ranks[r].awake = true
		s.wake = append(s.wake, r)
	}
}

// dispatch gives free ports to messages, or lets them go to their first links, rank
// by rank.
func (s *simulation) dispatch() {
	if len(s.wake) > 1 && !slices.IsSorted(s.wake) {
		slices.SortFunc(s.wake, cmp.Compare)
	}
	for k := 0; k < len(s.wake); k++ {
		r := s.wake[k]
		s.ranks[r].awake = false
		if s.net == nil {
			s.transmit(r)
		} else {
			s.launch(r)
		}
	}
	s.wake = s.wake[:0]
}
