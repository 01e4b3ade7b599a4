//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// move is a message on its way to a receive of this process: a claimed offer.
type move struct {
	p      *peer
	op     *channel.Op
	number uint32
	chunks bool // the sender writes it into the ring

	to   []kolo.Memory // where it goes; of a View into held
	held *hold
	off  int64 // of chunks: bytes that have come

	at      []kolo.Memory // the sender's memory, where this process has it
	regions []*region     // what at is in
	remote  []span        // else where it is in the sender's process

	next, left atomic.Int64 // bytes to take and to come, where movers fetch
	err        atomic.Pointer[error]
}

// claim takes an offer, unless its sender has taken it back.
func (p *peer) claim(number uint32) bool {
	return p.in.slots[number%slots].CompareAndSwap(slotWord(number, slotOffered), slotWord(number, slotClaimed))
}

// begin decides how the bytes of a claimed offer come.
func (l *link) begin(u *turn, f *frame, spans []span, op *channel.Op) {
	p := l.p
	m := &move{p: p, op: op, number: f.offer, to: op.Mem}
	if err := disagree(*f, op); err != nil {
		p.in.slots[f.offer%slots].Store(slotWord(f.offer, slotDone))
		p.push(u, item{f: frame{kind: refused, offer: f.offer, length: uint64(op.Size), dtype: op.DType, digest: op.Digest}})
		u.end(op, err)
		return
	}
	p.d.moving.Add(1) // until finish
	if p.inPlace(m, spans) {
		u.moves = append(u.moves, m)
		return
	}
	if op.Kind == channel.View {
		m.held = p.d.buffers.get(int(op.Size))
		m.to = []kolo.Memory{kolo.HostMemory(m.held.buf)}
	}
	if p.reads && len(spans) > 0 {
		m.remote = append(m.remote, spans...)
		u.moves = append(u.moves, m)
		return
	}
	m.chunks = true
	p.inflow[f.offer] = m
	p.push(u, item{f: frame{kind: wanted, offer: f.offer}})
}

// inPlace finds the sender's memory in this process: its own, or segments of a peer.
func (p *peer) inPlace(m *move, spans []span) bool {
	if p.loop {
		m.at = append(m.at, p.offers[m.number%slots].op.Mem...)
		return true
	}
	for _, s := range spans {
		r := p.regions[s.region]
		if s.region == 0 || r == nil || s.offset > uint64(len(r.mem)) || s.size > uint64(len(r.mem))-s.offset {
			m.at = nil
			return false
		}
		m.at = append(m.at, kolo.HostMemory(r.mem[s.offset:][:s.size:s.size]))
	}
	if len(spans) == 0 {
		return false
	}
	for _, s := range spans {
		r := p.regions[s.region]
		r.users++
		m.regions = append(m.regions, r)
	}
	return true
}

// fetchHere is the size up to which the goroutine at hand fetches a message itself.
const fetchHere = 128 << 10

// start fetches the bytes, or lets others do it. It is called without locks.
func (m *move) start(t channel.Turn) {
	op := m.op
	switch {
	case m.at != nil && op.Kind == channel.View:
		op.Mem, op.Hold = append(op.Mem[:0], m.at...), m
		m.p.d.moving.Done() // Close does not wait for who holds a View
		op.Complete(t, nil)
	case m.at != nil:
		op.Job.Reset()
		op.Job.AddMove(op.Mem, m.at)
		op.Job.Done = func(t channel.Turn, err error) {
			op.Job.Done = nil
			m.finish(t, err)
		}
		m.p.d.config.Engine.Start(t, &op.Job)
	case op.Size <= fetchHere:
		m.finish(t, m.fetch(0, op.Size))
	default:
		m.left.Store(op.Size)
		m.p.d.movers.add(m)
	}
}

// finish tells the sender that its memory is its own again, and completes the op, a
// View in place excepted, which has completed.
func (m *move) finish(t channel.Turn, err error) {
	p, op := m.p, m.op
	inPlaceView := op.Kind == channel.View && m.at != nil
	u := turn{t: t}
	p.mu.Lock()
	f := frame{kind: fetched, offer: m.number}
	if err != nil {
		f.kind = failed
	}
	if p.mem != nil {
		done := p.in.slots[m.number%slots].CompareAndSwap(slotWord(m.number, slotClaimed), slotWord(m.number, slotDone))
		if !done && err == nil {
			err = fmt.Errorf("%w: %v took the bytes back while they were fetched", kolo.ErrLost, p)
		}
		p.push(&u, item{f: f})
	}
	for _, r := range m.regions {
		p.leaveRegion(r)
	}
	if !inPlaceView {
		m.hand(err)
		u.end(op, err)
	}
	p.unlock(&u)
	if !inPlaceView {
		p.d.moving.Done()
	}
}

// hand makes what was fetched the View's.
func (m *move) hand(err error) {
	switch {
	case m.held == nil:
	case err == nil:
		m.op.Mem, m.op.Hold = append(m.op.Mem[:0], m.to...), m.held
	default:
		m.p.d.buffers.put(m.held)
	}
}

// takeChunk takes a piece of a message that comes in chunks.
func (p *peer) takeChunk(u *turn, f *frame) error {
	m := p.inflow[f.offer]
	if m == nil || uint64(m.off) != f.length || int64(f.size) > m.op.Size-m.off {
		return fmt.Errorf("%w: a chunk of %d bytes at %d that nobody waits for", errCorrupt, f.size, f.length)
	}
	p.in.scatter(f, m.to, m.off)
	if m.off += int64(f.size); m.off == m.op.Size {
		delete(p.inflow, f.offer)
		m.hand(nil)
		u.end(m.op, nil)
		p.d.moving.Done()
	}
	return nil
}

// fetch reads n bytes, from off on, out of the sender's process.
func (m *move) fetch(off, n int64) error {
	p := m.p
	var space [4]unix.Iovec
	var far [4]unix.RemoteIovec
	local, remote := space[:0], far[:0]
	skip, left := off, n
	for _, d := range m.to {
		if b := d.Host; left > 0 && skip < int64(len(b)) {
			b = b[skip:min(int64(len(b)), skip+left)]
			local = append(local, unix.Iovec{Base: &b[0], Len: uint64(len(b))})
			skip, left = 0, left-int64(len(b))
		} else {
			skip -= int64(len(b))
		}
	}
	skip, left = off, n
	for _, s := range m.remote {
		if size := int64(s.size); left > 0 && skip < size {
			k := min(size-skip, left)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(s.addr) + uintptr(skip), Len: int(k)})
			skip, left = 0, left-k
		} else {
			skip -= size
		}
	}
	if err := readAll(p.process, local, remote); err != nil {
		return fmt.Errorf("%w: %w", kolo.ErrLost, err)
	}
	if !p.process.alive() {
		return fmt.Errorf("%w: %v ended while its memory was read", kolo.ErrLost, p)
	}
	return nil
}

// maxVectors is how many pieces the kernel takes at once.
const maxVectors = 1024

// readAll reads lists of any length.
func readAll(from process, local []unix.Iovec, remote []unix.RemoteIovec) error {
	if len(local) <= maxVectors {
		return from.read(local, remote)
	}
	for len(local) > 0 {
		some := local[:min(maxVectors, len(local))]
		n := 0
		for i := range some {
			n += int(some[i].Len)
		}
		part, left := []unix.RemoteIovec(nil), n
		for _, r := range remote {
			if left == 0 {
				break
			}
			k := min(left, r.Len)
			part = append(part, unix.RemoteIovec{Base: r.Base, Len: k})
			left -= k
		}
		if err := from.read(some, part); err != nil {
			return err
		}
		local, remote = local[len(some):], cutRemote(remote, n)
	}
	return nil
}

func bytesOf(v unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }

// movers fetch large messages: goroutines of the driver, and ranks that wait.
type movers struct {
	mu     sync.Mutex
	cond   *sync.Cond
	list   []*move // with bytes to take
	open   atomic.Int32
	closed bool
}

// moveBlock is what a mover fetches at a time.
const moveBlock = 256 << 10

func (v *movers) init() { v.cond = sync.NewCond(&v.mu) }

func (v *movers) add(m *move) {
	v.mu.Lock()
	v.list = append(v.list, m)
	v.open.Store(int32(len(v.list)))
	v.mu.Unlock()
	v.cond.Broadcast()
}

// take takes a block of the oldest message.
func (v *movers) take() (m *move, off int64) {
	if len(v.list) == 0 {
		return nil, 0
	}
	m = v.list[0]
	off = m.next.Add(moveBlock) - moveBlock
	if off+moveBlock >= m.op.Size {
		v.list = append(v.list[:0], v.list[1:]...)
		v.open.Store(int32(len(v.list)))
	}
	return m, off
}

// help fetches one block, if there is one.
func (v *movers) help() bool {
	if v.open.Load() == 0 {
		return false
	}
	v.mu.Lock()
	m, off := v.take()
	v.mu.Unlock()
	if m == nil {
		return false
	}
	m.block(off)
	return true
}

// run is a mover.
func (v *movers) run() {
	for {
		v.mu.Lock()
		for len(v.list) == 0 && !v.closed {
			v.cond.Wait()
		}
		m, off := v.take()
		v.mu.Unlock()
		if m == nil {
			return
		}
		m.block(off)
		runtime.Gosched()
	}
}

func (v *movers) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cond.Broadcast()
}

// block fetches one block of a message; who does the last finishes it.
func (m *move) block(off int64) {
	n := min(moveBlock, m.op.Size-off)
	if m.err.Load() == nil {
		if err := m.fetch(off, n); err != nil {
			m.err.CompareAndSwap(nil, &err)
		}
	}
	if m.left.Add(-n) > 0 {
		return
	}
	if err := m.err.Load(); err != nil {
		m.finish(nil, *err)
		return
	}
	m.finish(nil, nil)
}

// buffers keeps memory for messages that have met no receive and for Views, by the
// power of two that it holds.
type buffers [48]sync.Pool

func (b *buffers) get(n int) *hold {
	class := bits.Len(uint(max(n, 64) - 1))
	h, _ := b[class].Get().(*hold)
	if h == nil {
		h = &hold{buf: make([]byte, 1<<class)}
	}
	h.buf = h.buf[:n]
	return h
}

func (b *buffers) put(h *hold) { b[bits.Len(uint(cap(h.buf)-1))].Put(h) }
