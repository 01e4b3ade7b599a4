package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// TuneConfig says what Tune is to time. The zero value works. All ranks give the same.
type TuneConfig struct {
	// Collectives to time, base ones: default AllReduce, AllGather, ReduceScatter, Broadcast.
	Collectives []kolo.Collective
	// Sizes of the whole vector in bytes (see plan.VectorSize), ascending; default 64 B to
	// 16 MiB by factors of 16.
	Sizes []int64
	// Contest are the limits of each contest.
	Contest plan.ContestConfig
	// Batch is about how long a timing takes: short calls are made several times for one.
	// Default 100 us.
	Batch time.Duration
	// Previous are the choices so far: they stay where nothing else is faster by the
	// contest's hysteresis. Without, the choice for a size is that for the next smaller one.
	Previous *plan.Tuning
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Tuned is what Tune has found out, the same on all ranks.
type Tuned struct {
	Tuning  *plan.Tuning
	Timings []plan.Timing // on group rank 0; Contest has everybody who took part and all times
}

// maxTuneBytes is the largest size that Tune takes.
const maxTuneBytes = 1 << 32

// maxBatch is how many calls make one timing at most.
const maxBatch = 256

// Tune times algorithms with real calls of group g, and returns the table of the
// fastest ones, for Config.Tuning of the next World or for a tuner file. All ranks call it,
// with nothing else going on. Which algorithms are timed, and how often, is said at
// plan.Contest. A time is that of the slowest rank, from a barrier on. Group rank 0 holds
// the contests and tells the others what to do; the table that they get from it is the
// agreed one. It times in groups of its own, which are closed in the end, also if it
// fails.
func Tune(ctx context.Context, g *Group, c TuneConfig) (*Tuned, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &tuner{TuneConfig: c, g: g, groups: map[int]*Group{}}
	out, err := t.run(ctx)
	for _, k := range t.groups {
		err = errors.Join(err, k.Close(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("tune %s: %w", g.Name(), err)
	}
	return out, nil
}

// check fills in defaults and says what makes no sense.
func (c *TuneConfig) check() error {
	if c.Collectives == nil {
		c.Collectives = []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Broadcast}
	}
	if c.Sizes == nil {
		for size := int64(64); size <= 16<<20; size *= 16 {
			c.Sizes = append(c.Sizes, size)
		}
	}
	c.Batch = cmp.Or(c.Batch, 100*time.Microsecond)
	if c.Now == nil {
		c.Now = time.Now
	}
	for _, k := range c.Collectives {
		if !slices.Contains([]kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Broadcast, kolo.Reduce, kolo.AllToAll}, k) {
			return fmt.Errorf("%w: Tune times AllReduce, AllGather, ReduceScatter, Broadcast, Reduce and AllToAll, not %v", kolo.ErrArgument, k)
		}
	}
	for i, size := range c.Sizes {
		if size < 1 || size > maxTuneBytes || i > 0 && size <= c.Sizes[i-1] {
			return fmt.Errorf("%w: TuneConfig.Sizes %v; want ascending sizes of 1 to %d bytes", kolo.ErrArgument, c.Sizes, int64(maxTuneBytes))
		}
	}
	if c.Batch < 0 {
		return fmt.Errorf("%w: TuneConfig.Batch %v is negative", kolo.ErrArgument, c.Batch)
	}
	return nil
}

// tuner is one rank's part of a Tune.
type tuner struct {
	TuneConfig
	g      *Group
	groups map[int]*Group // by index of the algorithm; made when they are first needed
	order  [2]int64       // what rank 0 says: which algorithm, how many calls
	in     []float32
	out    []float32
}

// The algorithm of an order that says that the contest is over.
const contestOver = -1

// run holds all contests.
func (t *tuner) run(ctx context.Context) (*Tuned, error) {
	var timings []plan.Timing
	for _, k := range t.Collectives {
		before := ""
		for _, size := range t.Sizes {
			won, err := t.contest(ctx, k, size, before)
			if err != nil {
				return nil, err
			}
			before = won.Algorithm
			timings = append(timings, won)
		}
	}
	var table []byte
	if t.g.Rank() == 0 {
		table = plan.TuningOf(timings, t.g.hub.topo).HCCL()
	} else {
		timings = nil
	}
	length := []int64{int64(len(table))}
	if err := Broadcast(ctx, t.g, length, 0); err != nil {
		return nil, err
	}
	if t.g.Rank() != 0 {
		table = make([]byte, length[0])
	}
	if err := Broadcast(ctx, t.g, table, 0); err != nil {
		return nil, err
	}
	agreed, skipped, err := plan.ParseTuning(table)
	if err == nil && len(skipped) > 0 {
		err = fmt.Errorf("%w: rank 0 tells of algorithms that are not here: %v", kolo.ErrMismatch, skipped)
	}
	return &Tuned{Tuning: agreed, Timings: timings}, err
}

// contest times the algorithms for one collective and size.
func (t *tuner) contest(ctx context.Context, k kolo.Collective, size int64, before string) (plan.Timing, error) {
	r, call, size := t.request(k, size)
	won := plan.Timing{Collective: k, Size: size}
	var held *plan.Contest
	if t.g.Rank() == 0 {
		policy := plan.Policy{Reproducible: t.g.hub.plans.policy.Reproducible}
		// what the model says of the size is what a group goes by
		ch, err := plan.ChooseSize(k, plan.SizesOf(size, nil).Typical, t.g.hub.plans.costs(), policy)
		if err != nil {
			return won, err
		}
		held = plan.NewContest(ch, t.Contest)
		if t.Previous != nil {
			policy.Tuning = t.Previous
			if ch, err := plan.Choose(call, t.g.hub.plans.costs(), policy); err == nil { // a choice that cannot be made is no incumbent
				before = ch.Algorithm
			}
		}
	}
	for {
		took, over, err := t.time(ctx, held, r)
		if err != nil {
			return won, err
		}
		if over {
			break
		}
		if held != nil {
			held.Add(took)
		}
	}
	if held != nil {
		won.Algorithm, won.Median, won.Regret = held.Winner(before)
		won.Contest = held
	}
	return won, nil
}

// time does one timing, of which rank 0 says by its contest what it is.
func (t *tuner) time(ctx context.Context, held *plan.Contest, r Request) (took time.Duration, over bool, err error) {
	table := plan.Algorithms()
	if held != nil {
		t.order = [2]int64{contestOver, 1}
		if name, ok := held.Next(); ok {
			t.order[0] = int64(slices.IndexFunc(table, func(a *plan.Algorithm) bool { return a.Name == name }))
			e := held.Entrants[slices.IndexFunc(held.Entrants, func(e plan.Entrant) bool { return e.Name == name })]
			t.order[1] = int64(min(max(t.Batch/max(e.Model, 1), 1), maxBatch))
		}
	}
	if err := Broadcast(ctx, t.g, t.order[:], 0); err != nil {
		return 0, false, err
	}
	at, calls := int(t.order[0]), t.order[1]
	if at == contestOver {
		return 0, true, nil
	}
	if at < 0 || at >= len(table) {
		return 0, false, fmt.Errorf("%w: rank 0 names algorithm %d of %d", kolo.ErrMismatch, at, len(table))
	}
	k, err := t.group(at, table[at].Name)
	if err != nil {
		return 0, false, err
	}
	if err := Do(ctx, k, r); err != nil { // compiles and connects, and warms up
		return 0, false, err
	}
	if err := Barrier(ctx, t.g); err != nil {
		return 0, false, err
	}
	start := t.Now()
	for range calls {
		if err := Do(ctx, k, r); err != nil {
			return 0, false, err
		}
	}
	slowest := []int64{int64(t.Now().Sub(start)) / calls}
	err = AllReduce(ctx, t.g, slowest, kolo.Max)
	return time.Duration(slowest[0]), false, err
}

// group is the group in which an algorithm is forced.
func (t *tuner) group(at int, name string) (*Group, error) {
	if k := t.groups[at]; k != nil {
		return k, nil
	}
	k, err := t.g.world.NewGroup(GroupConfig{Name: t.g.Name() + " tunes " + name, Ranks: t.g.hub.ranks, Algorithm: name, Timeout: t.g.hub.cfg.Timeout})
	if err != nil {
		return nil, err
	}
	t.groups[at] = k
	return k, nil
}

// request is a call of about size bytes of the whole vector, and how many they are.
func (t *tuner) request(k kolo.Collective, size int64) (Request, *kolo.Call, int64) {
	n := int64(t.g.Size())
	count := max(size/4, 1) // of the whole vector
	each := max(count/n, 1)
	call := &kolo.Call{Collective: k, DType: kolo.Float32, Count: count}
	in, out := count, count
	switch k {
	case kolo.AllGather:
		call.Count, in, out = each, each, each*n
	case kolo.ReduceScatter:
		call.Count, in, out = each, each*n, each
	case kolo.AllToAll:
		call.Count, in, out = each, each*n, each*n
	}
	t.in, t.out = ready(t.in, in), ready(t.out, out)
	r := Request{Collective: k, In: Of(t.in[:in]), Out: Of(t.out[:out]), Op: kolo.Sum}
	switch k {
	case kolo.Broadcast:
		r.In = Buffer{}
	case kolo.Reduce:
		if t.g.Rank() != 0 {
			r.Out = Buffer{}
		}
	}
	whole, err := plan.VectorSize(call, int(n))
	if err != nil {
		panic("rank: a tuning call without a size: " + err.Error()) // check has seen to it
	}
	return r, call, whole
}

// ready is b, or n new elements that are written to: the pages of memory that nobody has
// written to are slower to write, for whoever does so first, and faster to read.
func ready(b []float32, n int64) []float32 {
	if int64(len(b)) >= n {
		return b
	}
	b = make([]float32, n)
	for i := range b {
		b[i] = 1
	}
	return b
}

// tuningDigest is what processes compare of their tunings.
func tuningDigest(t *plan.Tuning) uint64 {
	if t == nil {
		return 0
	}
	return t.Digest()
}
