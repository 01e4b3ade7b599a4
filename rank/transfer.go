package rank

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// TransferDesc is one piece of a transfer: the bytes of Local, and as many from Offset on
// in the target's region of that key. It is HIXL's TransferOpDesc.
type TransferDesc struct {
	Local  kolo.Memory
	Region uint64 // Region.Key
	Offset int64  // bytes
}

// Target is a connection to a peer's window, by which this rank, the origin, reads and
// writes the peer's memory. Connections go one way: for transfers of the peer's own it
// makes another one.
//
// Transfers run at the same time and end in any order. A connection fails as a whole, as
// a queue pair does: when a transfer is past its deadline, when a context ends that it is
// waited for with, when the link breaks, or the peer closes its window or is lost, all that
// is outstanding fails with that cause and a new Connect is needed. What was written by a
// transfer that failed is not known. A transfer that is refused, because it is outside of
// the target's memory, has touched nothing and harms no other. Its methods may be called
// by any goroutine.
type Target struct {
	win     *Window
	peer    kolo.Rank
	conn    uint64
	regions []Region // known when ready is closed
	byKey   map[uint64]*Region
	ready   chan struct{} // closed when the connection is made or has failed
	ended   atomic.Pointer[error]

	// Of the rank actor.
	there    *Window // the peer's, where the engine reaches its memory
	line     *line   // else
	open     map[uint64]*Transfer
	order    notices
	last     uint64
	patience time.Time // when what is left is given up, after the connection has ended, or loss is its cause
	loss     error     // its link has broken
	made     bool
}

// The kinds of transfer.
const (
	transferPut byte = iota + 1
	transferGet
	transferNotify
)

// transferNames are the kinds in a word.
var transferNames = [...]string{transferPut: "put", transferGet: "get", transferNotify: "notify"}

// Transfer is a put, a get or a notice on its way: HIXL's TransferReq. Its methods may be
// called by any goroutine, any number of times. From the call until it has ended the local
// memory and the list belong to the runtime: that of a put is not written, that of a get
// neither read nor written.
type Transfer struct {
	target *Target
	kind   byte
	list   []TransferDesc
	notice *Notice
	size   int64 // bytes of data

	state atomic.Uint32 // ticketOpen or ticketDone
	done  chan struct{}
	err   error

	// Of the rank actor.
	id       uint64
	deadline time.Time
	op       channel.Op  // data, on a channel
	job      channel.Job // data, by the engine
	used     []*region   // the target's, of job
	turn     *turn       // of job
	once     sync.Once   // resolve
	moving   bool        // op or job has not ended
	answered bool        // the target has done its part
	failed   error
}

// Connect makes a connection to the window of the same name on a world rank, which may be
// this one, and knows its regions then. It waits for the peer to Listen, until ctx ends or for
// the window's Timeout.
func (win *Window) Connect(ctx context.Context, peer kolo.Rank) (*Target, error) {
	w := win.world
	g := &Target{win: win, peer: peer, conn: rand.Uint64(), ready: make(chan struct{}), open: map[uint64]*Transfer{}}
	if peer < 0 || int(peer) >= w.Size() {
		return nil, g.fault("connect", fmt.Errorf("%w: the world has ranks 0 to %d", kolo.ErrArgument, w.Size()-1))
	}
	w.actor.tell(nil, g)
	var timeout <-chan time.Time
	if win.timeout > 0 {
		timer := time.NewTimer(win.timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	var err error
	select {
	case <-g.ready:
	case <-win.world.canceling(ctx):
		err = fmt.Errorf("%w; rank %d does not answer, or its window does not listen", ctxerr.Of(ctx), int(peer))
	case <-timeout:
		err = fmt.Errorf("%w: after %v: rank %d does not answer, or its window does not listen", kolo.ErrDeadline, win.timeout, int(peer))
	}
	if err != nil && !isClosed(g.ready) { // an answer that is there counts
		g.end(err)
		return nil, g.fault("connect", err)
	}
	if err := g.ended.Load(); err != nil && !g.made {
		return nil, g.fault("connect", *err)
	}
	return g, nil
}

// canceling is what closes when a context ends, which for the one that Run gives its
// function is when Run's own does.
func (w *World) canceling(ctx context.Context) <-chan struct{} {
	if done := ctx.Done(); done != w.done || done == nil {
		return done
	}
	return w.over
}

// end ends the connection with a cause.
func (g *Target) end(cause error) { g.win.world.actor.tell(nil, &targetEnd{g, cause}) }

// Peer is the target's world rank.
func (g *Target) Peer() kolo.Rank { return g.peer }

// Regions lists the memory that the peer had registered when the connection was made.
func (g *Target) Regions() []Region { return append([]Region(nil), g.regions...) }

// Region finds a region of the peer by name.
func (g *Target) Region(name string) (Region, error) {
	for _, r := range g.regions {
		if r.Name == name {
			return r, nil
		}
	}
	return Region{}, g.fault("look up a region", fmt.Errorf("%w: it had no region %q when the connection was made; register memory before the peers connect", kolo.ErrArgument, name))
}

// Put writes local memory into the target's, and returns when it is there: HIXL's
// TransferSync with WRITE. The target hears nothing of it; see PutNotify.
func (g *Target) Put(ctx context.Context, list []TransferDesc) error {
	return g.PutAsync(list).Wait(ctx)
}

// Get reads the target's memory into local memory: HIXL's TransferSync with READ.
func (g *Target) Get(ctx context.Context, list []TransferDesc) error {
	return g.GetAsync(list).Wait(ctx)
}

// PutNotify is a Put and a Notify behind it, in one message.
func (g *Target) PutNotify(ctx context.Context, list []TransferDesc, n Notice) error {
	return g.PutNotifyAsync(list, n).Wait(ctx)
}

// Notify gives the target a notice when all transfers that were started before it on this
// connection have ended, and returns when the target has it: HIXL's SendNotify.
func (g *Target) Notify(ctx context.Context, n Notice) error { return g.NotifyAsync(n).Wait(ctx) }

// PutAsync is Put that returns at once.
func (g *Target) PutAsync(list []TransferDesc) *Transfer { return g.start(transferPut, list, nil) }

// GetAsync is Get that returns at once.
func (g *Target) GetAsync(list []TransferDesc) *Transfer { return g.start(transferGet, list, nil) }

// PutNotifyAsync is PutNotify that returns at once.
func (g *Target) PutNotifyAsync(list []TransferDesc, n Notice) *Transfer {
	return g.start(transferPut, list, &n)
}

// NotifyAsync is Notify that returns at once.
func (g *Target) NotifyAsync(n Notice) *Transfer { return g.start(transferNotify, nil, &n) }

// Disconnect waits for what is outstanding, then ends the connection. If ctx ends first,
// that fails with kolo.ErrCanceled.
func (g *Target) Disconnect(ctx context.Context) error {
	fence := g.start(transferNotify, nil, nil) // a notice of nothing comes behind all the rest
	err := fence.Wait(ctx)
	g.end(fmt.Errorf("%w: the connection was disconnected", kolo.ErrClosed))
	if errors.Is(err, kolo.ErrClosed) || errors.Is(err, kolo.ErrLeft) || errors.Is(err, kolo.ErrLost) {
		return nil // it had ended before
	}
	return err
}

// start checks a transfer and sends it on its way.
func (g *Target) start(kind byte, list []TransferDesc, n *Notice) *Transfer {
	x := &Transfer{target: g, kind: kind, list: list, notice: n, done: make(chan struct{})}
	for i := range list {
		x.size += list[i].Local.Len()
	}
	if err := x.check(); err != nil {
		x.resolve(err)
		return x
	}
	g.win.world.actor.tell(nil, x)
	return x
}

// check says what is wrong with a transfer, before anything is touched.
func (x *Transfer) check() error {
	if len(x.list) > maxPieces {
		return fmt.Errorf("%w: %d pieces; at most %d", kolo.ErrLimit, len(x.list), maxPieces)
	}
	if n := x.notice; n != nil && (len(n.Name) > maxNotice || len(n.Message) > maxNotice) {
		return fmt.Errorf("%w: a notice has a name of %d bytes and a message of %d; at most %d each", kolo.ErrLimit, len(n.Name), len(n.Message), maxNotice)
	}
	engine := x.target.win.world.p.engine
	for i := range x.list {
		d := &x.list[i]
		r := x.target.byKey[d.Region]
		if r == nil {
			return fmt.Errorf("piece %d: %w: the target had no region of key %#x when the connection was made", i, kolo.ErrArgument, d.Region)
		}
		if err := r.holds(d.Offset, d.Local.Len()); err != nil {
			return fmt.Errorf("piece %d: %w", i, err)
		}
		if s := d.Local.Space; s != kolo.HostSpace && !engine.Reaches(s) {
			return fmt.Errorf("piece %d: %w", i, unreached(s))
		}
	}
	return nil
}

// places are where the pieces lie at the target.
func (x *Transfer) places() []place {
	list := make([]place, len(x.list))
	for i := range x.list {
		list[i] = place{x.list[i].Region, x.list[i].Offset, x.list[i].Local.Len()}
	}
	return list
}

// local is the memory of the pieces here.
func (x *Transfer) local() []kolo.Memory {
	list := make([]kolo.Memory, len(x.list))
	for i := range x.list {
		list[i] = x.list[i].Local
	}
	return list
}

// resolve ends the transfer. The first call counts.
func (x *Transfer) resolve(err error) {
	x.once.Do(func() {
		if err != nil {
			x.err = x.target.fault(x.what(), err)
		}
		x.state.Store(ticketDone)
		close(x.done)
	})
}

// what is the transfer in words.
func (x *Transfer) what() string {
	switch x.kind {
	case transferPut:
		return fmt.Sprintf("put of %d bytes, pieces: %d", x.size, len(x.list))
	case transferGet:
		return fmt.Sprintf("get of %d bytes, pieces: %d", x.size, len(x.list))
	}
	return "notify"
}

// fault is an error of this rank that concerns the connection.
func (g *Target) fault(what string, err error) error {
	return &kolo.Error{Rank: g.win.world.rank, Peer: g.peer, Err: fmt.Errorf("%s, window %q: %w", what, g.win.name, err)}
}

// Wait returns when the transfer has ended, with its error. The memory is the caller's
// again. If ctx ends first, the connection fails with kolo.ErrCanceled.
func (x *Transfer) Wait(ctx context.Context) error {
	if x.state.Load() == ticketDone {
		return x.err
	}
	w := x.target.win.world
	if x.size > lendFrom {
		w.p.engine.Lend(&x.state, 0, 2*x.size)
	}
	if p := w.p.poller; p != nil && x.state.Load() != ticketDone {
		p.Poll(&x.state)
	}
	select {
	case <-x.done:
	case <-w.canceling(ctx):
		if !isClosed(x.done) { // else the connection has done no wrong
			x.target.end(fmt.Errorf("%s: %w", x.what(), ctxerr.Of(ctx)))
		}
		<-x.done
	}
	return x.err
}

// isClosed says whether a channel is closed, on which nothing is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Done is closed when the transfer has ended. Wait then returns at once.
func (x *Transfer) Done() <-chan struct{} { return x.done }
