package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"
)

// call is a collective call of all members of a group, made some times in the same
// memory with other data each time.
type call struct {
	id      int
	n       int // members
	k       kolo.Collective
	dtype   kolo.DType
	op      kolo.ReduceOp
	root    kolo.Rank
	count   int64
	tensors []int64 // of an AllReduce of several
	vectors [][]int64
	gaps    bool
	inPlace []bool // by rank
	spare   []bool // by rank: who is not the root gives a buffer nevertheless
	shift   int64  // elements, where the memory begins
	large   bool   // memory of rank.Alloc or AllocShared
	streams bool
	device  bool // memory of the device, without streams
	times   int
	async   bool
}

// call is the call of a step.
func (s *script) call(l *lane, st step) *call {
	rng, t := s.rng(st.id), &l.taste
	c := &call{id: st.id, n: len(l.groups[st.group].ranks), k: t.collectives[rng.IntN(len(t.collectives))],
		count: t.counts[rng.IntN(len(t.counts))], dtype: t.dtypes[rng.IntN(len(t.dtypes))], gaps: rng.IntN(3) == 0,
		shift: int64(rng.IntN(20)), large: rng.IntN(8) == 0, times: 1, async: rng.IntN(100) < t.async}
	op := t.ops[rng.IntN(len(t.ops))]
	if c.k == kolo.Barrier {
		c.dtype, c.count = kolo.Uint8, 0
	}
	if base := c.k.Base(); base != kolo.AllReduce && base != kolo.Reduce && base != kolo.Broadcast {
		c.count = (c.count + int64(c.n) - 1) / int64(c.n)
	}
	if c.k.Reduces() {
		c.op = op
	}
	if c.k.Rooted() {
		c.root = kolo.Rank(rng.IntN(c.n))
	}
	if rng.IntN(4) == 0 && !c.async && c.count < 10000 {
		c.times = 2 + rng.IntN(3)
	}
	way := rng.IntN(3) // out of place, in place, some ranks
	for range c.n {
		c.inPlace = append(c.inPlace, way == 1 || way == 2 && rng.IntN(2) == 0)
		c.spare = append(c.spare, rng.IntN(3) == 0)
	}
	for range c.n {
		c.vectors = append(c.vectors, c.randomCounts(rng))
	}
	if c.k == kolo.AllReduce && rng.IntN(100) < t.tensors {
		c.cut(rng)
	}
	c.streams = s.world.devices() && rng.IntN(100) < t.onStreams
	c.device = s.world.devices() && rng.IntN(3) == 0
	return c
}

// cut makes the call one of several tensors, of count elements together.
func (c *call) cut(rng *rand.Rand) {
	left := c.count
	for range rng.IntN(5) {
		k := rng.Int64N(left + 1)
		if rng.IntN(4) == 0 {
			k = 0
		}
		c.tensors, left = append(c.tensors, k), left-k
	}
	c.tensors = append(c.tensors, left)
}

// randomCounts are uneven counts, some of them 0, of about count each.
func (c *call) randomCounts(rng *rand.Rand) []int64 {
	out := make([]int64, c.n)
	for i := range out {
		switch rng.IntN(4) {
		case 0:
		case 1:
			out[i] = c.count
		default:
			out[i] = rng.Int64N(2*c.count + 1)
		}
	}
	return out
}

func (c *call) String() string {
	out := fmt.Sprintf("%v of %d %v", c.k, c.count, c.dtype)
	if c.k.Reduces() {
		out += " " + c.op.String()
	}
	if c.k.Rooted() {
		out += fmt.Sprintf(", root %d", int(c.root))
	}
	if c.tensors != nil {
		out += fmt.Sprintf(", tensors %v", c.tensors)
	}
	if slices.Contains(c.inPlace, true) {
		out += fmt.Sprintf(", in place %v", c.inPlace)
	}
	if c.async {
		out += ", async"
	}
	if c.times > 1 {
		out += fmt.Sprintf(", %d times", c.times)
	}
	if c.streams {
		out += ", between streams"
	}
	return out
}

// place is where a buffer lies in a rank's memory, in bytes. A size of -1 is no buffer.
type place struct{ at, size int64 }

func (p place) of(b []byte) []byte { return b[p.at : p.at+p.size : p.at+p.size] }

// layout is how a rank's memory is used by a call.
type layout struct {
	size       int64
	in, out    place
	tensors    []place
	send, recv rank.Vector
}

const guard = 64 // bytes before, between and behind the buffers

// layout is that of member r.
func (c *call) layout(r int) *layout {
	l := &layout{size: guard + c.shift*int64(c.dtype.Size())}
	if c.tensors != nil {
		for _, k := range c.tensors {
			l.tensors = append(l.tensors, l.take(k, c.dtype))
		}
		l.size += guard
		return l
	}
	n, isRoot := int64(c.n), kolo.Rank(r) == c.root
	in, out := c.count, c.count // elements; -1: no buffer
	mine := int64(0)            // where, in place, the smaller buffer lies in the larger
	switch c.k {
	case kolo.Barrier:
		in, out = -1, -1
	case kolo.Broadcast:
		in = -1
	case kolo.AllGather, kolo.Gather:
		out, mine = n*c.count, int64(r)*c.count
	case kolo.ReduceScatter, kolo.Scatter:
		in, mine = n*c.count, int64(r)*c.count
	case kolo.AllToAll:
		in, out = n*c.count, n*c.count
	case kolo.AllGatherV, kolo.GatherV:
		l.recv, out = c.vector(c.vectors[0])
		in, mine = l.recv.Counts[r], offset(l.recv, r)
	case kolo.ReduceScatterV, kolo.ScatterV:
		l.send, in = c.vector(c.vectors[0])
		out, mine = l.send.Counts[r], offset(l.send, r)
	case kolo.AllToAllV:
		l.send, in = c.vector(c.vectors[r])
		l.recv, out = c.vector(c.column(r))
	case kolo.AllToAllVC:
		for i := range c.n {
			l.send.Counts = append(l.send.Counts, c.vectors[i]...)
		}
		in, out = sum(c.vectors[r]), sum(c.column(r))
	}
	inPlace := c.inPlace[r] && in >= 0 && out >= 0 && c.k.Base() != kolo.AllToAllV && c.k != kolo.AllToAllV && c.k != kolo.AllToAllVC
	if c.k.Rooted() && !isRoot {
		switch c.k {
		case kolo.Reduce, kolo.Gather, kolo.GatherV:
			if inPlace = false; !c.spare[r] {
				out = -1
			}
		case kolo.Scatter, kolo.ScatterV:
			if inPlace = false; !c.spare[r] {
				in = -1
			}
		}
	}
	c.put(l, inPlace, in, out, mine)
	l.size += guard
	return l
}

// put places the buffers.
func (c *call) put(l *layout, inPlace bool, in, out, mine int64) {
	size := int64(c.dtype.Size())
	switch {
	case inPlace && in >= out:
		l.in = l.take(in, c.dtype)
		l.out = place{l.in.at + mine*size, out * size}
	case inPlace:
		l.out = l.take(out, c.dtype)
		l.in = place{l.out.at + mine*size, in * size}
	default:
		l.in, l.out = l.take(in, c.dtype), l.take(out, c.dtype)
	}
}

// take places a buffer of n elements.
func (l *layout) take(n int64, d kolo.DType) place {
	if n < 0 {
		return place{0, -1}
	}
	size := int64(d.Size())
	p := place{l.size, n * size}
	l.size += n*size + guard
	return p
}

// vector puts counts one behind the other, or from the end to the front with gaps.
func (c *call) vector(counts []int64) (v rank.Vector, size int64) {
	v.Counts = counts
	if !c.gaps {
		return v, sum(counts)
	}
	v.Displs = make([]int64, len(counts))
	for i := len(counts) - 1; i >= 0; i-- {
		size += 3
		v.Displs[i] = size
		size += counts[i]
	}
	return v, size + 3
}

// column is what each rank sends to rank r.
func (c *call) column(r int) []int64 {
	out := make([]int64, c.n)
	for i := range out {
		out[i] = c.vectors[i][r]
	}
	return out
}

func sum(list []int64) (n int64) {
	for _, k := range list {
		n += k
	}
	return n
}

func offset(v rank.Vector, r int) int64 {
	if v.Displs != nil {
		return v.Displs[r]
	}
	return sum(v.Counts[:r])
}

// request is the call of a rank in memory m, which has the layout.
func (c *call) request(l *layout, m kolo.Memory) rank.Request {
	q := rank.Request{Collective: c.k, Op: c.op, Root: c.root, Send: l.send, Recv: l.recv}
	buffer := func(p place) rank.Buffer {
		if p.size < 0 {
			return rank.Buffer{}
		}
		return rank.Buffer{Memory: m.Slice(p.at, p.size), DType: c.dtype}
	}
	if l.tensors != nil {
		for _, p := range l.tensors {
			q.Tensors = append(q.Tensors, buffer(p))
		}
		return q
	}
	q.In, q.Out = buffer(l.in), buffer(l.out)
	return q
}

// images is the memory of every rank, before the call and after it.
type images struct {
	layouts       []*layout
	before, after [][]byte
}

// images computes what the call does, the time-th time. No code of the runtime has a part.
func (c *call) images(time int) *images {
	m := &images{}
	var calls []rank.Request
	for r := range c.n {
		l := c.layout(r)
		salt := kolo.Rank((c.id*8+time)*64 + r)
		b := make([]byte, l.size)
		ranktest.Noise(b, salt+1<<20)
		q := c.request(l, kolo.HostMemory(b))
		if l.tensors != nil { // one vector
			x := rank.Buffer{Memory: kolo.HostMemory(make([]byte, c.count*int64(c.dtype.Size()))), DType: c.dtype}
			q = rank.Request{Collective: c.k, Op: c.op, In: x, Out: rank.Buffer{Memory: kolo.HostMemory(slices.Clone(x.Memory.Host)), DType: c.dtype}}
		}
		if c.k.Reduces() {
			ranktest.Fill(q.In, c.op, salt)
		} else if c.k == kolo.Broadcast {
			ranktest.Noise(q.Out.Memory.Host, salt)
		} else {
			ranktest.Noise(q.In.Memory.Host, salt)
		}
		spread(l.tensors, b, q.In.Memory.Host)
		calls = append(calls, q)
		m.layouts, m.before = append(m.layouts, l), append(m.before, b)
	}
	for r, answer := range ranktest.Answer(calls) {
		l, b := m.layouts[r], slices.Clone(m.before[r])
		if l.tensors != nil {
			spread(l.tensors, b, answer)
		} else if l.out.size >= 0 {
			copy(l.out.of(b), answer)
		}
		m.after = append(m.after, b)
	}
	return m
}

// spread puts one vector into the tensors of a memory.
func spread(tensors []place, to, from []byte) {
	for _, p := range tensors {
		from = from[copy(p.of(to), from):]
	}
}

// theater shares what is computed for a step by all ranks that play it.
type theater struct {
	mu     sync.Mutex
	images map[[2]int]*shared
}

type shared struct {
	once sync.Once
	m    *images
	left int
	ends map[int]string // how the call ended for each rank
}

// share gives the images of a call, which each rank takes once.
func (t *theater) share(c *call, time int) *shared {
	t.mu.Lock()
	k := [2]int{c.id, time}
	s := t.images[k]
	if s == nil {
		s = &shared{left: c.n, ends: map[int]string{}}
		t.images[k] = s
	}
	t.mu.Unlock()
	s.once.Do(func() { s.m = c.images(time) })
	return s
}

// ended notes how a call has ended for a rank, and says how it differs for others.
func (t *theater) ended(c *call, time, r int, how string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.images[[2]int{c.id, time}]
	s.ends[r] = how
	for other, end := range s.ends {
		if end != how {
			return fmt.Errorf("the call has ended with %q on member %d and with %q on member %d", how, r, end, other)
		}
	}
	if s.left--; s.left == 0 {
		s.m = nil
	}
	return nil
}

// differs says where a rank's memory is not what it must be.
func differs(l *layout, got, want []byte) error {
	for i := range want {
		if got[i] == want[i] {
			continue
		}
		n := 0
		for k := range want {
			if got[k] != want[k] {
				n++
			}
		}
		return fmt.Errorf("wrong result: byte %d of the memory is %#x, not %#x, and %d bytes of %d in all; the input is %v, the output %v, tensors %v",
			i, got[i], want[i], n, len(want), l.in, l.out, l.tensors)
	}
	return nil
}
