package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"
)

// player is one goroutine of a rank that plays a lane.
type player struct {
	ctx    context.Context
	s      *script
	w      *rank.World
	lane   int
	t      *theater
	rng    *rand.Rand // what ranks may do differently
	groups []*rank.Group
	made   []int    // how many times each group was made
	flying []flight // calls that are not waited for
	pool   []byte   // memory that is used again and again
	out    npu.Stream
	in     npu.Stream
	device npu.Device
}

// flight is a call on its way.
type flight struct {
	wait   func(ctx context.Context) error
	finish func(err error) error
	what   string
}

// play plays the lane. The error names the step.
func (p *player) play() (err error) {
	l := &p.s.lanes[p.lane]
	if p.device != nil {
		if p.out, err = p.device.NewStream(npu.StreamConfig{Name: "producer"}); err != nil {
			return err
		}
		if p.in, err = p.device.NewStream(npu.StreamConfig{Name: "consumer"}); err != nil {
			return err
		}
	}
	for i := range l.groups {
		p.groups, p.made = append(p.groups, nil), append(p.made, 0)
		if err := p.open(i); err != nil {
			return fmt.Errorf("open group %d: %w", i, err)
		}
	}
	for _, st := range l.steps {
		if p.groups[st.group] == nil {
			continue // not a member
		}
		if err := p.step(l, st); err != nil {
			return fmt.Errorf("lane %d, step %d (%v): %w", p.lane, st.id, st.kind, err)
		}
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
	}
	if err := p.land(0); err != nil {
		return err
	}
	for i := range l.groups {
		if err := p.leave(i); err != nil {
			return fmt.Errorf("close group %d: %w", i, err)
		}
	}
	return nil
}

// step does one thing.
func (p *player) step(l *lane, st step) error {
	g, rng := p.groups[st.group], p.s.rng(st.id)
	switch st.kind {
	case aCall:
		return p.call(g, p.s.call(l, st), p.mayRefuse(l, st))
	case messages:
		return p.messages(g, l, st, rng)
	case waitAll:
		return p.land(0)
	case reopen:
		if err := p.land(0); err != nil {
			return err
		}
		if err := p.leave(st.group); err != nil {
			return err
		}
		return p.open(st.group)
	case transfers:
		return p.transfers(g, st, rng)
	case reducer:
		if !p.servesAll(l, st) {
			return nil
		}
		return p.reduce(g, st, rng)
	case refusals:
		return p.refusals(g, rng)
	case failure:
		if !p.servesAll(l, st) {
			return nil
		}
		return p.failure(l, st, rng)
	case uneven:
		if !p.servesAll(l, st) {
			return nil
		}
		return p.uneven(g, rng)
	case split:
		return p.split(g, st, rng)
	case canceled:
		if !p.servesAll(l, st) {
			return nil
		}
		return p.canceled(l, st, rng)
	case explain:
		c := p.s.call(l, st)
		_, err := g.Explain(kolo.Call{Collective: c.k, DType: c.dtype, Op: c.op, Root: c.root, Count: c.count})
		if err != nil && (p.mayRefuse(l, st) || c.k.Base() != c.k) {
			err = nil
		}
		return err
	}
	return nil
}

// mayRefuse says whether a call of the step may be refused for want of an algorithm.
func (p *player) mayRefuse(l *lane, st step) bool {
	return p.s.world.refuses() || l.groups[st.group].algorithm != ""
}

// servesAll says whether no algorithm is forced in the step's group but for one that can do
// all that a Reducer asks for.
func (p *player) servesAll(l *lane, st step) bool {
	all := []string{"", "mesh", "ring", "nhr"}
	if p.s.world.repeats {
		all = all[:2] // the others' bits depend on how a vector is cut
	}
	return slices.Contains(all, p.s.world.algorithm) && slices.Contains(all, l.groups[st.group].algorithm)
}

// open makes the i-th group of the lane, if the rank is in it.
func (p *player) open(i int) (err error) {
	spec := p.s.lanes[p.lane].groups[i]
	if !slices.Contains(spec.ranks, p.w.Rank()) {
		return nil
	}
	if spec.ofWorld && p.made[i] == 0 {
		p.groups[i] = p.w.Group()
	} else {
		name := fmt.Sprintf("lane %d group %d", p.lane, i)
		p.groups[i], err = p.w.NewGroup(rank.GroupConfig{Name: name, Ranks: spec.ranks, Algorithm: spec.algorithm, Priority: spec.priority})
	}
	p.made[i]++
	return err
}

// leave closes a group. That of the world is left to its Close.
func (p *player) leave(i int) error {
	g := p.groups[i]
	if g == nil || g == p.w.Group() {
		return nil
	}
	return g.Close(p.ctx)
}

// launch waits for a call, or leaves that to later.
func (p *player) launch(async bool, f flight) error {
	if !async {
		err := f.finish(f.wait(p.ctx))
		if err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
		return nil
	}
	p.flying = append(p.flying, f)
	return p.land(p.rng.IntN(12))
}

// land waits for calls until so many are left, in any order.
func (p *player) land(left int) error {
	for len(p.flying) > left {
		i := p.rng.IntN(len(p.flying))
		f := p.flying[i]
		p.flying = slices.Delete(p.flying, i, i+1)
		if err := f.finish(f.wait(p.ctx)); err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
	}
	return nil
}

// memory is host memory for a call: what an earlier call had, where the call is waited for
// at once, or its own. It is the caller's until free.
func (p *player) memory(n int64, own, large bool) (b []byte, free func() error, err error) {
	free = func() error { return nil }
	switch {
	case large && p.rng.IntN(2) == 0:
		var words []uint64
		words, free, err = rank.AllocShared[uint64](p.w, int(n+7)/8)
		return bytesOf(words)[:n], free, err
	case large:
		return bytesOf(rank.Alloc[uint64](int(n+7) / 8))[:n], free, nil
	case own || p.rng.IntN(8) == 0:
		return bytesOf(make([]uint64, (n+7)/8))[:n], free, nil
	}
	if int64(len(p.pool)) < n {
		p.pool = bytesOf(make([]uint64, n/8+1))
	}
	return p.pool[:n], free, nil
}

// bytesOf is the memory of a slice of words.
func bytesOf(s []uint64) []byte { return rank.Of(s).Memory.Host }

// call makes a call and looks at what it did to all of the rank's memory.
func (p *player) call(g *rank.Group, c *call, refused bool) error {
	r := int(g.Rank())
	host, free, err := p.memory(c.layout(r).size, c.async, c.large)
	if err != nil {
		return err
	}
	for time := range c.times {
		s := p.t.share(c, time)
		m, l := s.m, s.m.layouts[r]
		copy(host, m.before[r])
		mem := kolo.HostMemory(host)
		check := func(err error) error {
			how := "success"
			want := m.after[r]
			// Between processes a rank refuses by itself, and may have closed the group when
			// another comes to the same call.
			left := p.s.world.several() && errors.Is(err, kolo.ErrLeft)
			if refused && (errors.Is(err, kolo.ErrUnsupported) || left) {
				how, want, err = "no algorithm", m.before[r], nil
			}
			if err != nil {
				return err
			}
			if err := differs(l, host, want); err != nil {
				return err
			}
			if time == c.times-1 {
				err = free()
			}
			return errors.Join(err, p.t.ended(c, time, r, how))
		}
		f := flight{what: c.String(), finish: check}
		switch {
		case c.streams && p.device != nil && !refused: // a call that is refused would fail the streams of others
			w, finish, err := p.onStreams(g, c, l, host, check)
			if err != nil {
				return err
			}
			f.wait, f.finish = w.Wait, finish
		case c.device && p.device != nil:
			if mem, f.finish, err = p.onDevice(host, check); err != nil {
				return err
			}
			w := rank.DoAsync(g, c.request(l, mem))
			f.wait = w.Wait
		case c.async:
			w := rank.DoAsync(g, c.request(l, mem))
			f.wait = w.Wait
			if p.rng.IntN(4) == 0 {
				f.wait = func(ctx context.Context) error {
					select {
					case <-w.Done():
					case <-ctx.Done():
					}
					return w.Wait(ctx)
				}
			}
		default:
			f.wait = func(ctx context.Context) error { return rank.Do(ctx, g, c.request(l, mem)) }
		}
		if err := p.launch(c.async, f); err != nil {
			return err
		}
	}
	return nil
}

// onStreams makes a call in device memory, behind the copy to it and before the copy back.
func (p *player) onStreams(g *rank.Group, c *call, l *layout, host []byte, check func(error) error) (w rank.Work, finish func(error) error, err error) {
	mem, err := p.device.Alloc(int64(len(host)))
	if err != nil {
		return w, nil, err
	}
	if err := p.out.Copy(mem, kolo.HostMemory(host)); err != nil {
		return w, nil, err
	}
	consumer := p.in
	if p.rng.IntN(3) == 0 {
		consumer = p.out
	}
	w = rank.DoOn(g, c.request(l, mem), rank.Between{Producer: p.out, Consumer: consumer})
	back := bytesOf(make([]uint64, (len(host)+7)/8))[:len(host)]
	if err := w.Refused(); err != nil {
		return w, nil, err
	}
	late := consumer.Copy(kolo.HostMemory(back), mem)
	return w, func(err error) error {
		if err != nil { // the stream has failed with the call
			for _, s := range []npu.Stream{p.in, p.out} {
				s.Abort(err)
			}
		} else if late != nil {
			return late
		} else if err := consumer.Sync(p.ctx); err != nil {
			return err
		} else {
			copy(host, back)
		}
		if err := check(err); err != nil {
			return err
		}
		return p.device.Free(mem)
	}, nil
}

// onDevice puts what is in host memory into memory of the device; finish brings it back.
func (p *player) onDevice(host []byte, check func(error) error) (mem kolo.Memory, finish func(error) error, err error) {
	if mem, err = p.device.Alloc(int64(len(host))); err != nil {
		return mem, nil, err
	}
	s, err := p.device.NewStream(npu.StreamConfig{Name: "to and fro"})
	if err != nil {
		return mem, nil, err
	}
	move := func(dst, src kolo.Memory) error {
		if err := s.Copy(dst, src); err != nil {
			return err
		}
		return s.Sync(p.ctx)
	}
	return mem, func(err error) error {
		if e := move(kolo.HostMemory(host), mem); e != nil {
			return e
		}
		return errors.Join(check(err), s.Close(), p.device.Free(mem))
	}, move(mem, kolo.HostMemory(host))
}

// messages are sends and receives between members, each with its number as the tag.
func (p *player) messages(g *rank.Group, l *lane, st step, rng *rand.Rand) error {
	me, n := int(g.Rank()), g.Size()
	dtype := l.taste.dtypes[rng.IntN(len(l.taste.dtypes))]
	oneTag, way := rng.IntN(2) == 0, rng.IntN(3)
	var list []rank.Request
	var checks []func() error
	for i := range 1 + rng.IntN(8) {
		from, to := rng.IntN(n), rng.IntN(n)
		count := int64(rng.IntN(3000))
		if rng.IntN(10) == 0 {
			count *= 30
		}
		salt, tag := kolo.Rank(st.id*64+i), uint64(st.id)<<8|uint64(i)
		if oneTag {
			tag = uint64(st.id) << 8
		}
		size := count * int64(dtype.Size())
		want := make([]byte, size)
		ranktest.Noise(want, salt)
		add := func(k kolo.Collective, peer int) {
			all := bytesOf(make([]uint64, (size+2*guard+7)/8))
			ranktest.Noise(all, salt+1<<20)
			mem := kolo.HostMemory(all[guard : guard+size : guard+size])
			b, q := rank.Buffer{Memory: mem, DType: dtype}, rank.Request{Collective: k, Peer: kolo.Rank(peer), Tag: tag}
			if k == kolo.Send {
				copy(mem.Host, want)
				q.In = b
			} else {
				q.Out = b
			}
			after := slices.Clone(all)
			copy(after[guard:], want)
			list = append(list, q)
			checks = append(checks, func() error {
				if !bytes.Equal(all, after) {
					return fmt.Errorf("message %d, %v of %d %v from member %d to %d: %w", i, k, count, dtype, from, to, differs(&layout{out: place{guard, size}}, all, after))
				}
				return nil
			})
		}
		if from == me {
			add(kolo.Send, to)
		}
		if to == me {
			add(kolo.Recv, from)
		}
	}
	check := func(err error) error {
		for _, f := range checks {
			if err == nil {
				err = f()
			}
		}
		return err
	}
	if len(list) == 0 {
		return nil
	}
	if way == 0 {
		return check(rank.Batch(p.ctx, g, list))
	}
	w := rank.BatchAsync(g, list)
	return p.launch(way == 1, flight{wait: w.Wait, finish: check, what: "messages"})
}
