package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/survey"
	"github.com/kolo-ccl/kolo/rank"
)

// DefaultTimeout is how long the ranks of a pair wait for each other.
const DefaultTimeout = 5 * time.Second

// Config says how to measure, and what is known before. All processes give the same
// Thorough, Timeout, Places and Identities.
type Config struct {
	// Thorough measures all pairs of ranks, with more and larger messages: seconds for
	// each pair. Otherwise pairs of processes are, and one pair within each: milliseconds.
	Thorough bool
	// Timeout is how long a pair may take until its link is lost. 0: DefaultTimeout.
	Timeout time.Duration
	// Places are where the ranks are, and Identities what each says to whom it meets.
	Places     []survey.Place
	Identities []string
	// Link is the kind of this process's link to a rank.
	Link func(to kolo.Rank) kolo.Link
}

// Result is what all ranks know afterwards.
type Result struct {
	Survey   *survey.Survey
	Topology *plan.Topology // the same in rounded figures; nil if the survey cannot be one
	Clocks   []Clock        // of the first rank of each other process, where rank 0 has met it
}

// Clock is how far a rank's clock is ahead of rank 0's.
type Clock struct {
	Rank  kolo.Rank
	Ahead time.Duration
	Give  time.Duration // it may be so much more or less
}

// OfProcess fills in Places, Identities and Link from a world of several processes. A
// host is a machine, as the kernel names its start, and a network name space of it.
func (c Config) OfProcess(p *cluster.Process) Config {
	members := p.Members()
	n := 0
	for i := range members {
		n += len(members[i].Ranks)
	}
	c.Places, c.Identities = make([]survey.Place, n), make([]string, n)
	name, used, on := map[string]string{}, map[string]bool{}, map[string]int{}
	for q := range members {
		m := &members[q]
		key := m.Host.Machine + m.Host.Network
		if _, ok := name[key]; !ok {
			host := cmp.Or(m.Host.Name, "host")
			for i := 2; used[host]; i++ {
				host = fmt.Sprintf("%s-%d", cmp.Or(m.Host.Name, "host"), i)
			}
			name[key], used[host] = host, true
		}
		for _, r := range m.Ranks {
			c.Places[r] = survey.Place{Process: q, Host: name[key], Rack: m.Host.Rack, Addresses: m.Addresses, Device: on[key]}
			c.Identities[r] = m.Nonce
			on[key]++
		}
	}
	routes := map[int]kolo.Link{}
	for _, r := range p.Map() {
		routes[r.Process] = r.Link
	}
	places := c.Places
	c.Link = func(to kolo.Rank) kolo.Link { return routes[places[to].Process] }
	return c
}

// Run measures, from all ranks of this process; all processes of the world call it at the
// same time. A pair that does not answer is a lost link of the survey, not an error.
func (c Config) Run(ctx context.Context, worlds []*rank.World) (*Result, error) {
	if len(worlds) == 0 || worlds[0].Size() != len(c.Places) || len(c.Places) != len(c.Identities) || c.Link == nil {
		return nil, fmt.Errorf("%w: probe: want worlds, and a place and an identity for each rank", kolo.ErrArgument)
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	results, errs := make([]*Result, len(worlds)), make([]error, len(worlds))
	var wg sync.WaitGroup
	for i, w := range worlds {
		// ends with the rank's part of the probe
		wg.Go(func() {
			p := &prober{Config: &c, world: w, me: w.Rank()}
			if results[i], errs[i] = p.run(ctx); errs[i] != nil {
				w.Group().Abort(errs[i])
			}
		})
	}
	wg.Wait()
	return results[0], errors.Join(errs...)
}

// meetings is who meets whom: in a round nobody meets two.
func (c *Config) meetings() [][][2]kolo.Rank {
	leads, seconds := map[int]kolo.Rank{}, map[int]kolo.Rank{}
	var list []kolo.Rank
	var rounds [][][2]kolo.Rank
	for i, p := range c.Places {
		r := kolo.Rank(i)
		if lead, ok := leads[p.Process]; !ok {
			leads[p.Process] = r
			list = append(list, r)
		} else if _, ok := seconds[p.Process]; !ok {
			seconds[p.Process] = r
			if !c.Thorough {
				rounds = append(rounds, [][2]kolo.Rank{{lead, r}})
			}
		}
		if c.Thorough && !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	slices.Sort(list)
	for _, round := range tournament(list) {
		if len(list) > manyRanks {
			rounds = append(rounds, round)
			continue
		}
		for _, pair := range round { // alone, so that pairs of a host are not in each other's way
			rounds = append(rounds, [][2]kolo.Rank{pair})
		}
	}
	return rounds
}

// manyRanks are so many that pairs must meet at the same time.
const manyRanks = 16

// tournament lets each meet each other once, by the circle method: the first stays, the
// others move on.
func tournament(list []kolo.Rank) (rounds [][][2]kolo.Rank) {
	seats := slices.Clone(list)
	if len(seats)%2 == 1 {
		seats = append(seats, kolo.NoRank)
	}
	n := len(seats)
	for range n - 1 {
		var round [][2]kolo.Rank
		for i := range n / 2 {
			a, b := min(seats[i], seats[n-1-i]), max(seats[i], seats[n-1-i])
			if seats[i] != kolo.NoRank && seats[n-1-i] != kolo.NoRank {
				round = append(round, [2]kolo.Rank{a, b})
			}
		}
		rounds = append(rounds, round)
		last := seats[n-1]
		copy(seats[2:], seats[1:n-1])
		seats[1] = last
	}
	return rounds
}

// prober is one rank's part.
type prober struct {
	*Config
	world *rank.World
	me    kolo.Rank
	notes notes
	// groups are the pairs' groups. They are closed when all ranks are done: that a rank has
	// left a group may be known to its peer before the last message is.
	groups []*rank.Group
}

// notes are what a rank tells all others.
type notes struct {
	Ways   []survey.Way
	Clocks []Clock
}

// run meets whom the rank is to meet, and exchanges what was found.
func (p *prober) run(ctx context.Context) (r *Result, err error) {
	defer func() {
		for _, g := range p.groups {
			err = errors.Join(err, g.Close(ctx))
		}
	}()
	for _, round := range p.meetings() {
		if err := rank.Barrier(ctx, p.world.Group()); err != nil {
			return nil, err
		}
		for _, pair := range round {
			if p.me != pair[0] && p.me != pair[1] {
				continue
			}
			peer := pair[0] + pair[1] - p.me
			way := survey.Way{From: p.me, To: peer, Edge: kolo.Edge{Link: p.Link(peer)}}
			if err := p.meet(ctx, pair, &way); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				way.Lost = fmt.Sprintf("%.300v", err)
			}
			p.notes.Ways = append(p.notes.Ways, way)
		}
	}
	return p.exchange(ctx)
}

// meet measures one pair. The group is of the two alone: should it fail, others go on.
func (p *prober) meet(ctx context.Context, pair [2]kolo.Rank, way *survey.Way) error {
	g, err := p.world.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("probe %d %d", int(pair[0]), int(pair[1])), Ranks: pair[:], Timeout: p.Timeout})
	if err != nil {
		return err
	}
	p.groups = append(p.groups, g)
	m := &meeting{g: g, first: p.me == pair[0], size: quickSize, times: quickTimes, hops: quickHops}
	if p.Thorough {
		m.size, m.times, m.hops = thoroughSize, thoroughTimes, thoroughHops
	}
	err = m.handshake(ctx, p.identity(p.me), p.identity(way.To))
	if err == nil {
		way.Edge.Latency, err = m.latency(ctx)
	}
	if err == nil {
		way.Edge.Bandwidth, err = m.bandwidth(ctx)
	}
	if err == nil && pair[0] == 0 {
		clock := Clock{Rank: pair[1]}
		if clock.Ahead, clock.Give, err = m.clock(ctx); err == nil && p.me == 0 {
			p.notes.Clocks = append(p.notes.Clocks, clock)
		}
	}
	return err
}

// identity is a rank with a number made of who it says that it is.
func (p *prober) identity(r kolo.Rank) [2]uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.Identities[r])) // a hash takes everything
	return [2]uint64{uint64(r), h.Sum64()}
}

// exchange gives all ranks what each has found, and makes sure that all have made the
// same of it.
func (p *prober) exchange(ctx context.Context) (*Result, error) {
	g := p.world.Group()
	mine, err := json.Marshal(&p.notes)
	if err != nil {
		return nil, err
	}
	sizes := make([]int64, g.Size())
	if err := rank.AllGather(ctx, g, sizes, []int64{int64(len(mine))}); err != nil {
		return nil, err
	}
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	all := make([]byte, total)
	if err := rank.AllGatherV(ctx, g, all, mine, rank.Vector{Counts: sizes}); err != nil {
		return nil, err
	}
	r := &Result{Survey: &survey.Survey{Places: p.Places}}
	for _, n := range sizes {
		var theirs notes
		if err := json.Unmarshal(all[:n], &theirs); err != nil {
			return nil, fmt.Errorf("what a rank has found: %w", err)
		}
		all = all[n:]
		r.Survey.Ways = append(r.Survey.Ways, theirs.Ways...)
		r.Clocks = append(r.Clocks, theirs.Clocks...)
	}
	r.Survey.Sort()
	slices.SortFunc(r.Clocks, func(a, b Clock) int { return cmp.Compare(a.Rank, b.Rank) })
	if err := r.Survey.Validate(); err != nil {
		return nil, err
	}
	digest := uint64(0)
	if r.Topology, err = r.Survey.Topology(); err == nil {
		digest = r.Topology.Digest()
	}
	digests := make([]uint64, g.Size())
	if err := rank.AllGather(ctx, g, digests, []uint64{digest}); err != nil {
		return nil, err
	}
	for q, d := range digests {
		if d != digest {
			return nil, fmt.Errorf("%w: rank %d has made a topology of digest %#x of the probe, rank %d one of %#x", kolo.ErrMismatch, q, d, int(p.me), digest)
		}
	}
	return r, nil
}
