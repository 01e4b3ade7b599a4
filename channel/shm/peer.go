//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// peer is another process, or the way from this process to itself. Its links share a
// ring in each direction.
//
//	idle --connect--> joining --handshake--> up --end of the process, Close--> lost
//	  \------------------- hello ------------/        (also from idle and joining)
type peer struct {
	d *Driver
	address
	told bool // of the arenas that there are; the driver's arenaMu guards it
	loop bool // this process: an offer is at hand as the op that made it

	stuck atomic.Bool // there is something to write that had no room
	in    reader

	mu    sync.Mutex
	ranks []kolo.Rank // in the order of Meet
	state state
	lost  error
	wiring
	out     writer
	links   map[way]*link
	gone    map[kolo.Rank]bool // ranks that have closed all their links
	backlog []item             // to be written, in order, before anything else
	streams []stream           // offers that go in chunks, in turn
	offers  [slots]offered
	spare   []uint32 // numbers of offers whose slots are free
	inflow  map[uint32]*move
	regions map[uint32]*region
	boards  map[uint64]uint32 // the region that is the board of a group
	charged uint64            // bytes of messages written
	taken   uint64            // bytes of messages read that this process holds no more
	scratch []byte            // a list of spans that is written
	spans   []span            // a list that was read
	rose    chan struct{}     // closed when it is up or lost
}

type state uint8

const (
	idle state = iota
	joining
	up
	lost
)

// wiring is what a handshake makes.
type wiring struct {
	mem, bellMem []byte
	to, from     area
	bell         bell // the peer's
	process      process
	reads        bool  // the kernel lets this process read the peer's private memory
	refusal      error // why not
	sock         *net.UnixConn
}

// way names a link by its ends, as this process sees them.
type way struct{ local, remote kolo.Rank }

// item is a frame to be written, with the op whose bytes it carries or offers.
type item struct {
	f    frame
	op   *channel.Op
	link *link // of the op
}

// offered is a send whose bytes the receiver fetches.
type offered struct {
	op     *channel.Op
	link   *link
	number uint32
}

// stream is an offer that the receiver wants in chunks.
type stream struct {
	number uint32
	off    int64
}

// The states of a slot, in the low bits of its word; the number of the offer is above.
// The sender offers and withdraws, the receiver claims and is done.
const (
	slotOffered = 1 + iota
	slotClaimed
	slotDone
)

func slotWord(number uint32, state uint64) uint64 { return uint64(number)<<8 | state }

// The limits of what a peer may make this process hold.
const (
	window   = 4 << 20 // bytes of messages that have met no receive
	maxLinks = 1 << 17 // links of two processes
	perDrain = 32      // frames between two releases of the lock
)

func newPeer(d *Driver, a address) *peer {
	p := &peer{d: d, address: a, links: map[way]*link{}, gone: map[kolo.Rank]bool{}, inflow: map[uint32]*move{},
		regions: map[uint32]*region{}, boards: map[uint64]uint32{}, rose: make(chan struct{})}
	for i := range uint32(slots) {
		p.spare = append(p.spare, slots-1-i)
	}
	return p
}

func (p *peer) add(r kolo.Rank) {
	p.mu.Lock()
	p.ranks = append(p.ranks, r)
	p.mu.Unlock()
}

// String names the process by what a user knows of it.
func (p *peer) String() string {
	return fmt.Sprintf("process %d, which has the ranks %s", p.Process, kolo.RankList(p.ranks))
}

// turn is what is to be done when the peer's lock is released: nobody is called under
// it.
type turn struct {
	t     channel.Turn
	few   [4]ended // the first that end; a list of them would be on the heap
	count int
	done  []ended // the others
	moves []*move
	ring  bool // the peer has something to look at
}

type ended struct {
	op  *channel.Op
	err error
}

func (u *turn) end(op *channel.Op, err error) {
	if u.count < len(u.few) {
		u.few[u.count] = ended{op, err}
		u.count++
		return
	}
	u.done = append(u.done, ended{op, err})
}

// unlock releases the lock and does what has come up under it.
func (p *peer) unlock(u *turn) {
	b := p.bell
	p.mu.Unlock()
	if u.ring {
		b.ring()
	}
	for i := range u.count {
		u.few[i].op.Complete(u.t, u.few[i].err)
	}
	for i := range u.done {
		u.done[i].op.Complete(u.t, u.done[i].err)
	}
	for _, m := range u.moves {
		m.start(u.t)
	}
}

// rise takes a peer into use, unless it is so already or lost.
func (p *peer) rise(w wiring) bool {
	var u turn
	p.mu.Lock()
	if p.state >= up {
		p.mu.Unlock()
		return false
	}
	p.wiring = w
	p.out.area, p.in.area = w.to, w.from
	p.state = up
	close(p.rose)
	if !p.loop {
		p.d.mu.Lock()
		for r := range p.d.gone {
			p.push(&u, item{f: frame{kind: gone, from: r}})
		}
		p.d.mu.Unlock()
	}
	p.flush(&u)
	p.unlock(&u)
	p.d.listenTo(p)
	return true
}

// fail ends all links of the peer with err. Messages that have come whole can still
// be received.
func (p *peer) fail(err error) {
	var u turn
	p.mu.Lock()
	p.failing(&u, err)
	p.unlock(&u)
}

func (p *peer) failing(u *turn, err error) {
	if p.state == lost {
		return
	}
	if p.state != up {
		close(p.rose)
	}
	p.state, p.lost = lost, err
	p.d.losses.Add(1)
	p.stuck.Store(false)
	for _, l := range p.links {
		l.lose(u, err)
	}
	for i := range p.offers {
		if o := &p.offers[i]; o.op != nil {
			u.end(o.op, err)
			p.out.slots[i].Store(0) // a receiver that is fetching learns that this came to nothing
			o.op = nil
		}
	}
	for _, it := range p.backlog {
		if it.op != nil {
			u.end(it.op, err)
		}
	}
	for _, m := range p.inflow {
		u.end(m.op, err)
		p.d.moving.Done()
	}
	p.backlog, p.streams = nil, nil
	clear(p.inflow)
	if p.sock != nil {
		_ = p.sock.Close() // it ends attend
	}
}

// unmap gives back the memory of a peer that is lost; nobody uses it any more.
func (p *peer) unmap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range [][]byte{p.mem, p.bellMem} {
		if m != nil {
			_ = unix.Munmap(m) // it is a mapping
		}
	}
	for _, r := range p.regions {
		_ = unix.Munmap(r.mem) // it is a mapping
	}
	p.mem, p.bellMem, p.regions = nil, nil, nil
	p.process.close()
	p.process = process{}
}

// lingerFor is how long a Close waits for peers to take what is on its way to them.
const lingerFor = 200 * time.Millisecond

// linger waits a moment for what has had no room in the ring.
func (p *peer) linger() {
	for start := time.Now(); p.stuck.Load() && time.Since(start) < lingerFor; {
		p.drain()
		yield()
	}
}

// drain takes what the peer has written and writes what had no room. It says whether
// there was anything.
func (p *peer) drain() (found bool) {
	for more := true; more; {
		var u turn
		p.mu.Lock()
		if p.state != up {
			p.mu.Unlock()
			return found
		}
		n := p.read(&u)
		wrote := p.flush(&u)
		p.unlock(&u)
		found = found || n > 0 || wrote
		more = n == perDrain
	}
	return found
}

// read handles some frames, and says how many.
func (p *peer) read(u *turn) (n int) {
	var f frame
	for n < perDrain {
		ok, err := p.in.next(&f)
		if err == nil && ok {
			err = p.handle(u, &f)
		}
		if err != nil {
			p.failing(u, fmt.Errorf("%w: %v has written what makes no sense: %w", kolo.ErrLost, p, err))
			p.d.deafen(p)
			return n
		}
		if !ok {
			break
		}
		p.in.skip(&f)
		n++
	}
	if n > 0 && p.in.free() {
		u.ring = true
	}
	return n
}

// handle does what one frame says.
func (p *peer) handle(u *turn, f *frame) error {
	switch f.kind {
	case message, offer, abandoned, hungUp:
		l, err := p.linkOf(f)
		if err != nil {
			return err
		}
		return l.handle(u, f)
	case chunk:
		return p.takeChunk(u, f)
	case gone:
		p.gone[f.from] = true
		err := fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, f.from)
		for w, l := range p.links {
			if w.remote == f.from {
				l.lose(u, err)
				l.withdraw(u, err, every)
			}
		}
		return nil
	}
	o := &p.offers[f.offer%slots]
	if o.op == nil || o.number != f.offer {
		return nil // it has ended meanwhile
	}
	switch f.kind {
	case wanted:
		if slices.ContainsFunc(p.streams, func(s stream) bool { return s.number == f.offer }) {
			return fmt.Errorf("%w: an offer is wanted twice", errCorrupt)
		}
		p.streams = append(p.streams, stream{number: f.offer})
		p.stuck.Store(true)
		return nil
	case refused:
		p.close(u, f.offer, disagree(frame{length: uint64(o.op.Size), dtype: o.op.DType, digest: o.op.Digest},
			&channel.Op{Size: int64(f.length), DType: f.dtype, Digest: f.digest}))
	case failed:
		p.close(u, f.offer, fmt.Errorf("%w: %v could not fetch the bytes", kolo.ErrLost, p))
	case fetched:
		p.close(u, f.offer, nil)
	}
	return nil
}

// close ends an offer.
func (p *peer) close(u *turn, number uint32, err error) {
	o := &p.offers[number%slots]
	u.end(o.op, err)
	o.op = nil
	p.out.slots[number%slots].Store(0)
	p.spare = append(p.spare, number+slots)
	if len(p.backlog) > 0 {
		p.stuck.Store(true)
	}
}

// push writes an item, or keeps it until there is room.
func (p *peer) push(u *turn, it item) {
	if p.state == lost {
		return
	}
	if p.state == up && len(p.backlog) == 0 && p.write(u, &it) {
		return
	}
	if p.state == lost { // write has found the ring corrupt
		if it.op != nil {
			u.end(it.op, p.lost)
		}
		return
	}
	p.backlog = append(p.backlog, it)
	p.stuck.Store(p.state == up)
}

// flush writes what had no room, as far as there is room for it.
func (p *peer) flush(u *turn) (wrote bool) {
	if p.state != up || !p.stuck.Load() && len(p.backlog) == 0 {
		return false
	}
	n := 0
	for n < len(p.backlog) && p.write(u, &p.backlog[n]) {
		p.backlog[n] = item{} // should the next one find the peer lost
		n++
	}
	if p.state != up {
		return n > 0
	}
	wrote = n > 0
	p.backlog = slices.Delete(p.backlog, 0, n)
	for len(p.backlog) == 0 && len(p.streams) > 0 && p.state == up && p.writeChunk(u) {
		wrote = true
	}
	p.stuck.Store(p.state == up && len(p.backlog)+len(p.streams) > 0)
	return wrote
}

// write writes an item if there is room. The peer may be lost afterwards.
func (p *peer) write(u *turn, it *item) (done bool) {
	f := &it.f
	if f.kind == message && f.size > 0 && !p.credit(f.entry()) {
		f.kind, f.size = offer, 0
	}
	var mem []kolo.Memory
	if it.op != nil {
		mem = it.op.Mem
	}
	var number uint32
	if f.kind == offer {
		if len(p.spare) == 0 {
			return false
		}
		number = p.spare[len(p.spare)-1]
		f.offer = number
		p.scratch = p.d.appendSpans(p.scratch[:0], mem)
		f.size = uint32(len(p.scratch))
		mem = []kolo.Memory{kolo.HostMemory(p.scratch)}
	}
	if !p.room(u, f.entry()) {
		return false
	}
	switch f.kind {
	case message:
		p.charged += f.entry()
		u.end(it.op, nil)
	case offer:
		p.spare = p.spare[:len(p.spare)-1]
		p.offers[number%slots] = offered{it.op, it.link, number}
		p.out.slots[number%slots].Store(slotWord(number, slotOffered))
	}
	p.out.put(f, mem, 0)
	u.ring = true
	return true
}

// room says whether an entry of n bytes fits. Where not, the peer rings when it does.
func (p *peer) room(u *turn, n uint64) bool {
	ok, err := p.out.room(n)
	if err == nil && !ok {
		p.out.waits.Store(1)
		ok, err = p.out.room(n)
	}
	if err != nil {
		p.failing(u, fmt.Errorf("%w: %v has written what makes no sense: %w", kolo.ErrLost, p, err))
		return false
	}
	return ok
}

// credit says whether the peer holds little enough that has met no receive.
func (p *peer) credit(n uint64) bool {
	if p.charged+n <= window {
		return true
	}
	return p.charged+n-min(p.out.taken.Load(), p.charged) <= window
}

// release notes that n bytes of a message that was read are held no more.
func (p *peer) release(n uint64) {
	p.taken += n
	if p.mem != nil {
		p.in.taken.Store(p.taken)
	}
}

// writeChunk writes the next piece of the first stream, and says whether there was room
// for it.
func (p *peer) writeChunk(u *turn) bool {
	s := p.streams[0]
	o := &p.offers[s.number%slots]
	if o.op == nil || o.number != s.number {
		p.streams = p.streams[1:]
		return true
	}
	f := frame{kind: chunk, offer: s.number, length: uint64(s.off), size: uint32(min(chunkBytes, o.op.Size-s.off))}
	if !p.room(u, f.entry()) {
		return false
	}
	p.out.put(&f, o.op.Mem, s.off)
	u.ring = true
	s.off += int64(f.size)
	p.streams = p.streams[1:]
	if s.off == o.op.Size {
		p.close(u, s.number, nil)
	} else {
		p.streams = append(p.streams, s) // behind the others
	}
	return true
}
