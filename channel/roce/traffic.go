package roce

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Sizes of the traffic of a link.
const (
	recordsSize    = 16 << 10  // of a SEND with records
	eagerMost      = 8 << 10   // bytes of a message that goes by SEND
	eagerRoom      = 256 << 10 // bytes of such messages that may wait for their receives
	inboxes        = 4         // receives posted for SENDs
	adapterInboxes = 32        // the same, of an adapter, which nobody is quick to post again
	maxStripes     = maxQPs
	maxWrite       = 1 << 30 // bytes of one WRITE
	maxOffers      = 1 << 20 // sends of a peer that wait for their receives
)

// message is memory for records, for data that waits for its receive, or for a View.
type message struct {
	b     []byte
	class int
}

// messages are pools of messages of 1<<class bytes.
var messages [48]sync.Pool

// newMessage is a message with room for n bytes, of length 0.
func newMessage(n int64) *message {
	class := max(12, bits.Len64(uint64(max(n, 1)-1)))
	if m, ok := messages[class].Get().(*message); ok {
		m.b = m.b[:0]
		return m
	}
	return &message{b: make([]byte, 0, 1<<class), class: class}
}

// free gives the memory back.
func (m *message) free() { messages[m.class].Put(m) }

// sending is a send of this rank.
type sending struct {
	op      *channel.Op
	id      uint32
	stripes uint32
	left    int // WRITEs that have not completed
	regions []*Region
	stage   *message // the data in one piece
}

// receiving is a receive of this rank whose data is on its way.
type receiving struct {
	posting
	id      uint32 // of the peer's offer
	left    uint32 // stripes
	region  *rc.Region
	regions []*Region
	view    *message
	stage   *message // where the data comes to, if not to op.Mem
}

// posting is a receive that was posted.
type posting struct {
	op    *channel.Op
	order uint64
}

// arrival is a message of the peer that has not met its receive.
type arrival struct {
	record
	held *message // eager: its data
}

// traffic matches the sends of each end with the receives of the other.
type traffic struct {
	l *link

	nextID  uint32
	fresh   []*sending          // not told to the peer: the link is not open
	offered map[uint32]*sending // wait for the peer's receive
	writing map[*sending]bool   // go into the peer's memory
	credit  int64               // bytes of eager messages that the peer has room for

	order    uint64
	postings []posting
	arrivals []arrival
	slots    map[uint32]*receiving
	nextSlot uint32
	taken    int64 // bytes of eager messages to give credit for

	out     *message // records to go
	finSent bool
	finSeen bool
}

func (x *traffic) init(l *link) {
	*x = traffic{l: l, offered: map[uint32]*sending{}, writing: map[*sending]bool{}, slots: map[uint32]*receiving{}, credit: eagerRoom}
}

// begin tells the peer of the sends that were posted before the link was open.
func (x *traffic) begin() {
	list := x.fresh
	x.fresh = nil
	for _, s := range list {
		x.offer(s)
	}
}

// take takes an op that was posted.
func (l *link) take(op *channel.Op) {
	x := &l.traffic
	switch {
	case l.closed != nil && (op.Kind == channel.Send || !x.has(op.Key)):
		l.complete(op, l.closed)
	case slices.ContainsFunc(op.Mem, func(m kolo.Memory) bool { return m.Space != kolo.HostSpace }):
		l.complete(op, fmt.Errorf("%w: the roce driver reaches host memory only", kolo.ErrUnsupported))
	case op.Kind == channel.Send:
		x.nextID++
		s := &sending{op: op, id: x.nextID, stripes: 1}
		if l.state == connecting {
			x.fresh = append(x.fresh, s)
			return
		}
		x.offer(s)
	default:
		x.order++
		x.meet(posting{op, x.order})
	}
}

// eagerCost is what an eager message takes of the peer's room.
func eagerCost(size int64) int64 { return size + messageSize }

// offer tells the peer of a send, with its data if that is little.
func (x *traffic) offer(s *sending) {
	op := s.op
	r := record{kind: recordOffer, id: s.id, key: op.Key, dtype: op.DType, size: op.Size, digest: op.Digest, stripes: 1}
	if op.Size <= eagerMost && x.credit >= eagerCost(op.Size) {
		x.credit -= eagerCost(op.Size)
		r.kind = recordEager
		x.room(messageSize + op.Size)
		x.out.b = r.append(x.out.b)
		for _, m := range op.Mem {
			x.out.b = append(x.out.b, m.Host...)
		}
		if x.early(op.Key) {
			x.l.complete(op, nil) // it is on its way
			return
		}
	} else {
		if op.Size >= x.l.d.cfg.MultiQP {
			s.stripes = uint32(len(x.l.pairs))
		}
		r.stripes = s.stripes
		x.record(&r)
	}
	x.offered[s.id] = s
}

// early says whether a send completes when its bytes are on their way. Between two
// ranks those of a collective do: the call, which all of them must end, is what waits.
// A message by itself is not done before it is received.
func (x *traffic) early(k channel.Key) bool {
	return k.Class == channel.Collective && x.l.me != x.l.peer
}

// room makes room for n bytes of records.
func (x *traffic) room(n int64) {
	if x.out != nil && int64(len(x.out.b))+n > recordsSize {
		x.send()
	}
	if x.out == nil {
		x.out = newMessage(recordsSize)
	}
}

// record appends a record without data, or a fin.
func (x *traffic) record(r *record) {
	x.room(max(messageSize+maxReason, takeSize+placeSize*int64(len(r.places))))
	x.out.b = r.append(x.out.b)
}

// send posts the records.
func (x *traffic) send() {
	m := x.out
	x.out = nil
	x.l.give(0, Work{Kind: rc.Send, Data: [][]byte{m.b}, Len: int64(len(m.b))}, posted{records: m})
}

// flush posts what is to go.
func (x *traffic) flush() {
	if x.taken >= eagerRoom/4 || x.taken > 0 && x.out != nil {
		x.record(&record{kind: recordCredit, id: uint32(x.taken)})
		x.taken = 0
	}
	if x.out != nil {
		x.send()
	}
}

// received handles a message of the peer, or the last packet of a stripe.
func (x *traffic) received(i int, q Queue, c *rc.Completion) {
	if c.HasImm {
		q.Receive(c.ID)
		x.striped(c.Imm)
		return
	}
	if i != 0 {
		x.l.fail(fmt.Errorf("%w: link of %v to %v: %w: a message on queue pair %d", kolo.ErrLost, x.l.me, x.l.peer, errProtocol, i))
		return
	}
	b := q.Message(c.ID, c.Bytes)
	for len(b) > 0 {
		r, rest, err := parseRecord(b)
		if err == nil {
			err = x.handle(&r)
		}
		if err != nil {
			x.l.fail(fmt.Errorf("%w: link of %v to %v: %w: %w", kolo.ErrLost, x.l.me, x.l.peer, errProtocol, err))
			return
		}
		if x.l.state == over {
			return
		}
		b = rest
	}
	q.Receive(c.ID)
}

// handle does a record.
func (x *traffic) handle(r *record) error {
	switch r.kind {
	case recordEager, recordOffer:
		return x.arrive(r)
	case recordTake:
		return x.write(r)
	case recordTaken:
		if s := x.remove(r.id); s != nil {
			x.l.complete(s.op, nil)
		}
	case recordRefuse:
		if s := x.remove(r.id); s != nil {
			x.l.complete(s.op, disagreement(s.op, &channel.Op{Size: r.size, DType: r.dtype, Digest: r.digest}))
		}
	case recordCancel:
		x.cancelled(r.id)
	case recordCredit:
		x.credit = min(x.credit+int64(r.id), eagerRoom)
	case recordFin:
		x.finSeen = true
		l := x.l
		gone := fmt.Errorf("%w: %v has closed the link to %v: %s", kolo.ErrLost, l.peer, l.me, r.data)
		if l.closed == nil {
			l.shut(gone)
		}
		for slot, r := range x.slots { // all that the peer has written is here, so these are not on their way
			x.forget(slot, r)
			l.complete(r.op, gone)
		}
		l.timing.linger = l.d.now() + lingerTime
	}
	return nil
}

// disagreement is why a send and a receive do not fit, which the other end has said.
func disagreement(send, recv *channel.Op) error {
	if err := channel.Agree(send, recv); err != nil {
		return err
	}
	return fmt.Errorf("%w: the peer does not take a message that fits", kolo.ErrMismatch)
}

// remove takes a send that is offered out.
func (x *traffic) remove(id uint32) *sending {
	s := x.offered[id]
	delete(x.offered, id)
	return s
}

// arrive lets a message of the peer meet its receive, or wait for it.
func (x *traffic) arrive(r *record) error {
	a := arrival{record: *r}
	for i, p := range x.postings {
		if p.op.Key == r.key {
			x.postings = slices.Delete(x.postings, i, i+1)
			x.match(p, &a)
			return nil
		}
	}
	if x.l.closed != nil {
		return nil
	}
	if len(x.arrivals) >= maxOffers {
		return fmt.Errorf("%w: %d sends wait for their receives", kolo.ErrLimit, maxOffers)
	}
	if r.kind == recordEager {
		a.held = newMessage(r.size)
		a.held.b = append(a.held.b, r.data...)
		a.data = nil
	}
	x.arrivals = append(x.arrivals, a)
	return nil
}

// meet lets a receive meet a message that has come, or wait for it.
func (x *traffic) meet(p posting) {
	for i := range x.arrivals {
		if x.arrivals[i].key != p.op.Key {
			continue
		}
		a := x.arrivals[i]
		x.arrivals = slices.Delete(x.arrivals, i, i+1)
		x.match(p, &a)
		return
	}
	at := len(x.postings)
	for at > 0 && x.postings[at-1].order > p.order {
		at--
	}
	x.postings = slices.Insert(x.postings, at, p)
}

// has says whether a message with the key has come.
func (x *traffic) has(k channel.Key) bool {
	return slices.ContainsFunc(x.arrivals, func(a arrival) bool { return a.key == k })
}

// drained gives credit for an eager message that needs no room any more.
func (x *traffic) drained(a *arrival) {
	if a.held != nil {
		a.held.free()
		a.held = nil
	}
	if a.kind == recordEager {
		x.taken += eagerCost(a.size)
	}
}

// match does the transfer of a message and a receive that belong together.
func (x *traffic) match(p posting, a *arrival) {
	op := p.op
	send := channel.Op{Size: a.size, DType: a.dtype, Digest: a.digest}
	if err := channel.Agree(&send, op); err != nil {
		if x.l.closed == nil {
			x.record(&record{kind: recordRefuse, id: a.id, size: op.Size, dtype: op.DType, digest: op.Digest})
		}
		x.drained(a)
		x.l.complete(op, err)
		return
	}
	if a.kind == recordEager {
		x.deliver(op, a)
		return
	}
	r := &receiving{posting: p, id: a.id, left: a.stripes}
	var pieces [][]byte
	if op.Kind == channel.View {
		r.view = newMessage(op.Size)
		r.view.b = r.view.b[:op.Size]
		pieces = append(pieces, r.view.b)
	} else {
		for _, m := range op.Mem {
			pieces = append(pieces, m.Host)
		}
	}
	places, err := x.expose(r, pieces)
	if err != nil {
		x.l.fail(fmt.Errorf("%w: link of %v to %v: %w", kolo.ErrLost, x.l.me, x.l.peer, err))
		x.l.complete(op, x.l.closed)
		return
	}
	x.nextSlot++
	x.slots[x.nextSlot] = r
	x.l.d.moving.Add(1)
	x.record(&record{kind: recordTake, id: a.id, slot: x.nextSlot, places: places})
}

// deliver gives the data of an eager message to its receive.
func (x *traffic) deliver(op *channel.Op, a *arrival) {
	data := a.data
	if a.held != nil {
		data = a.held.b
	}
	if op.Kind == channel.View {
		m := a.held
		if m == nil {
			m = newMessage(a.size)
			m.b = append(m.b, data...)
		}
		a.held = nil
		show(op, m)
	} else {
		for _, m := range op.Mem {
			data = data[copy(m.Host, data):]
		}
	}
	x.drained(a)
	if !x.early(a.key) && x.l.closed == nil {
		x.record(&record{kind: recordTaken, id: a.id})
	}
	x.l.complete(op, nil)
}

// show lets a View refer to a message until its release.
func show(op *channel.Op, m *message) {
	op.Mem = append(op.Mem[:0], kolo.HostMemory(m.b))
	op.Hold = m
}

// write begins the WRITEs of an offer that the peer has taken.
func (x *traffic) write(r *record) error {
	s := x.remove(r.id)
	if s == nil {
		return nil // withdrawn; the peer will have heard
	}
	x.writing[s] = true
	x.l.d.moving.Add(1)
	room := int64(0)
	for _, p := range r.places {
		if room += p.size; room < 0 || room > s.op.Size {
			break
		}
	}
	if room != s.op.Size {
		return fmt.Errorf("%w: places of %d bytes for %d", errRecord, room, s.op.Size)
	}
	pieces, err := x.lend(s)
	if err != nil {
		x.l.fail(fmt.Errorf("%w: link of %v to %v: %w", kolo.ErrLost, x.l.me, x.l.peer, err))
		return nil
	}
	n := int64(s.stripes)
	stripe := (s.op.Size/n + rc.MaxMTU - 1) / rc.MaxMTU * rc.MaxMTU
	for i := range n {
		off, end := min(i*stripe, s.op.Size), min((i+1)*stripe, s.op.Size)
		if i == n-1 {
			end = s.op.Size
		}
		for last := false; !last; {
			to := reach(r.places, off)
			size := min(end-off, maxWrite, to.size)
			last = off+size == end
			w := Work{Kind: rc.Write, Data: pieces, Regions: s.regions, Off: off, Len: size, VA: to.va, Key: to.key}
			if last {
				w.Kind, w.Imm = rc.WriteImm, r.slot
			}
			s.left++
			x.l.give(int(i), w, posted{send: s})
			off += size
		}
	}
	return nil
}

// reach is the place of byte off, and what of it is behind that.
func reach(list []place, off int64) place {
	for _, p := range list {
		if off < p.size {
			return place{va: p.va + uint64(off), size: p.size - off, key: p.key}
		}
		off -= p.size
	}
	return place{} // the end, or a message of no bytes
}

// cut is the bytes off to off+n of a list.
func cut(list [][]byte, off, n int64) (part [][]byte) {
	for _, b := range list {
		if size := int64(len(b)); off >= size {
			off -= size
			continue
		}
		b = b[off:]
		off = 0
		b = b[:min(n, int64(len(b)))]
		if n -= int64(len(b)); len(b) > 0 {
			part = append(part, b)
		}
		if n == 0 {
			break
		}
	}
	return part
}

// written notes that a WRITE is acknowledged.
func (x *traffic) written(s *sending) {
	if s.left--; s.left == 0 && x.writing[s] {
		delete(x.writing, s)
		x.l.d.moving.Add(-1)
		x.reclaim(s)
		x.l.complete(s.op, nil)
	}
}

// striped notes that a stripe has come.
func (x *traffic) striped(slot uint32) {
	r := x.slots[slot]
	if r == nil {
		x.l.fail(fmt.Errorf("%w: link of %v to %v: %w: data for slot %d", kolo.ErrLost, x.l.me, x.l.peer, errProtocol, slot))
		return
	}
	if r.left--; r.left > 0 {
		return
	}
	delete(x.slots, slot)
	x.l.d.moving.Add(-1)
	x.hide(r)
	if r.view != nil {
		show(r.op, r.view)
	}
	if r.stage != nil {
		data := r.stage.b
		for _, m := range r.op.Mem {
			data = data[copy(m.Host, data):]
		}
		r.stage.free()
	}
	x.l.complete(r.op, nil)
}

// cancelled handles the peer's withdrawal of a send: its receive waits again, unless its
// group was aborted while it was under way.
func (x *traffic) cancelled(id uint32) {
	for i := range x.arrivals {
		if x.arrivals[i].id == id {
			a := x.arrivals[i]
			x.arrivals = slices.Delete(x.arrivals, i, i+1)
			x.drained(&a)
			return
		}
	}
	for slot, r := range x.slots {
		if r.id == id {
			x.forget(slot, r)
			if x.l.closed != nil {
				x.l.complete(r.op, x.l.closed)
				return
			}
			if x.l.timing.stuck[r.op.Key.Group] {
				x.l.complete(r.op, x.l.timing.cause)
				return
			}
			x.meet(r.posting)
			return
		}
	}
}

// forget takes the memory of a receive that is under way back.
func (x *traffic) forget(slot uint32, r *receiving) {
	delete(x.slots, slot)
	x.l.d.moving.Add(-1)
	x.hide(r)
	for _, m := range []*message{r.view, r.stage} {
		if m != nil {
			m.free()
		}
	}
}

// abort ends the ops of a group that have not met their other end. It says whether
// some have.
func (x *traffic) abort(group uint64, cause error) (under bool) {
	in := func(op *channel.Op) bool { return op.Key.Group == group }
	x.end(in, cause)
	kept := x.arrivals[:0]
	for i := range x.arrivals {
		if a := &x.arrivals[i]; a.key.Group == group && a.kind == recordEager && x.early(a.key) {
			x.drained(a) // its sender has forgotten it
			continue
		}
		kept = append(kept, x.arrivals[i])
	}
	clear(x.arrivals[len(kept):])
	x.arrivals = kept
	return x.moving(map[uint64]bool{group: true})
}

// end completes with cause the ops that which picks and that have not met their other
// end.
func (x *traffic) end(which func(*channel.Op) bool, cause error) {
	x.fresh = slices.DeleteFunc(x.fresh, func(s *sending) bool {
		if !which(s.op) {
			return false
		}
		x.l.complete(s.op, cause)
		return true
	})
	for id, s := range x.offered {
		if which(s.op) {
			delete(x.offered, id)
			if x.l.closed == nil {
				x.record(&record{kind: recordCancel, id: id})
			}
			x.l.complete(s.op, cause)
		}
	}
	x.postings = slices.DeleteFunc(x.postings, func(p posting) bool {
		if !which(p.op) {
			return false
		}
		x.l.complete(p.op, cause)
		return true
	})
}

// withdraw ends all that has not met its other end. Small messages that have come stay:
// their sender has closed the link and knows that they are on their way.
func (x *traffic) withdraw(cause error) {
	x.end(func(*channel.Op) bool { return true }, cause)
	x.arrivals = slices.DeleteFunc(x.arrivals, func(a arrival) bool { return a.kind != recordEager })
}

// clear forgets the messages that have come.
func (x *traffic) clear() {
	for i := range x.arrivals {
		x.drained(&x.arrivals[i])
	}
	x.arrivals = nil
}

// finish posts the fin when this end's data has gone, and says whether it did.
func (x *traffic) finish() bool {
	if x.finSent || len(x.writing) > 0 {
		return false
	}
	x.finSent = true
	x.record(&record{kind: recordFin, data: []byte(x.l.closed.Error())})
	return true
}

// idle says whether nothing is under way.
func (x *traffic) idle() bool { return len(x.writing) == 0 && len(x.slots) == 0 }

// waits says whether this end waits for something of the peer.
func (x *traffic) waits() bool { return len(x.postings)+len(x.slots)+len(x.offered) > 0 }

// moving says whether a transfer of one of the groups is under way.
func (x *traffic) moving(groups map[uint64]bool) bool {
	for s := range x.writing {
		if groups[s.op.Key.Group] {
			return true
		}
	}
	for _, r := range x.slots {
		if groups[r.op.Key.Group] {
			return true
		}
	}
	return false
}

// drop ends all that there is, of a link that has ended.
func (x *traffic) drop(cause error) {
	x.withdraw(cause)
	for s := range x.writing {
		x.reclaim(s)
		x.l.complete(s.op, cause)
	}
	x.l.d.moving.Add(-int32(len(x.writing)))
	clear(x.writing)
	for slot, r := range x.slots {
		x.forget(slot, r)
		x.l.complete(r.op, cause)
	}
	if x.out != nil {
		x.out.free()
		x.out = nil
	}
}
