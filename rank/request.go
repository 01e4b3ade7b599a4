package rank

import (
	"context"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/plan"
)

// Vector says how many elements each rank has in a V form, and where they lie in
// the memory that has a part for each. Displs nil: one behind the other, in rank order.
type Vector struct{ Counts, Displs []int64 }

// Request is any call as a value: what the typed functions make, and the form for
// Float16, BFloat16 and device memory. Which fields count depends on the Collective:
//
//	AllReduce       In, Out (one buffer: in place), Op
//	                or Tensors, Op: buffers of one type, each in place
//	Reduce          In, Out at the root, Op, Root
//	Broadcast       Out (read at the root, written elsewhere), Root
//	AllGather       In, Out of P times the elements; in place: In is part Rank of Out
//	ReduceScatter   In of P times the elements, Out, Op; in place: Out is part Rank of In
//	Gather          In, Out at the root, Root; in place at the root as in AllGather
//	Scatter         In at the root, Out, Root; in place at the root as in ReduceScatter
//	AllToAll        In, Out, of P parts each (one buffer: in place)
//	AllGatherV, GatherV           and Recv: the counts of all ranks
//	ReduceScatterV, ScatterV      and Send: the counts of all ranks
//	AllToAllV       Send: what goes to each rank; Recv: what comes from each
//	AllToAllVC      Send.Counts: the matrix, row i being what rank i sends
//	Barrier         nothing
//	Send, Recv      In or Out, Peer, Tag
type Request struct {
	Collective kolo.Collective
	In, Out    Buffer
	Tensors    []Buffer // not changed until the call has ended
	Op         kolo.ReduceOp
	Root       kolo.Rank // group rank
	Send, Recv Vector
	Peer       kolo.Rank // group rank
	Tag        uint64
}

// Do makes the call and returns when it has ended on this rank. The error is a
// *kolo.Error. If ctx ends first the group is aborted (kolo.ErrCanceled).
func Do(ctx context.Context, g *Group, r Request) error { return do(ctx, g, &r) }

// DoAsync makes the call and returns at once. A call that is refused gives a Work
// that has ended with the error: kolo.ErrLimit if 4096 calls of this rank have not ended, which
// are then to be waited for before the call is made again.
func DoAsync(g *Group, r Request) Work { return doAsync(g, &r) }

func do(ctx context.Context, g *Group, r *Request) error {
	return doWith(ctx, g, nil, r)
}

// doWith is do with the kept ticket, if t is not nil: then ctx has not ended.
func doWith(ctx context.Context, g *Group, t *ticket, r *Request) error {
	if t == nil && g.world.ended(ctx) != nil {
		return g.refusal(r, ctxerr.Of(ctx))
	}
	t, err := g.issue(t, r, false)
	if err != nil {
		return err
	}
	return g.finish(t, t.wait(ctx))
}

func doAsync(g *Group, r *Request) Work {
	t, err := g.issue(nil, r, true)
	if err != nil {
		return Work{err: err}
	}
	return Work{t: t, gen: t.gen.Load()}
}

// Batch makes several sends and receives that progress together, and returns when
// all have ended, with the errors of those that failed joined. Unlike Do for each in
// turn, no order among them can deadlock.
func Batch(ctx context.Context, g *Group, list []Request) error {
	return BatchAsync(g, list).Wait(ctx)
}

// refusal is the error of a call that was not started.
func (g *Group) refusal(r *Request, err error) error {
	e := &kolo.Error{Op: r.Collective, Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Seq: g.Calls(), Err: err}
	if isMessage(r.Collective) {
		e.Peer = r.Peer
	}
	return e
}

// issue checks the call and sends it on its way, with the kept ticket if t is not nil.
func (g *Group) issue(t *ticket, r *Request, async bool) (*ticket, error) {
	if t == nil && !async && !isMessage(r.Collective) {
		t = g.keep()
	}
	if t == nil {
		var err error
		if t, err = g.take(); err != nil {
			return nil, g.refusal(r, err)
		}
	}
	if k := knownOf(r); t.known.is(k.what, k.scale, k.in, k.out) {
		if !t.noIn {
			t.in = r.In.Memory
		}
		if !t.noOut {
			t.out = r.Out.Memory
		}
	} else if err := t.fill(g, r); err != nil {
		t.known = known{}
		g.putBack(t, err)
		return nil, g.refusal(r, err)
	} else {
		t.known, t.noIn, t.noOut = k, extentOf(t.in.Host) != k.in, extentOf(t.out.Host) != k.out
		t.edition++
		t.bytes = t.size()
		t.large = t.bytes > lendFrom
	}
	if async {
		if err := g.room(r); err != nil {
			g.putBack(t, err)
			return nil, g.refusal(r, err)
		}
		t.async = true
		g.async.Add(1)
	}
	if d := g.world.p.cfg.Diagnose; d != 0 {
		t.diagnose(d)
	}
	if isMessage(r.Collective) {
		t.tag, t.seq = r.Tag, g.Calls()
		g.world.actor.tell(nil, t)
		return t, nil
	}
	if async {
		t.waiting()
	}
	if !t.kept {
		t.seq = g.number()
	}
	g.hub.meet(t, false)
	return t, nil
}

// asked is a checked Request.
type asked struct {
	call    kolo.Call
	in, out kolo.Memory
	tensors []kolo.Memory // of an AllReduce of several, which has no in and out
	counts  []int64       // of the tensors; call.Counts is one with it then
	displs  plan.Displs
	known   known // the Request that call was made of
	edition int   // counts the requests that were checked
	bytes   int64 // of this rank's buffers
	large   bool  // a rank that waits for it helps the engine
	noIn    bool  // the call does not use the Request's input
	noOut   bool
}

// known is what the checks of a Request look at, so that one that is asked again need
// not be checked again. It holds addresses only: it keeps no memory alive.
type known struct {
	what    what // 0: nothing is known
	scale   float64
	in, out extent
}

// what is what a Request of host memory without counts asks for, in one word: bit 0 set,
// collective << 8 | input type << 16 | output type << 24 | operation << 32 | root << 40.
type what uint64

const maxKnownRoot = 1<<24 - 1

func whatOf(c kolo.Collective, in, out kolo.DType, op kolo.OpKind, root kolo.Rank) what {
	return 1 | what(c)<<8 | what(in)<<16 | what(out)<<24 | what(op)<<32 | what(root)<<40
}

// request is the Request that w stands for.
func (w what) request(scale float64, in, out []byte) Request {
	byteOf := func(shift int) uint8 { return uint8(w >> shift) }
	return Request{Collective: kolo.Collective(byteOf(8)), Op: kolo.ReduceOp{Kind: kolo.OpKind(byteOf(32)), Scale: scale}, Root: kolo.Rank(w >> 40),
		In: Buffer{kolo.HostMemory(in), kolo.DType(byteOf(16))}, Out: Buffer{kolo.HostMemory(out), kolo.DType(byteOf(24))}}
}

// knownOf is what is known of a Request that was checked; of some it is nothing.
func knownOf(r *Request) (k known) {
	if r.Tensors != nil || r.Send.Counts != nil || r.Recv.Counts != nil || r.In.Memory.Space != kolo.HostSpace ||
		r.Out.Memory.Space != kolo.HostSpace || isMessage(r.Collective) || r.Root < 0 || r.Root > maxKnownRoot {
		return known{}
	}
	return known{what: whatOf(r.Collective, r.In.DType, r.Out.DType, r.Op.Kind, r.Root), scale: r.Op.Scale,
		in: extentOf(r.In.Memory.Host), out: extentOf(r.Out.Memory.Host)}
}

// is says whether k is known and the same as what is asked for.
func (k *known) is(w what, scale float64, in, out extent) bool {
	return w != 0 && k.what == w && k.in == in && k.out == out && k.scale == scale
}

// fill checks r against the group and makes the call of it.
func (c *asked) fill(g *Group, r *Request) error {
	n, me := int64(len(g.hub.ranks)), int64(g.rank)
	c.call = kolo.Call{Collective: r.Collective, Op: r.Op, DType: r.In.DType}
	c.in, c.out, c.tensors, c.displs = r.In.Memory, r.Out.Memory, c.tensors[:0], plan.Displs{}
	if r.Tensors != nil {
		return c.list(r, g.hub.p.engine)
	}
	if r.In.Memory.Len() == 0 && (r.Out.Memory.Len() > 0 || r.In.DType == 0) { // no input, or none that says its type
		c.call.DType = r.Out.DType
	}
	if r.Collective.Rooted() {
		if r.Root < 0 || int64(r.Root) >= n {
			return fmt.Errorf("%w: root %d; the group has ranks 0 to %d (a root is a group rank; see Group.RankOf)", kolo.ErrArgument, int(r.Root), n-1)
		}
		c.call.Root = r.Root
	}
	if err := c.checkTypes(r, g.hub.p.engine); err != nil {
		return err
	}
	switch r.Collective {
	case kolo.AllReduce, kolo.Reduce, kolo.Broadcast, kolo.Barrier:
		return c.whole(r, me)
	case kolo.AllGather, kolo.Gather:
		return c.gather(r, n, me)
	case kolo.ReduceScatter, kolo.Scatter:
		return c.scatter(r, n, me)
	case kolo.AllToAll:
		return c.allToAll(r, n)
	case kolo.AllGatherV, kolo.GatherV:
		return c.gatherV(r, n, me)
	case kolo.ReduceScatterV, kolo.ScatterV:
		return c.scatterV(r, n, me)
	case kolo.AllToAllV, kolo.AllToAllVC:
		return c.allToAllV(r, n, me)
	case kolo.Send, kolo.Recv:
		return c.message(r, n)
	}
	if r.Collective == kolo.NoCollective {
		return fmt.Errorf("%w: Request.Collective is not set", kolo.ErrArgument)
	}
	return fmt.Errorf("%w: %v is no call of a group", kolo.ErrArgument, r.Collective)
}

// checkTypes checks what does not depend on the collective.
func (c *asked) checkTypes(r *Request, e channel.Engine) error {
	if r.Collective != kolo.Barrier && !c.call.DType.Valid() {
		return fmt.Errorf("%w: no element type %d", kolo.ErrArgument, c.call.DType)
	}
	for _, m := range []kolo.Memory{r.In.Memory, r.Out.Memory} {
		if m.Space != kolo.HostSpace && !e.Reaches(m.Space) {
			return unreached(m.Space)
		}
	}
	if err := c.checkBuffer("input", r.In); err != nil {
		return err
	}
	if err := c.checkBuffer("output", r.Out); err != nil {
		return err
	}
	if r.Collective.Reduces() {
		return r.Op.Check(c.call.DType)
	}
	c.call.Op = kolo.ReduceOp{}
	return nil
}

// unreached is the error of memory that the engine of this process cannot address.
func unreached(s kolo.Space) error {
	return fmt.Errorf("%w: the engine of this process does not reach memory of space %d; Config.Engine makes one that does", kolo.ErrUnsupported, s)
}

func (c *asked) checkBuffer(what string, b Buffer) error {
	size := b.DType.Size()
	switch {
	case b.Memory.Len() == 0:
		return nil
	case !b.DType.Valid():
		return fmt.Errorf("%w: the %s has no element type %d", kolo.ErrArgument, what, b.DType)
	case b.Memory.Len() < 0:
		return fmt.Errorf("%w: the %s has %d bytes", kolo.ErrArgument, what, b.Memory.Len())
	case b.Memory.Len()%int64(size) != 0:
		return fmt.Errorf("%w: the %s has %d bytes, no whole number of %v elements", kolo.ErrArgument, what, b.Memory.Len(), b.DType)
	case !spanOf(b.Memory).aligned(min(size, 8)): // no instruction wants more
		return fmt.Errorf("%w: the %s is not aligned to its %v elements", kolo.ErrArgument, what, b.DType)
	case b.DType != c.call.DType:
		return fmt.Errorf("%w: the input is of %v and the %s of %v", kolo.ErrArgument, c.call.DType, what, b.DType)
	}
	return nil
}

func (c *asked) elements(m kolo.Memory) int64 { return m.Len() / int64(c.call.DType.Size()) }

// sized says that a buffer must have want elements.
func (c *asked) sized(what string, m kolo.Memory, want int64) error {
	if got := c.elements(m); got != want {
		return fmt.Errorf("%w: the %s has %d elements; want %d", kolo.ErrArgument, what, got, want)
	}
	return nil
}

// shared is sized for a buffer that has a part for each of n ranks.
func (c *asked) shared(what string, m kolo.Memory, n int64) error {
	if err := c.sized(what, m, n*c.call.Count); err != nil {
		return fmt.Errorf("%w, a part of %d for each of %d ranks", err, c.call.Count, n)
	}
	return nil
}

// placed notes whether input and output are one memory, and refuses any other overlap.
// layout says in words what would be allowed.
func (c *asked) placed(in, allowed kolo.Memory, layout string) error {
	a, b := spanOf(in), spanOf(c.out)
	if c.call.Collective == kolo.ReduceScatter || c.call.Collective == kolo.Scatter || c.call.Collective == kolo.ReduceScatterV || c.call.Collective == kolo.ScatterV {
		b = spanOf(c.in)
	}
	if !a.overlaps(b) {
		return nil
	}
	if a == spanOf(allowed) {
		c.call.InPlace = true
		return nil
	}
	return fmt.Errorf("%w: input and output; in place means that %s", kolo.ErrOverlap, layout)
}

func (c *asked) whole(r *Request, me int64) error {
	if r.Collective == kolo.Barrier {
		c.call.DType, c.in, c.out = kolo.Uint8, kolo.Memory{}, kolo.Memory{}
		return nil
	}
	if r.Collective == kolo.Broadcast {
		c.call.Count, c.in = c.elements(c.out), kolo.Memory{}
		c.call.InPlace = true
		return nil
	}
	c.call.Count = c.elements(c.in)
	if r.Collective == kolo.Reduce && me != int64(r.Root) {
		c.out = kolo.Memory{}
		return nil
	}
	if err := c.sized("output", c.out, c.call.Count); err != nil {
		return err
	}
	return c.placed(c.in, c.out, "they are the same buffer")
}

func (c *asked) gather(r *Request, n, me int64) error {
	c.call.Count = c.elements(c.in)
	if r.Collective == kolo.Gather && me != int64(r.Root) {
		c.out = kolo.Memory{}
		return nil
	}
	if err := c.shared("output", c.out, n); err != nil {
		return err
	}
	return c.placed(c.in, part(c.out, c.call.Count, nil, nil, int(me), int64(c.call.DType.Size())), "the input is this rank's part of the output")
}

func (c *asked) scatter(r *Request, n, me int64) error {
	c.call.Count = c.elements(c.out)
	if r.Collective == kolo.Scatter && me != int64(r.Root) {
		c.in = kolo.Memory{}
		return nil
	}
	if err := c.shared("input", c.in, n); err != nil {
		return err
	}
	return c.placed(c.out, part(c.in, c.call.Count, nil, nil, int(me), int64(c.call.DType.Size())), "the output is this rank's part of the input")
}

func (c *asked) allToAll(r *Request, n int64) error {
	if k := c.elements(c.in); k%n != 0 {
		return fmt.Errorf("%w: the input has %d elements, which %d ranks cannot share equally", kolo.ErrArgument, k, n)
	}
	c.call.Count = c.elements(c.in) / n
	if err := c.shared("output", c.out, n); err != nil {
		return err
	}
	return c.placed(c.in, c.out, "they are the same buffer")
}

func (c *asked) message(r *Request, n int64) error {
	if r.Peer < 0 || int64(r.Peer) >= n {
		return fmt.Errorf("%w: peer %d; the group has ranks 0 to %d", kolo.ErrArgument, int(r.Peer), n-1)
	}
	c.call.Root = r.Peer
	if r.Collective == kolo.Send {
		c.call.Count, c.out = c.elements(c.in), kolo.Memory{}
	} else {
		c.call.Count, c.in = c.elements(c.out), kolo.Memory{}
	}
	return nil
}
