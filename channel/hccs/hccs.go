package hccs

import (
	"fmt"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// New makes the driver of one world. It is registered as "hccs".
func New(c channel.Config) (channel.Driver, error) {
	if c.Engine == nil {
		return nil, fmt.Errorf("%w: the hccs driver needs an engine", kolo.ErrArgument)
	}
	return &driver{engine: c.Engine, wires: map[way]*wire{}, gone: map[kolo.Rank]error{}}, nil
}

// driver is the switchboard of a world: a wire for each direction between two ranks.
type driver struct {
	engine channel.Engine
	mu     sync.Mutex
	wires  map[way]*wire
	gone   map[kolo.Rank]error // ranks whose endpoint is closed
	calls  sync.WaitGroup
}

type way struct{ from, to kolo.Rank }

// wire is one direction between two ranks: sends that have not met their receive
// and receives that have not met their send.
type wire struct {
	mu     sync.Mutex
	sends  []*channel.Op
	recvs  []*channel.Op
	closed error
}

func (d *driver) Link() kolo.Link { return kolo.LinkHCCS }

// Direct is true for all ranks: they share the engine.
func (d *driver) Direct(_, _ kolo.Rank) bool { return true }

func (d *driver) Close() error {
	d.calls.Wait()
	return nil
}

func (d *driver) Open(rank kolo.Rank) (channel.Endpoint, error) { return &endpoint{d, rank}, nil }

type endpoint struct {
	d    *driver
	rank kolo.Rank
}

// Close breaks the wires from and to the rank, also those that a peer makes later.
func (e *endpoint) Close() {
	d, gone := e.d, fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, e.rank)
	var broken []*wire
	d.mu.Lock()
	if d.gone[e.rank] == nil {
		d.gone[e.rank] = gone
		for w, wire := range d.wires {
			if w.from == e.rank || w.to == e.rank {
				broken = append(broken, wire)
			}
		}
	}
	d.mu.Unlock()
	var ops []*channel.Op
	for _, w := range broken {
		ops = append(ops, w.pick(gone, sends, every)...)
		ops = append(ops, w.pick(gone, recvs, every)...)
	}
	if len(ops) == 0 {
		return
	}
	// ended by the driver's Close; this Close has no turn, and may be called in one
	d.calls.Go(func() { complete(nil, ops, gone) })
}

func (e *endpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	return &conn{engine: e.d.engine, me: e.rank, peer: peer,
		out: e.d.wire(e.rank, peer), in: e.d.wire(peer, e.rank)}, nil
}

func (d *driver) wire(from, to kolo.Rank) *wire {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.wires[way{from, to}]
	if w == nil {
		w = &wire{closed: d.gone[from]}
		if w.closed == nil {
			w.closed = d.gone[to]
		}
		d.wires[way{from, to}] = w
	}
	return w
}

// conn is one rank's end of the two wires to a peer.
type conn struct {
	engine   channel.Engine
	me, peer kolo.Rank
	out, in  *wire
}

func (c *conn) Post(t channel.Turn, op *channel.Op) {
	w, here, there := c.in, &c.in.recvs, &c.in.sends
	if op.Kind == channel.Send {
		w, here, there = c.out, &c.out.sends, &c.out.recvs
	}
	w.mu.Lock()
	if err := w.closed; err != nil {
		w.mu.Unlock()
		op.Complete(t, err)
		return
	}
	mate := take(there, op.Key)
	if mate == nil {
		*here = append(*here, op)
	}
	w.mu.Unlock()
	switch {
	case mate == nil:
	case op.Kind == channel.Send:
		c.meet(t, op, mate)
	default:
		c.meet(t, mate, op)
	}
}

// take removes and returns the first op with the key, or nil.
func take(list *[]*channel.Op, k channel.Key) *channel.Op {
	for i, op := range *list {
		if op.Key == k {
			last := len(*list) - 1
			copy((*list)[i:], (*list)[i+1:])
			(*list)[last] = nil
			*list = (*list)[:last]
			return op
		}
	}
	return nil
}

// meet does the transfer of a send and a receive that belong together.
func (c *conn) meet(t channel.Turn, send, recv *channel.Op) {
	if err := channel.Agree(send, recv); err != nil {
		send.Complete(t, err)
		recv.Complete(t, err)
		return
	}
	recv.Mate = send
	if recv.Kind == channel.View {
		recv.Mem = append(recv.Mem[:0], send.Mem...)
		recv.Complete(t, nil)
		return
	}
	j := &recv.Job
	j.Reset()
	j.AddMove(recv.Mem, send.Mem)
	if j.Done == nil {
		j.Done = func(t channel.Turn, err error) {
			mate := recv.Mate
			recv.Mate = nil
			mate.Complete(t, err)
			recv.Complete(t, err)
		}
	}
	c.engine.Start(t, j)
}

func (c *conn) Release(t channel.Turn, op *channel.Op) {
	mate := op.Mate
	op.Mate = nil
	mate.Complete(t, nil)
}

func (c *conn) Abort(t channel.Turn, group uint64, cause error) {
	c.out.drop(t, cause, nil, sends, func(op *channel.Op) bool { return op.Key.Group == group })
	c.in.drop(t, cause, nil, recvs, func(op *channel.Op) bool { return op.Key.Group == group })
}

// Close ends both wires: the peer's ops that wait for this rank have lost it. This
// rank's own come first, for where it is its own peer.
func (c *conn) Close(t channel.Turn, cause error) {
	gone := fmt.Errorf("%w: %v has closed the link to %v: %w", kolo.ErrLost, c.me, c.peer, cause)
	c.out.drop(t, cause, gone, sends, every)
	c.in.drop(t, cause, gone, recvs, every)
	c.out.drop(t, gone, gone, recvs, every)
	c.in.drop(t, gone, gone, sends, every)
}

func every(*channel.Op) bool { return true }

func sends(w *wire) *[]*channel.Op { return &w.sends }
func recvs(w *wire) *[]*channel.Op { return &w.recvs }

// drop completes the ops of one list of the wire that which picks, with cause. With
// closed set, the wire takes no further op.
func (w *wire) drop(t channel.Turn, cause, closed error, list func(*wire) *[]*channel.Op, which func(*channel.Op) bool) {
	complete(t, w.pick(closed, list, which), cause)
}

// pick takes ops out of one list of the wire.
func (w *wire) pick(closed error, list func(*wire) *[]*channel.Op, which func(*channel.Op) bool) (gone []*channel.Op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if closed != nil && w.closed == nil {
		w.closed = closed
	}
	at := list(w)
	kept := (*at)[:0]
	for _, op := range *at {
		if which(op) {
			gone = append(gone, op)
		} else {
			kept = append(kept, op)
		}
	}
	clear((*at)[len(kept):])
	*at = kept
	return gone
}

func complete(t channel.Turn, ops []*channel.Op, err error) {
	for _, op := range ops {
		op.Complete(t, err)
	}
}
