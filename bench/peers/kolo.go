package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// koloPart measures this module: the job's collective at each size, on ranks of this
// process or of as many processes.
func koloPart(ctx context.Context, j job, w io.Writer) error {
	if j.between != "" {
		return processesPart(ctx, j, w)
	}
	all, units := newMemory(j.collective, j.ranks, slices.Max(j.sizes)), unitsOf(j.think)
	for _, size := range j.sizes {
		m, c := all.cut(size), newCrew(j.ranks)
		// ended by close
		go func() {
			c.ended <- rank.Run(ctx, j.ranks, func(ctx context.Context, world *rank.World) error {
				g := world.Group()
				call := koloCall(ctx, g, j.collective, m.ranks[world.Rank()])
				return c.serve(int(world.Rank()), call, func() error { return rank.Barrier(ctx, g) })
			})
		}()
		r := result{program: "kolo", variant: "default", collective: j.collective, ranks: j.ranks, size: size}
		if err := errors.Join(c.measure(j, m, units, r, w), c.close()); err != nil {
			return fmt.Errorf("%s: %w", sizeString(size), err)
		}
	}
	return nil
}

// koloCall is one rank's call.
func koloCall(ctx context.Context, g *rank.Group, c kolo.Collective, v vectors) func() error {
	switch c {
	case kolo.AllReduce:
		return func() error { return rank.AllReduce(ctx, g, v.dst, kolo.Sum) }
	case kolo.AllGather:
		return func() error { return rank.AllGather(ctx, g, v.dst, v.src) }
	case kolo.ReduceScatter:
		return func() error { return rank.ReduceScatter(ctx, g, v.dst, v.src, kolo.Sum) }
	case kolo.Broadcast:
		return func() error { return rank.Broadcast(ctx, g, v.dst, root) }
	case kolo.AllToAll:
		return func() error { return rank.AllToAll(ctx, g, v.dst, v.src) }
	}
	return func() error { return rank.Barrier(ctx, g) }
}
