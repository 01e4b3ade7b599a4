package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Adapter carries out the work requests of a driver's links in place of package rc: an
// RDMA adapter, with one address. The handshake stays with the driver, over a UDP socket
// at that address. Its methods may be called by any goroutine, unless they say else.
type Adapter interface {
	// Addr is the address that the adapter sends from and receives at.
	Addr() netip.Addr
	// MTU is the largest path MTU that it carries: 256, 512, 1024, 2048 or 4096.
	MTU() int
	// NewQueue makes a queue pair.
	NewQueue(c QueueConfig) (Queue, error)
	// Register makes memory known to the adapter, for writing by peers or else for reading
	// by the adapter alone. The memory stays where it is and alive until Release.
	Register(b []byte, write bool) (*Region, error)
	// Release gives a region back, once.
	Release(*Region)
	// Look looks for completions, keeps them for their queue pairs and wakes the owners
	// of these. It says whether there were any.
	Look() bool
	// Wait waits until Look may find something, or Interrupt. One goroutine waits.
	Wait() error
	// Interrupt ends Wait, also one to come.
	Interrupt()
	// Close gives back what the adapter holds. The queue pairs have failed before.
	Close() error
}

// Region is memory that an adapter knows.
type Region struct {
	VA            uint64 // where its first byte is to peers
	Local, Remote uint32 // keys
	Entry         any    // the adapter's own
}

// QueueConfig is what a queue pair is made with.
type QueueConfig struct {
	First    uint32 // PSN of the first packet
	Messages int    // receives for messages
	Room     int    // bytes of such a message; 0: the receives are for immediate data only
	// Wake is called when Next has something that it had not. It returns soon.
	Wake func()
}

// Queue is a queue pair of a link. Its methods are never called at the same time, but
// for Wake of its QueueConfig.
type Queue interface {
	// Number is its QPN.
	Number() uint32
	// Connect joins it with a peer's and posts all receives.
	Connect(peer netip.Addr, number, first uint32, mtu int) error
	// Post begins w. A completion follows, in the order of the posts, also after Fail.
	Post(w Work)
	// Receive posts receive id again, whose message was read.
	Receive(id uint64)
	// Message is what receive id has taken, n bytes, until it is posted again.
	Message(id uint64, n int64) []byte
	// Next is the next completion.
	Next() (rc.Completion, bool)
	// Err is why the queue pair has failed, or nil.
	Err() error
	// Pending is the number of works that have not completed.
	Pending() int
	// Fail ends the queue pair: when it returns nobody touches the memory of its works any
	// more, nor does its peer reach memory of this process.
	Fail()
}

// Work is one request to a Queue. From Post to its completion the memory belongs to the
// queue.
type Work struct {
	Kind     rc.Kind // Send, Write or WriteImm
	Data     [][]byte
	Regions  []*Region // of Data, for an adapter, but for a Send
	Off, Len int64     // what of Data is sent or written
	VA       uint64    // Write: where to
	Key      uint32
	Imm      uint32
}

// place is memory of a peer that data is written to.
type place struct {
	va   uint64
	size int64
	key  uint32
}

// maxPlaces is the most pieces of memory that an adapter is given for one message. More
// pieces are brought together in one.
const maxPlaces = 64

// NewOver makes the driver of one process over an adapter, which the driver closes, also
// if it cannot be made. Of the configuration Port, Window and TrafficClass concern the
// handshake only.
func NewOver(c channel.Config, cfg Config, a Adapter) (*Driver, error) {
	d, err := newDriver(c, cfg, a)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return d, nil
}

// adapterSource is an adapter as the source of a reader.
type adapterSource struct{ a Adapter }

func (s adapterSource) look() bool  { return s.a.Look() }
func (s adapterSource) wait() error { return s.a.Wait() }
func (s adapterSource) drain() {
	for s.a.Look() {
	}
}

// software is a queue pair of package rc as a Queue.
type software struct {
	*rc.QP
	inbox [][]byte
}

func newSoftware(c rc.Config, messages, room int) (*software, error) {
	q, err := rc.NewQP(c)
	if err != nil {
		return nil, err
	}
	s := &software{QP: q, inbox: make([][]byte, messages)}
	for i := range s.inbox {
		if room > 0 {
			s.inbox[i] = make([]byte, room)
		}
	}
	return s, nil
}

// Number is not asked for: the link has given it.
func (s *software) Number() uint32 { return 0 }

// Connect joins it with the peer's.
func (s *software) Connect(_ netip.Addr, number, first uint32, _ int) error {
	s.QP.Connect(number, first)
	for i := range s.inbox {
		s.Receive(uint64(i))
	}
	return nil
}

// Post begins a work.
func (s *software) Post(w Work) {
	s.QP.Post(rc.Work{Kind: w.Kind, Data: rc.NewVector(cut(w.Data, w.Off, w.Len)...), VA: w.VA, Key: w.Key, Imm: w.Imm})
}

// Receive posts a receive.
func (s *software) Receive(id uint64) {
	v := rc.Vector{}
	if s.inbox[id] != nil {
		v = rc.NewVector(s.inbox[id])
	}
	s.PostReceive(id, v)
}

// Message is what a receive has taken.
func (s *software) Message(id uint64, n int64) []byte { return s.inbox[id][:n] }

// Err is why it has failed.
func (s *software) Err() error {
	if e := s.QP.Err(); e != rc.OK {
		return errors.New(e.String())
	}
	return nil
}

// Fail ends it.
func (s *software) Fail() { s.QP.Fail(rc.Flushed) }

// raise makes the queue pairs of a link over an adapter, which takes system calls.
func (l *link) raise() {
	a := l.d.adapter
	if a == nil || l.state == over {
		return
	}
	for i := range l.d.cfg.QPs {
		c := QueueConfig{First: rand24(), Messages: adapterInboxes, Wake: l.wake}
		if i == 0 {
			c.Room = recordsSize
		}
		q, err := a.NewQueue(c)
		if err != nil {
			l.fail(fmt.Errorf("%w: link of %v to %v: %w", kolo.ErrLost, l.me, l.peer, err))
			return
		}
		l.mine.qps = append(l.mine.qps, qpAddress{q.Number(), c.First})
		l.pairs = append(l.pairs, &pair{Queue: q})
	}
}

// wake is called by an adapter that has completions for the link.
func (l *link) wake() {
	if l.post(event{kind: eventWork}) {
		l.run(nil, readBursts)
	}
}

// expose lets the peer write to the memory of a receive, and says where that is.
func (x *traffic) expose(r *receiving, pieces [][]byte) (list []place, err error) {
	if x.l.d.adapter == nil {
		if r.region = x.l.domain.Register(0, rc.RemoteWrite, pieces...); r.region == nil {
			return nil, fmt.Errorf("%w: regions of a link", kolo.ErrLimit)
		}
		return []place{{size: r.op.Size, key: r.region.Key}}, nil
	}
	if len(pieces) > maxPlaces {
		r.stage = newMessage(r.op.Size)
		r.stage.b = r.stage.b[:r.op.Size]
		pieces = [][]byte{r.stage.b}
	}
	r.regions, err = x.register(pieces, true)
	for i, g := range r.regions {
		if g != nil {
			list = append(list, place{va: g.VA, size: int64(len(pieces[i])), key: g.Remote})
		}
	}
	return list, err
}

// register makes pieces known to the adapter; those of no bytes need no region.
func (x *traffic) register(pieces [][]byte, write bool) ([]*Region, error) {
	list := make([]*Region, len(pieces))
	for i, b := range pieces {
		if len(b) == 0 {
			continue
		}
		g, err := x.l.d.adapter.Register(b, write)
		if err != nil {
			x.unregister(list)
			return nil, err
		}
		list[i] = g
	}
	return list, nil
}

func (x *traffic) unregister(list []*Region) {
	for _, g := range list {
		if g != nil {
			x.l.d.adapter.Release(g)
		}
	}
}

// hide ends what expose has begun.
func (x *traffic) hide(r *receiving) {
	if r.region != nil {
		x.l.revoke()
		x.l.domain.Deregister(r.region)
	}
	x.unregister(r.regions)
	r.region, r.regions = nil, nil
}

// lend readies the memory of a send for the queue pairs.
func (x *traffic) lend(s *sending) (pieces [][]byte, err error) {
	for _, m := range s.op.Mem {
		pieces = append(pieces, m.Host)
	}
	if x.l.d.adapter == nil {
		return pieces, nil
	}
	if len(pieces) > maxPlaces {
		s.stage = newMessage(s.op.Size)
		for _, b := range pieces {
			s.stage.b = append(s.stage.b, b...)
		}
		pieces = [][]byte{s.stage.b}
	}
	s.regions, err = x.register(pieces, false)
	return pieces, err
}

// reclaim ends what lend has begun.
func (x *traffic) reclaim(s *sending) {
	x.unregister(s.regions)
	if s.stage != nil {
		s.stage.free()
	}
	s.regions, s.stage = nil, nil
}
