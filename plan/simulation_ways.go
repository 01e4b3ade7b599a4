package plan

import "github.com/kolo-ccl/kolo"

// How messages get from rank to rank: through ports, or over the links of a Network.

// transmit lets the first message in the queue of rank r go if its receiver can
// take it. Those behind it wait, though theirs might: in a mesh, where rank r sends
// to r+1, r+2 and so on, overtaking would soon have many ranks send to one.
func (s *simulation) transmit(r int32) {
	d := &s.ranks[r]
	if d.out || d.head == len(d.queue) {
		return
	}
	m := d.queue[d.head]
	to := s.c.owner[s.c.receiver[m]]
	peer := &s.ranks[to]
	if peer.in {
		peer.blocked = append(peer.blocked, r)
		return
	}
	d.head++
	why := s.why[m]
	if s.ready[m] < s.now { // a port held it up: which was given back last?
		why = peer.lastIn
		if at := d.lastOut; at != nothing && s.log[at].stop == s.now {
			why = at
		}
	}
	e := s.t.Edge(kolo.Rank(r), kolo.Rank(to))
	stop := s.now + picosAt(s.size[m], e.Bandwidth)
	a := s.note(act{s.now, stop, why, m, 0, noLink})
	d.out, peer.in, d.lastOut, peer.lastIn = true, true, a, a
	s.post(stop, portFree, m, a, 0)
	s.post(stop+picos(e.Latency)*1000, arrival, m, a, 0)
}

// portFree gives back the ports of a message.
func (s *simulation) portFree(m int32) {
	c := s.c
	from, to := c.owner[c.sender[m]], c.owner[c.receiver[m]]
	s.ranks[from].out, s.ranks[to].in = false, false
	s.rouse(from)
	for _, r := range s.ranks[to].blocked {
		s.rouse(r)
	}
	s.ranks[to].blocked = s.ranks[to].blocked[:0]
}

// launch lets all messages in the queue of rank r go.
func (s *simulation) launch(r int32) {
	d := &s.ranks[r]
	for ; d.head < len(d.queue); d.head++ {
		m := d.queue[d.head]
		var err error
		s.first[m] = int32(len(s.route))
		s.route, err = s.net.between(s.route, r, s.c.owner[s.c.receiver[m]])
		if err != nil {
			s.err = err
			return
		}
		s.hops[m] = int32(len(s.route)) - s.first[m]
		why, at := s.why[m], s.now
		if s.end.Send > 0 {
			at, why = s.process(m, r, picos(s.end.Send)*1000, why)
		}
		if s.eager(m) {
			s.post(at, handedOff, m, why, 0)
		}
		if at < d.next {
			at, why = d.next, d.lastOut
		}
		d.next, d.lastOut = at+picos(s.end.Gap)*1000, why
		if at > s.now || s.net.n.Model == Uncontended {
			s.post(at, onWire, m, why, 0)
		} else {
			s.onWire(m, 0, why)
		}
	}
}

// onWire brings a message to its link number hop.
func (s *simulation) onWire(m, hop int32, why activity) {
	links := s.route[s.first[m] : s.first[m]+s.hops[m]]
	if s.net.n.Model == Uncontended {
		s.fly(m, links, why)
		return
	}
	k := links[hop]
	l, w := &s.net.links[k], &s.wires[k]
	start := s.now
	if w.free > start {
		start, why = w.free, w.last
	}
	takes := picosAt(s.size[m], l.rate)
	at := start + s.whole(takes+l.latency) // when all of it is at the other end
	next, free := at, start+s.whole(takes)
	if s.net.n.Model == CutThrough {
		if hop > 0 {
			free = max(free, s.tail[m]) // the last byte cannot leave before it has come
		}
		at, next = free+l.latency, start+l.latency
		s.tail[m] = at
	}
	w.free, w.busy = free, w.busy+free-start
	w.use.Messages++
	w.use.Bytes += s.size[m]
	last := hop+1 == int32(len(links))
	stop := next
	if last {
		stop = at
	}
	w.last = s.note(act{start, stop, why, m, 0, k})
	if last {
		s.post(at, arrival, m, w.last, 0)
	} else {
		s.post(next, onWire, m, w.last, hop+1)
	}
}

// fly brings a message to its receiver as if there were no others.
func (s *simulation) fly(m int32, links []int32, why activity) {
	latency, takes := picos(0), picos(0)
	for _, k := range links {
		l := &s.net.links[k]
		latency += l.latency
		x := picosAt(s.size[m], l.rate)
		takes = max(takes, x)
		w := &s.wires[k]
		w.busy += x
		w.use.Messages++
		w.use.Bytes += s.size[m]
	}
	stop := s.now + s.whole(latency+takes)
	a := s.note(act{s.now, stop, why, m, 0, noLink})
	s.post(stop, arrival, m, a, 0)
}
