//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"unsafe"

	"github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// The low half of a request's number: a receive, or a send and whether it is the last
// of its work; then the slot. The high half is the queue's serial.
const (
	idReceive = 1 << 31
	idLast    = 1 << 30
	idSlot    = 1<<16 - 1
	noSlot    = idSlot
)

// queue is a queue pair, a roce.Queue.
type queue struct {
	a      *adapter
	cfg    roce.QueueConfig
	serial uint32
	qp     uintptr
	number uint32
	cq     *completions
	arena  *arena
	slots  []int // of messages to send, that are free
	sge    int   // pieces of a request
	depth  int   // requests that may be on their way
	inline int

	waiting []roce.Work // not given to the device, or the first not wholly
	at      int64       // what of the first was given
	flight  int         // requests that the device has
	kinds   []rc.Kind   // of the works that have not completed, oldest first
	done    []rc.Completion
	err     error
	dead    bool
	wr      struct { // what the device reads; on the heap with the queue
		send abiSendWR
		recv abiRecvWR
		list [mostSGE]abiSGE
		bad  uintptr
	}

	mu      sync.Mutex
	arrived []abiWC
	broken  error
	woken   bool
}

// NewQueue makes a queue pair.
func (a *adapter) NewQueue(c roce.QueueConfig) (roce.Queue, error) {
	q := &queue{a: a, cfg: c, depth: min(sendDepth, int(a.limit.maxQPWR)), sge: min(mostSGE, int(a.limit.maxSGE))}
	var err error
	if q.cq, err = a.reserve(q.entries()); err != nil {
		return nil, err
	}
	if err := q.create(); err != nil {
		a.mu.Lock()
		q.cq.room += q.entries()
		a.mu.Unlock()
		return nil, err
	}
	a.mu.Lock()
	for a.serial++; a.queues[a.serial] != nil; a.serial++ {
	}
	q.serial = a.serial
	a.queues[q.serial] = q
	a.mu.Unlock()
	return q, nil
}

// entries is the most completions of the queue pair at a time.
func (q *queue) entries() int { return q.depth + q.cfg.Messages }

// create makes the queue pair and readies it for Connect.
func (q *queue) create() (err error) {
	a := q.a
	if q.cfg.Room > 0 {
		if q.arena, err = a.arena((q.cfg.Messages + sendSlots) * q.cfg.Room); err != nil {
			return err
		}
		for i := range sendSlots {
			q.slots = append(q.slots, i)
		}
	}
	init := abiInitAttr{sendCQ: q.cq.cq, recvCQ: q.cq.cq, kind: typeRC,
		limits: abiCap{sendWR: uint32(q.depth), recvWR: uint32(q.cfg.Messages), sendSGE: uint32(q.sge), recvSGE: 1, inline: inlineMax}}
	want := init.limits
	if q.qp, err = a.lib.make(fnCreateQP, a.pd, uintptr(unsafe.Pointer(&init))); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) {
		init.limits = want
		init.limits.inline = 0 // not every device takes data with a request
		q.qp, err = a.lib.make(fnCreateQP, a.pd, uintptr(unsafe.Pointer(&init)))
	}
	if err == nil {
		q.inline = int(min(init.limits.inline, 1<<12))
		q.number = view[abiQP](q.qp).number
		err = q.modify(&abiQPAttr{state: stateInit, port: uint8(a.port.Number), access: accessLocalWrite | accessRemoteWrite},
			attrState|attrPKey|attrPort|attrAccess)
	}
	if err != nil {
		q.free()
		return err
	}
	return nil
}

func (q *queue) modify(attr *abiQPAttr, mask uintptr) error {
	return q.a.lib.call(fnModifyQP, q.qp, uintptr(unsafe.Pointer(attr)), mask)
}

// free gives back the queue pair and its memory.
func (q *queue) free() {
	a := q.a
	if q.qp != 0 {
		if err := a.lib.call(fnDestroyQP, q.qp); err != nil {
			a.note(err)
			return // the device may still use the memory
		}
		q.qp = 0
	}
	if q.arena != nil {
		a.mu.Lock()
		a.arenas[len(q.arena.memory)] = append(a.arenas[len(q.arena.memory)], q.arena)
		a.mu.Unlock()
	}
}

// Number is the QPN.
func (q *queue) Number() uint32 { return q.number }

// Connect joins the queue pair with a peer's.
func (q *queue) Connect(peer netip.Addr, number, first uint32, mtu int) error {
	c := &q.a.cfg
	for i := range q.cfg.Messages {
		q.Receive(uint64(i))
	}
	if q.err != nil {
		return q.err
	}
	to := peer.As16()
	ah := abiAH{gid: to, flow: q.number * 0x9e3779b1 >> 12, gidIndex: uint8(q.a.gid.Index), hops: 64, trafficClass: uint8(max(0, c.TrafficClass)),
		serviceLevel: uint8(c.ServiceLevel), isGlobal: 1, port: uint8(q.a.port.Number)}
	if err := q.modify(&abiQPAttr{state: stateRTR, ah: ah, mtu: uint32(bits.Len(uint(mtu)) - 8), dest: number, recvPSN: first, destReads: 1, rnrTimer: 6},
		attrState|attrAV|attrPathMTU|attrDestination|attrRecvPSN|attrDestReads|attrRNRTimer); err != nil {
		return fmt.Errorf("to ready-to-receive, GID %v to %v, path MTU %d: %w", q.a.gid, peer, mtu, err)
	}
	if err := q.modify(&abiQPAttr{state: stateRTS, sendPSN: q.cfg.First, timeout: c.exponent(), retries: uint8(min(c.Retries, 7)), rnrRetries: 7, reads: 1},
		attrState|attrSendPSN|attrTimeout|attrRetries|attrRNRRetries|attrReads); err != nil {
		return fmt.Errorf("to ready-to-send: %w", err)
	}
	return nil
}

// Post begins a work.
func (q *queue) Post(w roce.Work) {
	if q.dead {
		q.done = append(q.done, rc.Completion{Kind: w.Kind, Status: rc.Flushed})
		return
	}
	q.kinds = append(q.kinds, w.Kind)
	q.waiting = append(q.waiting, w)
	q.push()
}

// push gives the device what it has room for.
func (q *queue) push() {
	for len(q.waiting) > 0 && q.flight < q.depth && q.err == nil {
		w := &q.waiting[0]
		slot, ok := noSlot, true
		if w.Kind == rc.Send {
			if slot, ok = q.slot(w); !ok {
				return
			}
		}
		last := q.request(w, slot)
		r, _, _ := purego.SyscallN(q.a.ops.send, q.qp, uintptr(unsafe.Pointer(&q.wr.send)), uintptr(unsafe.Pointer(&q.wr.bad)))
		if n := int32(r); n != 0 {
			q.err = &callError{"ibv_post_send", unix.Errno(max(n, -n))}
			return
		}
		q.flight++
		if last {
			q.waiting[0] = roce.Work{}
			q.waiting, q.at = q.waiting[1:], 0
		}
	}
}

// slot copies a message to where the device reads it: to a slot that is free, or to
// none where it goes with the request.
func (q *queue) slot(w *roce.Work) (slot int, ok bool) {
	slot = noSlot
	if int(w.Len) > q.inline {
		if len(q.slots) == 0 {
			return 0, false
		}
		slot = q.slots[len(q.slots)-1]
		q.slots = q.slots[:len(q.slots)-1]
	}
	return slot, true
}

// request makes the next request of a work and says whether it is the last.
func (q *queue) request(w *roce.Work, slot int) (last bool) {
	r := &q.wr.send
	*r = abiSendWR{list: addressOf(&q.wr.list[0]), flags: flagSignaled}
	switch w.Kind {
	case rc.Send:
		r.opcode, r.count = opSend, 1
		b := w.Data[0][w.Off : w.Off+w.Len]
		if slot == noSlot {
			r.flags |= flagInline
			q.wr.list[0] = abiSGE{addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), length: uint32(w.Len)}
		} else {
			to := q.arena.memory[(q.cfg.Messages+slot)*q.cfg.Room:]
			copy(to, b)
			q.wr.list[0] = abiSGE{addr: uint64(uintptr(unsafe.Pointer(&to[0]))), length: uint32(w.Len), lkey: q.arena.lkey}
		}
		last = true
	default:
		n := q.gather(w)
		r.remote, r.rkey = w.VA+uint64(q.at), w.Key
		q.at += n
		if last = q.at == w.Len; last && w.Kind == rc.WriteImm {
			r.opcode, r.imm = opWriteImm, bits.ReverseBytes32(w.Imm)
		}
	}
	r.id = uint64(q.serial)<<32 | uint64(slot)
	if last {
		r.id |= idLast
	}
	return last
}

// gather lists the next pieces of a WRITE and says how many bytes they have.
func (q *queue) gather(w *roce.Work) (n int64) {
	off, left, count := w.Off+q.at, w.Len-q.at, 0
	for i, b := range w.Data {
		if off >= int64(len(b)) {
			off -= int64(len(b))
			continue
		}
		size := min(left, int64(len(b))-off)
		if size == 0 || count == q.sge {
			break
		}
		q.wr.list[count] = abiSGE{addr: w.Regions[i].VA + uint64(off), length: uint32(size), lkey: w.Regions[i].Local}
		count++
		n, left, off = n+size, left-size, 0
	}
	q.wr.send.count = int32(count)
	return n
}

// addressOf is the address of what stays where it is.
func addressOf[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// Receive posts a receive.
func (q *queue) Receive(id uint64) {
	if q.dead || q.err != nil {
		return
	}
	r := &q.wr.recv
	*r = abiRecvWR{id: uint64(q.serial)<<32 | idReceive | id}
	if q.cfg.Room > 0 {
		q.wr.list[0] = abiSGE{addr: uint64(uintptr(unsafe.Pointer(&q.arena.memory[int(id)*q.cfg.Room]))), length: uint32(q.cfg.Room), lkey: q.arena.lkey}
		r.list, r.count = addressOf(&q.wr.list[0]), 1
	}
	n, _, _ := purego.SyscallN(q.a.ops.recv, q.qp, uintptr(unsafe.Pointer(r)), uintptr(unsafe.Pointer(&q.wr.bad)))
	if n := int32(n); n != 0 {
		q.err = &callError{"ibv_post_recv", unix.Errno(max(n, -n))}
	}
}

// Message is what a receive has taken.
func (q *queue) Message(id uint64, n int64) []byte {
	return q.arena.memory[int(id)*q.cfg.Room:][:n:q.cfg.Room]
}

// arrive takes completions and says whether the owner is to be woken.
func (q *queue) arrive(list []abiWC) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived = append(q.arrived, list...)
	was := q.woken
	q.woken = true
	return !was
}

// fault fails the queue pair from outside, and says as arrive.
func (q *queue) fault(err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken == nil {
		q.broken = err
	}
	was := q.woken
	q.woken = true
	return !was
}

// Next is the next completion.
func (q *queue) Next() (c rc.Completion, ok bool) {
	if len(q.done) == 0 && !q.dead {
		q.mu.Lock()
		list := q.arrived
		q.arrived, q.woken = nil, false
		if q.err == nil {
			q.err = q.broken
		}
		q.mu.Unlock()
		for i := range list {
			q.take(&list[i])
		}
		q.push()
	}
	if len(q.done) == 0 {
		return c, false
	}
	c = q.done[0]
	q.done = q.done[1:]
	return c, true
}

// take handles one completion of the device.
func (q *queue) take(w *abiWC) {
	id := uint32(w.id)
	if w.status != wcSuccess {
		if q.err == nil || w.status != wcFlushed && errors.Is(q.err, errFlushed) {
			q.err = q.refusal(w)
		}
		return
	}
	if id&idReceive != 0 {
		c := rc.Completion{ID: uint64(id & idSlot), Kind: rc.Receive, Bytes: int64(w.bytes)}
		if w.flags&wcWithImm != 0 {
			c.HasImm, c.Wrote, c.Imm = true, w.opcode != wcRecv, bits.ReverseBytes32(w.imm)
		}
		q.done = append(q.done, c)
		return
	}
	q.flight--
	if slot := int(id & idSlot); slot != noSlot {
		q.slots = append(q.slots, slot)
	}
	if id&idLast != 0 {
		q.done = append(q.done, rc.Completion{Kind: q.kinds[0]})
		q.kinds = q.kinds[1:]
	}
}

// errFlushed is the end of requests behind one that has failed.
var errFlushed = errors.New("the queue pair has failed")

// refusal is why a request has failed.
func (q *queue) refusal(w *abiWC) error {
	what := "request"
	if uint32(w.id)&idReceive != 0 {
		what = "receive"
	}
	err := fmt.Errorf("%s port %d, queue pair %#x: %s: %s (status %d, vendor %#x)", q.a.port.Device, q.a.port.Number, q.number, what, q.a.lib.status(w.status), w.status, w.vendor)
	if w.status == wcFlushed {
		return fmt.Errorf("%w: %w", errFlushed, err)
	}
	return err
}

// Err is why the queue pair has failed.
func (q *queue) Err() error { return q.err }

// Pending is the number of works that have not completed.
func (q *queue) Pending() int { return len(q.kinds) }

// Fail ends the queue pair.
func (q *queue) Fail() {
	if q.dead {
		return
	}
	q.dead = true
	a := q.a
	a.mu.Lock()
	delete(a.queues, q.serial)
	a.mu.Unlock()
	q.free()
	a.mu.Lock()
	q.cq.room += q.entries()
	a.mu.Unlock()
	q.done = nil
	for _, k := range q.kinds {
		q.done = append(q.done, rc.Completion{Kind: k, Status: rc.Flushed})
	}
	q.kinds, q.waiting = nil, nil
}
