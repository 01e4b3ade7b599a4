package roce

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// What a run of a link may do before it leaves the rest to the pump.
const (
	postBursts = 1 // bursts of packets of 64 KiB, where a rank waits for Post to return
	readBursts = 2 // where the reader has packets to read
	pumpBursts = 16
	pollBursts = 4  // where a rank polls, which then looks for packets again
	runRounds  = 16 // times that there are new events
	bulk       = 16 << 10
)

// The times of a link.
const (
	firstHello   = 5 * time.Millisecond // until a hello is sent again; it doubles
	lastHello    = 250 * time.Millisecond
	shortLinger  = 250 * time.Millisecond // for the last acknowledgement, when the peer is known to be done
	abortGrace   = time.Second            // for transfers under way of a group that is aborted
	minTimeout   = 4 * time.Millisecond   // until packets are sent again
	ackDelay     = time.Millisecond       // for acknowledgements of small messages
	leastPackets = 8                      // of a window
)

type eventKind uint8

const (
	eventPost eventKind = iota
	eventAbort
	eventClose
	eventFail
	eventPackets
	eventLanded
	eventHello
	eventTick
	eventRaise
	eventWork
)

// event is what a link handles.
type event struct {
	kind                eventKind
	op                  *channel.Op // post
	group               uint64      // abort
	err                 error       // abort, close, fail
	buf                 *buffer     // packets: the bytes begin to end; landed: the first end packets
	begin, end, segment int
	seq                 uint64         // packets, landed: link.handed with them
	from                netip.AddrPort // packets, hello
	hello               *hello
}

// link is one rank's end of the link to a peer: a channel.Conn. Whoever brings an event
// while nobody runs it runs it, and then everything below running is his.
//
//	connecting -> open -> closed (no further ops; what has met its other end goes on,
//	fins are exchanged) -> over
type link struct {
	d *Driver
	way
	over chan struct{} // closed when the link has ended

	mu      sync.Mutex
	queue   []event
	running bool

	spare    []event
	timer    *time.Timer
	alarm    time.Duration // when timer fires, 0 if it does not
	state    linkState
	closed   error // why ops are not taken
	port     *port
	to       netip.AddrPort // of the handshake
	data     netip.AddrPort // of all else
	mine     hello
	theirs   hello
	domain   *rc.Domain
	pairs    []*pair
	done     []ending
	input    int          // bytes that came in this round
	carried  atomic.Int64 // that came ever
	timing   times
	traffic  traffic
	refusals int // packets after the end that were answered
	burst    burst
	lands    bool // landing of the port may be this link's

	handed uint64 // requests that were handed to the link; the reader's of the port
}

// linkState is how far a link is.
type linkState uint8

const (
	connecting linkState = iota
	open
	over
)

// times are when what is due next; 0 is never.
type times struct {
	hello    time.Duration // next one
	wait     time.Duration // until the one behind it
	answered time.Duration // the peer's process was last heard, while connecting
	heard    time.Duration // the peer was last heard, when open
	linger   time.Duration // the close is over then
	grace    time.Duration // what an abort has left is over then
	cause    error         // of that abort
	stuck    map[uint64]bool
}

// pair is a queue pair and, if it is of package rc, its way out.
type pair struct {
	Queue
	qp     *rc.QP // nil over an adapter
	conn   *socket
	flow   *rc.Flow
	posted []posted // works that have not completed, oldest first
}

// posted is what a work was for: a message of records, a stripe of a send, or neither.
type posted struct {
	records *message
	send    *sending
}

// ending is a completion that is to be told.
type ending struct {
	op  *channel.Op
	err error
}

func newLink(d *Driver, w way) *link {
	l := &link{d: d, way: w, over: make(chan struct{})}
	l.traffic.init(l)
	return l
}

// prepare chooses the way to the peer and the numbers of this end. d.mu is held.
func (l *link) prepare() error {
	d := l.d
	p, to, err := d.route(l.peer)
	if err != nil {
		return err
	}
	l.port, l.to, l.data = p, to, to
	l.domain = rc.NewDomain(rand.Uint32())
	l.mine = hello{kind: helloMine, adapter: d.adapter != nil, job: d.job, epoch: d.epoch, from: l.me, to: l.peer, nonce: rand.Uint64() | 1,
		window: uint32(max(1<<14, min(d.cfg.Window, p.room/2))), mtu: uint32(pathMTU(p.link, d.cfg.MTU))}
	l.timing.answered = d.now()
	if d.adapter != nil {
		if d.cfg.MTU == 0 {
			l.mine.mtu = uint32(d.adapter.MTU())
		}
		l.post(event{kind: eventRaise})
		return nil
	}
	for range d.cfg.QPs {
		q := qpAddress{qpn: d.newQPN(), first: rand24()}
		d.queues[q.qpn] = l
		l.mine.qps = append(l.mine.qps, q)
	}
	return nil
}

// rand24 is a random PSN.
func rand24() uint32 { return rand.Uint32N(1 << 24) }

// refuse makes a link that was never one.
func (l *link) refuse(err error) {
	l.state, l.closed = over, err
	close(l.over)
}

// Post starts op.
func (l *link) Post(t channel.Turn, op *channel.Op) { l.tell(t, event{kind: eventPost, op: op}) }

// Release gives back the memory of a View.
func (l *link) Release(_ channel.Turn, op *channel.Op) {
	if m, ok := op.Hold.(*message); ok {
		op.Hold = nil
		m.free()
	}
}

// Carried counts the packets that have come: of what goes, the acknowledgements. What is
// sent again and again is no progress.
func (l *link) Carried() int64 { return l.carried.Load() }

// Abort ends the ops of a group that have not met their other end.
func (l *link) Abort(t channel.Turn, group uint64, cause error) {
	l.tell(t, event{kind: eventAbort, group: group, err: cause})
}

// Close ends the link.
func (l *link) Close(t channel.Turn, cause error) {
	l.tell(t, event{kind: eventClose, err: cause})
}

// packets brings packets for the link's queue pairs, in a buffer of the reader.
func (l *link) packets(e event) {
	e.buf.refs.Add(1)
	if l.post(e) {
		l.run(nil, readBursts)
	}
}

// tell brings an event and runs the link if nobody does.
func (l *link) tell(t channel.Turn, e event) {
	if l.post(e) {
		l.run(t, postBursts)
	}
}

// post brings an event and says whether the caller must see to it that the link is run.
func (l *link) post(e event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, e)
	if l.running {
		return false
	}
	l.running = true
	return true
}

// events takes the events that are there.
func (l *link) events() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.queue
	l.queue, l.spare = l.spare[:0], list
	return list
}

// rest ends the run if there is no event.
func (l *link) rest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.queue) > 0
	return !l.running
}

// run handles events until there are none, or leaves the link to the pump when there
// is too much to do for the caller.
func (l *link) run(t channel.Turn, bursts int) {
	for round := 0; ; round++ {
		list := l.events()
		for i := range list {
			l.handle(&list[i])
			list[i] = event{}
		}
		if len(list) > 0 && l.input < bulk && round < runRounds {
			l.tellDone(t) // an answer goes out with the acknowledgement
			continue
		}
		more := l.flush(&bursts)
		l.input = 0
		settled := l.settle()
		l.tellDone(t)
		switch {
		case more || round >= runRounds:
			l.d.pump.add(l)
			return
		case len(list) == 0 && settled:
			l.schedule()
			if l.rest() {
				return
			}
		}
	}
}

// tellDone completes what has ended.
func (l *link) tellDone(t channel.Turn) {
	list := l.done
	l.done = nil
	for _, e := range list {
		e.op.Complete(t, e.err)
	}
	clear(list)
	if l.done == nil {
		l.done = list[:0]
	}
}

// complete notes that op has ended.
func (l *link) complete(op *channel.Op, err error) { l.done = append(l.done, ending{op, err}) }

// handle does one event.
func (l *link) handle(e *event) {
	switch e.kind {
	case eventPost:
		l.take(e.op)
	case eventAbort:
		l.abort(e.group, e.err)
	case eventClose:
		l.shut(e.err)
		l.traffic.clear()
	case eventFail:
		l.fail(e.err)
	case eventPackets:
		l.receive(e)
		l.d.release(e.buf)
	case eventLanded:
		l.arrived(e)
		l.d.release(e.buf)
	case eventHello:
		l.greet(e.from, e.hello)
	case eventTick:
		l.tick()
	case eventRaise:
		l.raise()
	case eventWork:
		l.worked()
	}
}

// worked takes what an adapter has completed.
func (l *link) worked() {
	if l.state == over {
		return
	}
	l.timing.heard = l.d.now()
	for i := range l.pairs {
		l.collect(i)
	}
}

// greet handles a hello of the peer.
func (l *link) greet(from netip.AddrPort, h *hello) {
	if l.port == nil || from.Addr() != l.to.Addr() {
		return
	}
	now := l.d.now()
	switch {
	case h.kind == helloReject:
		if h.seen == l.mine.nonce {
			l.rejected(h.reason)
		}
	case l.state == over || l.theirs.nonce != 0 && h.nonce != l.theirs.nonce && h.kind == helloMine:
		l.port.hello(&hello{kind: helloReject, job: l.d.job, epoch: l.d.epoch, from: l.me, to: l.peer, seen: h.nonce,
			reason: fmt.Sprintf("%v has closed this link", l.me)}, from)
	case h.kind == helloWait:
		l.timing.answered = now
	default:
		l.timing.answered = now
		if l.theirs.nonce == 0 {
			if err := l.pairUp(h); err != nil {
				l.fail(err)
				return
			}
		}
		if h.seen == l.mine.nonce {
			l.opened()
		}
		if !h.done {
			l.sayHello()
		}
	}
}

// rejected handles the peer's word that there is no link.
func (l *link) rejected(reason string) {
	switch {
	case l.state == over:
	case l.traffic.finSeen:
		l.end(nil)
	default:
		l.fail(fmt.Errorf("%w: %v has no link to %v: %s", kolo.ErrLost, l.peer, l.me, reason))
	}
}

// sayHello tells the peer what it must know of this end.
func (l *link) sayHello() {
	l.mine.seen, l.mine.done = l.theirs.nonce, l.state == open
	l.port.hello(&l.mine, l.to)
}

// pairUp joins the queue pairs with those of the peer.
func (l *link) pairUp(h *hello) error {
	l.theirs = *h
	if err := l.address(h); err != nil {
		return err
	}
	mtu, n := min(int(l.mine.mtu), int(h.mtu)), min(len(l.mine.qps), len(h.qps))
	window := max(leastPackets, min(l.d.cfg.Window, int(h.window))/mtu/n)
	for i := range n {
		if l.d.adapter == nil {
			if err := l.imitate(i, mtu, window); err != nil {
				return fmt.Errorf("%w: link of %v to %v: %w", kolo.ErrLost, l.me, l.peer, err)
			}
		}
		if err := l.pairs[i].Connect(l.data.Addr(), h.qps[i].qpn, h.qps[i].first, mtu); err != nil {
			return fmt.Errorf("%w: link of %v to %v at %v: %w", kolo.ErrLost, l.me, l.peer, l.data, err)
		}
	}
	for _, p := range l.pairs[n:] { // the peer has fewer
		p.Fail()
	}
	l.pairs = l.pairs[:n]
	return nil
}

// address finds out where data goes to: an adapter sends to one port only, and from
// the address of its handshake.
func (l *link) address(h *hello) error {
	switch {
	case h.adapter:
		l.data = netip.AddrPortFrom(l.to.Addr(), Port)
		if l.d.adapter == nil && l.port.addr.Port() != Port {
			return fmt.Errorf("%w: link of %v to %v: %v has an adapter, which sends to port %d, and this end is at port %d: set Config.Port",
				kolo.ErrLost, l.me, l.peer, l.peer, Port, l.port.addr.Port())
		}
	case l.d.adapter != nil:
		if l.data.Port() != Port {
			return fmt.Errorf("%w: link of %v to %v: %v is at port %d, and the adapter here sends to port %d: set Config.Port of the peer's driver",
				kolo.ErrLost, l.me, l.peer, l.peer, l.data.Port(), Port)
		}
	}
	return nil
}

// imitate makes queue pair i in software.
func (l *link) imitate(i, mtu, window int) error {
	room := 0
	if i == 0 {
		room = recordsSize
	}
	q, err := newSoftware(rc.Config{QPN: l.mine.qps[i].qpn, First: l.mine.qps[i].first, MTU: mtu, Timeout: l.d.cfg.Timeout,
		Retries: l.d.cfg.Retries, MinTimeout: minTimeout, AckDelay: ackDelay, Window: window, Domain: l.domain}, inboxes, room)
	if err != nil {
		return err
	}
	conn, number, err := l.port.source(i)
	if err != nil {
		return err
	}
	l.pairs = append(l.pairs, &pair{Queue: q, qp: q.QP, conn: conn, flow: flow(netip.AddrPortFrom(l.port.addr.Addr(), number), l.data)})
	return nil
}

// opened is called when the peer is known to have its queue pairs.
func (l *link) opened() {
	if l.state != connecting {
		return
	}
	l.state = open
	l.timing.heard = l.d.now()
	l.traffic.begin()
}

// receive handles packets.
func (l *link) receive(e *event) {
	if l.state == over {
		l.refusals++
		if l.port != nil && l.refusals < 100 {
			l.port.hello(&hello{kind: helloReject, job: l.d.job, epoch: l.d.epoch, from: l.me, to: l.peer, seen: l.theirs.nonce,
				reason: fmt.Sprintf("%v has closed this link", l.me)}, l.to)
		}
		return
	}
	if e.from.Addr() != l.to.Addr() || len(l.pairs) == 0 {
		return
	}
	l.opened() // who sends knows this end
	now := l.d.now()
	l.timing.heard = now
	l.input += e.end - e.begin
	l.carried.Add(int64(e.end - e.begin))
	last := -1
	for at := e.begin; at < e.end; at += e.segment {
		b := e.buf.b[at:min(at+e.segment, e.end)]
		p, err := rc.Parse(b)
		if err != nil {
			l.d.counts.unknown.Add(1)
			continue
		}
		i := l.pairOf(b)
		if i < 0 {
			continue
		}
		l.pairs[i].qp.Input(now, &p)
		l.collect(i)
		last = i
	}
	if last >= 0 && l.state == open {
		l.offer(last, e.seq)
	}
}

// collect handles the completions of queue pair i.
func (l *link) collect(i int) {
	if i >= len(l.pairs) {
		return // the link has ended
	}
	p := l.pairs[i]
	for {
		c, ok := p.Next()
		switch {
		case !ok:
			return
		case c.Kind == rc.Receive:
			if c.Status == rc.OK {
				l.traffic.received(i, p, &c)
			}
		default:
			x := p.posted[0]
			p.posted[0] = posted{}
			p.posted = p.posted[1:]
			if x.records != nil {
				x.records.free()
			}
			if x.send != nil && c.Status == rc.OK {
				l.traffic.written(x.send)
			}
		}
	}
}

// give gives a work to queue pair i.
func (l *link) give(i int, w Work, x posted) {
	p := l.pairs[i]
	p.posted = append(p.posted, x)
	p.Post(w)
}

// flush sends what may go, as long as there are bursts. It says whether there is more.
func (l *link) flush(bursts *int) (more bool) {
	if l.state != open {
		return false
	}
	l.traffic.flush()
	if l.d.adapter != nil {
		return false
	}
	buf := l.d.takeBuffer()
	defer l.d.release(buf)
	now := l.d.now()
	for _, p := range l.pairs {
		more = l.transmit(p, buf.b[:0], now, bursts) || more
	}
	return more
}

// settle ends the link if there is a reason to. It is false where there is something
// to send after that.
func (l *link) settle() bool {
	for _, p := range l.pairs {
		if err := p.Err(); err != nil && l.state != over {
			l.fail(fmt.Errorf("%w: link of %v to %v at %v: %w", kolo.ErrLost, l.me, l.peer, l.data, err))
			return true
		}
	}
	x := &l.traffic
	if l.state != open || l.closed == nil {
		return true
	}
	if x.finish() {
		return false
	}
	if x.finSent && x.finSeen && x.idle() {
		if l.pairs[0].Pending() == 0 {
			l.end(nil)
			return true
		}
		l.timing.linger = min(l.timing.linger, l.d.now()+shortLinger)
	}
	return true
}

// fail ends the link at once, with everything that it has.
func (l *link) fail(err error) {
	if l.state == over {
		return
	}
	if l.closed == nil {
		l.closed = err
	}
	l.end(err)
}

// end ends a link that has nothing to do any more; err is why, nil if it was closed.
func (l *link) end(err error) {
	l.revoke()
	l.state = over
	for _, p := range l.pairs {
		p.Fail()
	}
	l.traffic.drop(cmp.Or(err, l.closed))  // nobody reaches that memory any more
	if err != nil && l.theirs.nonce != 0 { // the peer need not find out by itself
		l.port.hello(&hello{kind: helloReject, job: l.d.job, epoch: l.d.epoch, from: l.me, to: l.peer, seen: l.theirs.nonce, reason: err.Error()}, l.to)
	}
	for i, p := range l.pairs {
		l.collect(i)
		if p.qp != nil {
			l.d.counts.add(p.qp.Stats())
		}
	}
	l.pairs = nil
	if l.timer != nil {
		l.timer.Stop()
	}
	close(l.over)
}

// add adds what a queue pair has seen.
func (c *counts) add(s rc.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.rcs
	t.Sent += s.Sent
	t.Received += s.Received
	t.Retransmitted += s.Retransmitted
	t.Timeouts += s.Timeouts
	t.NAKs += s.NAKs
	t.RNRs += s.RNRs
	t.SentNAKs += s.SentNAKs
	t.Duplicates += s.Duplicates
	t.Gaps += s.Gaps
	t.Stray += s.Stray
}

// shut closes the link, by this rank or because the peer has done it.
func (l *link) shut(cause error) {
	if l.closed != nil {
		return
	}
	l.closed = cause
	l.traffic.withdraw(cause)
	l.timing.linger = l.d.now() + lingerTime
	if l.state == connecting {
		l.fail(cause)
	}
}

// abort ends the ops of a group that wait, and gives those under way a moment.
func (l *link) abort(group uint64, cause error) {
	if !l.traffic.abort(group, cause) {
		return
	}
	if l.timing.stuck == nil {
		l.timing.stuck = map[uint64]bool{}
	}
	l.timing.stuck[group] = true
	l.timing.grace, l.timing.cause = l.d.now()+abortGrace, cause
}

// tick does what is due.
func (l *link) tick() {
	l.alarm = 0
	if l.state == over {
		return
	}
	now, x := l.d.now(), &l.timing
	if l.state == connecting {
		if now-x.answered >= l.d.cfg.ConnectTimeout {
			l.fail(fmt.Errorf("%w: the process of %v at %v has not answered for %v", kolo.ErrLost, l.peer, l.to, l.d.cfg.ConnectTimeout))
			return
		}
		if now >= x.hello {
			l.sayHello()
			x.wait = min(max(2*x.wait, firstHello), lastHello)
			x.hello = now + x.wait
		}
	}
	for i, p := range l.pairs {
		if p.qp != nil {
			p.qp.Tick(now)
			l.collect(i)
		}
	}
	if x.linger != 0 && now >= x.linger {
		if l.traffic.finSeen && l.traffic.idle() {
			l.end(nil)
		} else {
			l.fail(l.closed)
		}
		return
	}
	if x.grace != 0 && now >= x.grace {
		x.grace = 0
		if l.traffic.moving(x.stuck) {
			l.fail(fmt.Errorf("%w: a transfer of an aborted group stood still: %w", kolo.ErrLost, x.cause))
			return
		}
		x.stuck = nil
	}
	if l.state == open && l.traffic.waits() && now >= x.heard+l.d.cfg.Timeout && l.pairs[0].Pending() == 0 {
		l.give(0, Work{Kind: rc.Write}, posted{}) // writes nothing: is the peer there?
	}
}

// schedule sets the timer for what is due next.
func (l *link) schedule() {
	if l.state == over {
		return
	}
	x := &l.timing
	at := time.Duration(0)
	due := func(d time.Duration) {
		if d != 0 && (at == 0 || d < at) {
			at = d
		}
	}
	for _, p := range l.pairs {
		if p.qp == nil {
			continue
		}
		if d, ok := p.qp.Deadline(); ok {
			due(d)
		}
	}
	due(x.linger)
	due(x.grace)
	if l.state == connecting {
		due(x.hello)
		due(x.answered + l.d.cfg.ConnectTimeout)
	} else if l.traffic.waits() && l.pairs[0].Pending() == 0 {
		due(x.heard + l.d.cfg.Timeout)
	}
	if at == 0 || l.alarm != 0 && l.alarm <= at {
		return
	}
	l.alarm = at
	wait := max(0, at-l.d.now())
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.ring)
		return
	}
	l.timer.Reset(wait)
}

// ring is called by the timer.
func (l *link) ring() {
	if l.post(event{kind: eventTick}) {
		l.run(nil, readBursts)
	}
}

var errProtocol = errors.New("the peer's driver has broken the protocol")
