package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"
)

// uneven is steps of an AllReduce of which some ranks make fewer than others, by a Join.
func (p *player) uneven(g *rank.Group, rng *rand.Rand) error {
	me, n := int(g.Rank()), g.Size()
	counts := make([]int, n)
	for r := range counts {
		counts[r] = rng.IntN(5)
	}
	if rng.IntN(4) == 0 {
		counts = slices.Repeat([]int{2}, n)
	}
	size, policy := 1+rng.IntN(500), pipeline.Uneven(rng.IntN(3))
	b := make([]int64, size)
	value := func(step, i, r int) int64 { return int64(step*1001 + i*7 + r*13 + 1) }
	shadow := func(ctx context.Context) error {
		clear(b)
		return rank.AllReduce(ctx, g, b, kolo.Sum)
	}
	j, err := pipeline.NewJoin(pipeline.JoinConfig{Group: g, Uneven: policy, Shadow: shadow})
	if err != nil {
		return err
	}
	least := slices.Min(counts)
	for step := range counts[me] {
		active, err := j.Step(p.ctx)
		if policy == pipeline.Fail && step == least && slices.Max(counts) > least {
			if !errors.Is(err, kolo.ErrMismatch) {
				return fmt.Errorf("steps %v, failing: step %d: %w", counts, step, err)
			}
			break
		}
		want := 0
		for _, k := range counts {
			if k > step {
				want++
			}
		}
		if policy == pipeline.Stop && step == least {
			want = 0
		}
		if err != nil || active != want {
			return fmt.Errorf("steps %v, %v: step %d of %d ranks, not of %d: %w", counts, policy, step, active, want, err)
		}
		if active == 0 {
			break
		}
		for i := range b {
			b[i] = value(step, i, me)
		}
		if err := rank.AllReduce(p.ctx, g, b, kolo.Sum); err != nil {
			return err
		}
		for i := range b {
			want := int64(0)
			for r, k := range counts {
				if k > step {
					want += value(step, i, r)
				}
			}
			if b[i] != want {
				return fmt.Errorf("steps %v, %v: element %d of step %d is %d, not %d", counts, policy, i, step, b[i], want)
			}
		}
	}
	err = j.Done(p.ctx)
	if policy == pipeline.Fail && slices.Max(counts) > least {
		if !errors.Is(err, kolo.ErrMismatch) {
			return fmt.Errorf("steps %v, failing: the end has not failed: %w", counts, err)
		}
		return nil
	}
	return err
}

// split parts the members of a group into groups, which are made, used and closed some times.
func (p *player) split(g *rank.Group, st step, rng *rand.Rand) error {
	colors, count := 1+rng.IntN(3), 1+rng.IntN(3000)
	parts := make([][]kolo.Rank, colors)
	mine := 0
	for _, r := range rng.Perm(g.Size()) {
		color := rng.IntN(colors)
		if parts[color] = append(parts[color], g.WorldRank(kolo.Rank(r))); kolo.Rank(r) == g.Rank() {
			mine = color
		}
	}
	for again := range 1 + rng.IntN(3) {
		part, err := p.w.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("lane %d step %d color %d", p.lane, st.id, mine), Ranks: parts[mine]})
		if err != nil {
			return err
		}
		if err := sumOf(p.ctx, part, count, again); err != nil && !(p.s.world.refuses() && errors.Is(err, kolo.ErrUnsupported)) {
			return fmt.Errorf("%d ranks of color %d: %w", part.Size(), mine, err)
		}
		if err := part.Close(p.ctx); err != nil {
			return err
		}
	}
	return nil
}

// sumOf makes an AllReduce and looks at the answer.
func sumOf(ctx context.Context, g *rank.Group, count, salt int) error {
	value := func(r kolo.Rank, i int) int64 { return int64(r)*1_000_003 + int64(i*(salt+3)) }
	b := make([]int64, count)
	for i := range b {
		b[i] = value(g.WorldRank(g.Rank()), i)
	}
	if err := rank.AllReduce(ctx, g, b, kolo.Sum); err != nil {
		return err
	}
	for i, got := range b {
		want := int64(0)
		for r := range g.Size() {
			want += value(g.WorldRank(kolo.Rank(r)), i)
		}
		if got != want {
			return fmt.Errorf("wrong result: element %d is %d, not %d", i, got, want)
		}
	}
	return nil
}

// canceled is a call of a group that one member gives up in the middle. When it has
// returned nobody uses the memory, whatever the others still do.
func (p *player) canceled(l *lane, st step, rng *rand.Rand) error {
	spec := l.groups[st.group]
	g, err := p.w.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("lane %d step %d gives up", p.lane, st.id), Ranks: spec.ranks})
	if err != nil {
		return err
	}
	odd, count := kolo.Rank(rng.IntN(g.Size())), 1+rng.IntN(200_000)
	after, async := time.Duration(rng.IntN(3000))*time.Microsecond, rng.IntN(2) == 0
	b := ranktest.Data[int32](g.Rank(), count)
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	if g.Rank() == odd {
		defer time.AfterFunc(after, cancel).Stop()
	}
	var first error
	for range 3 {
		if async {
			first = rank.AllReduceAsync(g, b, kolo.Max).Wait(ctx)
		} else {
			first = rank.AllReduce(ctx, g, b, kolo.Max)
		}
		if first != nil {
			break
		}
	}
	left := slices.Clone(b)
	second := rank.Barrier(p.ctx, g)
	expected := func(err error) bool { // of the call that was not made, and the next
		return errors.Is(err, kolo.ErrCanceled) || errors.Is(err, kolo.ErrMismatch)
	}
	alone := g.Size() == 1 // a call that was not made is missed by nobody
	if first != nil && (second == nil && !alone || !expected(first)) || second != nil && !expected(second) {
		return fmt.Errorf("member %d gave up after %v: %w; then: %w", int(odd), after, first, second)
	}
	if err := g.Close(p.ctx); err != nil && !errors.Is(err, kolo.ErrAborted) && !expected(err) {
		return err
	}
	if !slices.Equal(left, b) {
		return errors.New("memory was written after its call had returned")
	}
	return nil
}

// leavers are the ranks that leave when a script has been played: not all, and in one of
// three worlds none.
func (s *script) leavers() []kolo.Rank {
	rng := s.rng(1 << 30)
	n := s.world.ranks()
	if n < 3 || s.world.refuses() || rng.IntN(3) == 0 {
		return nil
	}
	var list []kolo.Rank
	for _, r := range rng.Perm(n)[:1+rng.IntN(n-2)] {
		list = append(list, kolo.Rank(r))
	}
	return list
}

// shrink has some ranks leave; the others find out who is left, and go on.
func (p *player) shrink() error {
	leavers := p.s.leavers()
	if leavers == nil {
		return nil
	}
	if err := p.meet(p.w.Group(), 1<<40); err != nil {
		return fmt.Errorf("meet behind the script: %w", err)
	}
	if slices.Contains(leavers, p.w.Rank()) {
		return p.w.Close(p.ctx)
	}
	g, err := p.w.Shrink(p.ctx)
	if err != nil {
		return err
	}
	if want := p.s.world.ranks() - len(leavers); g.Size() != want {
		if g.Size() < want {
			return fmt.Errorf("shrunk to %d ranks, not to %d, when rank %s left", g.Size(), want, kolo.RankList(leavers))
		}
		return nil // it was made before all had left, and will miss them
	}
	if err := sumOf(p.ctx, g, 5000, 1); err != nil {
		return fmt.Errorf("when rank %s had left: %w", kolo.RankList(leavers), err)
	}
	return nil
}

// watch looks at what all ranks do, all the time, until it is stopped.
func watch(ctx context.Context, worlds []*rank.World) error {
	for {
		for _, w := range worlds {
			if w == nil {
				continue
			}
			list, err := w.Progress(context.Background())
			if err != nil {
				return err
			}
			for _, p := range list {
				if p.StepsDone > p.Steps || p.BytesDone > p.Bytes || p.Phase == rank.Ended {
					return fmt.Errorf("a look at a call: %v", p)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}
