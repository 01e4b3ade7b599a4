package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"
)

// transfers puts pieces into the memory of a member, with a notice behind them, and gets
// pieces of it.
func (p *player) transfers(g *rank.Group, st step, rng *rand.Rand) (err error) {
	const size = 20000
	me, n := int(g.Rank()), g.Size()
	shift := rng.IntN(n)
	win, err := p.w.NewWindow(rank.WindowConfig{Name: fmt.Sprintf("lane %d step %d", p.lane, st.id)})
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = win.Close(p.ctx)
		}
	}()
	image := func(r int) []byte {
		b := make([]byte, size)
		ranktest.Noise(b, kolo.Rank(st.id*64+r))
		return b
	}
	mine := image(me)
	if _, err := win.Register("memory", kolo.HostMemory(mine)); err != nil {
		return err
	}
	if err := win.Listen(); err != nil {
		return err
	}
	to, from := (me+shift)%n, (me+n-shift)%n
	target, err := win.Connect(p.ctx, g.WorldRank(kolo.Rank(to)))
	if err != nil {
		return err
	}
	region, err := target.Region("memory")
	if err != nil {
		return err
	}
	// Pieces that every rank puts, at the same places of the next one's memory.
	type piece struct{ at, n int }
	var pieces []piece
	for at := rng.IntN(50); at < size; at += 1 + rng.IntN(3000) {
		k := min(rng.IntN(2000), size-at)
		pieces = append(pieces, piece{at, k})
		at += k
	}
	data := func(r, i int) []byte {
		b := make([]byte, pieces[i].n)
		ranktest.Noise(b, kolo.Rank(st.id*64+r+1<<18+i<<10))
		return b
	}
	var list []rank.TransferDesc
	want := image(me) // a peer may be putting already
	wantFar := image(to)
	for i, x := range pieces {
		list = append(list, rank.TransferDesc{Local: kolo.HostMemory(data(me, i)), Region: region.Key, Offset: int64(x.at)})
		copy(want[x.at:], data(from, i))
		copy(wantFar[x.at:], data(me, i))
	}
	if rng.IntN(2) == 0 {
		if err := target.Put(p.ctx, list); err != nil {
			return err
		}
		if err := target.Notify(p.ctx, rank.Notice{Name: "all is there"}); err != nil {
			return err
		}
	} else if err := target.PutNotify(p.ctx, list, rank.Notice{Name: "all is there"}); err != nil {
		return err
	}
	if _, err := win.NextNotice(p.ctx); err != nil {
		return err
	}
	if err := differs(&layout{}, mine, want); err != nil {
		return err
	}
	got := make([]byte, size)
	list = list[:0]
	for at := 0; at < size; {
		k := min(1+p.rng.IntN(5000), size-at)
		list = append(list, rank.TransferDesc{Local: kolo.HostMemory(got[at : at+k]), Region: region.Key, Offset: int64(at)})
		at += k
	}
	x := target.GetAsync(list)
	if err := x.Wait(p.ctx); err != nil {
		return err
	}
	if err := differs(&layout{}, got, wantFar); err != nil {
		return err
	}
	return p.meet(g, uint64(st.id)<<8|255) // before the windows close
}

// meet returns when all members have come, by messages: for a barrier there may be no
// algorithm.
func (p *player) meet(g *rank.Group, tag uint64) error {
	var list []rank.Request
	for r := range g.Size() {
		b := rank.Of(make([]int8, 1))
		list = append(list, rank.Request{Collective: kolo.Send, In: b, Peer: kolo.Rank(r), Tag: tag},
			rank.Request{Collective: kolo.Recv, Out: rank.Of(make([]int8, 1)), Peer: kolo.Rank(r), Tag: tag})
	}
	return rank.Batch(p.ctx, g, list)
}

// reduce has a Reducer reduce gradients of some steps, in orders of the rank's own.
func (p *player) reduce(g *rank.Group, st step, rng *rand.Rand) error {
	n := g.Size()
	var sizes []int
	for range 1 + rng.IntN(10) {
		sizes = append(sizes, 1+rng.IntN(2000))
	}
	op := []kolo.ReduceOp{kolo.Sum, kolo.Sum, kolo.PreMulSum(0.5)}[rng.IntN(3)]
	c := pipeline.ReducerConfig{Group: g, Op: op, Bucket: 1 << (8 + rng.IntN(8)), First: 1 << (6 + rng.IntN(8)),
		Fusion: pipeline.Fusion(rng.IntN(3)), Priority: rng.IntN(2) == 0, Slice: 1 << (7 + rng.IntN(7)), Accumulate: 1 + rng.IntN(3)}
	var values [][]float32
	for i, size := range sizes {
		x := make([]float32, size)
		values = append(values, x)
		c.Params = append(c.Params, pipeline.Param{Name: fmt.Sprint("parameter ", i), Gradient: rank.Of(x)})
	}
	steps, waits := c.Accumulate*(1+rng.IntN(3)), rng.IntN(2) == 0
	r, err := pipeline.NewReducer(c)
	if err != nil {
		return err
	}
	value := func(step, i, k, r int) float32 { return float32((step*7+i*5+k)%50 + r*3) }
	for step := range steps {
		if step%c.Accumulate == 0 {
			for _, x := range values {
				clear(x)
			}
		}
		s, err := r.Begin()
		if err != nil {
			return err
		}
		for _, i := range p.rng.Perm(len(sizes)) {
			for k := range values[i] {
				values[i][k] += value(step, i, k, int(g.Rank()))
			}
			if err := s.Ready(i); err != nil {
				return err
			}
		}
		if waits {
			if err := s.Use(p.ctx, p.rng.IntN(len(sizes))); err != nil {
				return err
			}
		}
		if _, err := s.Wait(p.ctx); err != nil {
			return err
		}
		if !s.Reduces {
			continue
		}
		for i, x := range values {
			for k := range x {
				want := float32(0)
				for a := range c.Accumulate {
					for r := range n {
						want += value(step-a, i, k, r)
					}
				}
				if op.Kind == kolo.OpPreMulSum {
					want *= float32(op.Scale)
				}
				if x[k] != want {
					return fmt.Errorf("wrong gradient: element %d of parameter %d is %v, not %v, in step %d of %d", k, i, x[k], want, step, steps)
				}
			}
		}
	}
	return r.Close()
}

// refusals are calls that are wrong on their rank. They change nothing and are no calls of
// the group.
func (p *player) refusals(g *rank.Group, rng *rand.Rand) error {
	b := ranktest.Data[int32](g.Rank(), 64)
	before := slices.Clone(b)
	n := kolo.Rank(g.Size())
	odd := rank.Buffer{Memory: kolo.HostMemory(rank.Of(b).Memory.Host[1:5]), DType: kolo.Int32}
	list := []rank.Request{
		{Collective: kolo.AllReduce, In: rank.Of(b[:4]), Out: rank.Of(b[:5])},
		{Collective: kolo.AllReduce, In: rank.Of(b[:4]), Out: rank.Of(b[2:6])},
		{Collective: kolo.AllReduce, In: odd, Out: odd},
		{Collective: kolo.Broadcast, Out: rank.Of(b), Root: n},
		{Collective: kolo.AllGather, In: rank.Of(b[:4]), Out: rank.Of(b[4 : 5+4*n])},
		{Collective: kolo.Send, In: rank.Of(b), Peer: n},
		{Collective: kolo.AllReduce, Tensors: []rank.Buffer{rank.Of(b[:4]), rank.Of([]float32{1})}},
		{Collective: kolo.AllGatherV, In: rank.Of(b[:4]), Out: rank.Of(b[:4]), Recv: rank.Vector{Counts: make([]int64, n+1)}},
		{Collective: kolo.BatchSendRecv},
	}
	calls := g.Calls()
	for range 1 + rng.IntN(4) {
		q := list[rng.IntN(len(list))]
		err := rank.Do(p.ctx, g, q)
		if !errors.Is(err, kolo.ErrArgument) && !errors.Is(err, kolo.ErrOverlap) {
			return fmt.Errorf("a wrong %v was not refused: %w", q.Collective, err)
		}
	}
	if !slices.Equal(b, before) || g.Calls() != calls || g.Err() != nil {
		return fmt.Errorf("calls that were refused had an effect: %d calls were made, the group: %w", g.Calls()-calls, g.Err())
	}
	return nil
}

// failure makes a group of the members of another one and has it fail: every member hears
// of it, and nobody else does.
func (p *player) failure(l *lane, st step, rng *rand.Rand) error {
	spec := l.groups[st.group]
	g, err := p.w.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("lane %d step %d fails", p.lane, st.id), Ranks: spec.ranks})
	if err != nil {
		return err
	}
	n := g.Size()
	way, odd, count := rng.IntN(5), kolo.Rank(rng.IntN(n)), 1+rng.IntN(2000)
	all := ranktest.Data[int64](g.Rank(), count+10)
	b, guards := all[5:5+count], slices.Concat(all[:5], all[5+count:])
	q := rank.Request{Collective: kolo.AllReduce, In: rank.Of(b), Out: rank.Of(b)}
	ctx, isOdd := p.ctx, g.Rank() == odd
	var kinds []error
	switch way {
	case 0:
		kinds = []error{kolo.ErrMismatch}
		if isOdd {
			q.In, q.Out = rank.Of(b[:count/2]), rank.Of(b[:count/2])
		}
	case 1:
		kinds = []error{kolo.ErrMismatch}
		if isOdd {
			q.Op = kolo.Max
		}
	case 2:
		kinds = []error{kolo.ErrAborted}
	case 3:
		kinds = []error{kolo.ErrLeft}
	case 4:
		kinds = []error{kolo.ErrCanceled, kolo.ErrMismatch} // of the call that was not made, and the next
		var cancel context.CancelFunc
		if ctx, cancel = context.WithCancel(p.ctx); isOdd {
			cancel()
		} else {
			defer cancel()
		}
	}
	if way < 2 && n == 1 || way == 3 && n == 1 {
		return g.Close(p.ctx)
	}
	first := error(nil)
	switch {
	case way == 2 && isOdd:
		g.Abort(errors.New("enough"))
	case way == 3 && isOdd:
		return g.Close(p.ctx)
	default:
		first = rank.Do(ctx, g, q)
	}
	second := rank.Barrier(p.ctx, g)
	err = errors.Join(first, second)
	if second == nil || !slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
		if way != 4 || second != nil { // the call may have ended before
			return fmt.Errorf("way %d to fail, odd member %d: %w; want %v; then: %w", way, int(odd), first, kinds, second)
		}
	}
	if !slices.Equal(guards, slices.Concat(all[:5], all[5+count:])) {
		return errors.New("a call that failed has written beside its memory")
	}
	if err := g.Close(p.ctx); err != nil && !errors.Is(err, kolo.ErrAborted) {
		return err
	}
	return nil
}
