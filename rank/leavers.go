package rank

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/cover"
)

// Ranks that shrink their world agree on who is left. Who is gone is told by others: a rank
// that closes its world says so, and package cluster says who is lost. What remains is
// ranks that live and whose data link to each other is broken:
//
//   - Who calls Shrink says so to all, with which links of its own are broken: it tries those
//     that it has opened.
//   - A link counts when both of its ends have said that it is broken, so that of a rank
//     which is just closing its world never does. A rank that hears of a link of its own
//     says so too.
//   - Where a link is broken, others may be that nobody has missed yet, as no call has waited
//     for them. So when all have called, each two that have a link open send each other an
//     empty message by it, and say so when these have come, or their drivers have found why
//     not.
//   - When all have done that, and both ends of every broken link have spoken, cover.Fewest
//     says who goes. All are told before the group of the others is made.
//   - Whoever hears that somebody goes lets it go too, and nothing of it is taken back. So
//     there are only ever fewer, and ranks that have heard things in different orders end
//     with the same members: a group of others does not meet, and each of its members
//     leaves it when it hears of fewer.
//
// shrinks is what a process knows of that, guarded by process.mu.
type shrinks struct {
	called map[kolo.Rank]uint64         // how often each has called Shrink, as it has told
	tried  map[kolo.Rank]uint64         // in which of these calls it has tried its links
	opened map[kolo.Rank][]kolo.Rank    // to whom it has links
	mine   map[kolo.Rank]*shrinker      // the ranks here that have called it
	links  map[[2]kolo.Rank]*brokenLink // lower rank first
	out    map[kolo.Rank]*exclusion     // who was left out
}

// shrinker is a rank of this process that shrinks its world.
type shrinker struct {
	calls uint64
	tried uint64               // the call in which it has tried its links
	told  int                  // of what there was to tell
	met   map[kolo.Rank]uint64 // the call of each other that the latest Shrink has met
}

// brokenLink is a data link that is broken.
type brokenLink struct {
	said [2]bool // by the lower rank, by the higher
	why  string
}

// exclusion is why a rank was left out.
type exclusion struct {
	ends []kolo.Rank // the other ends of its broken links
	why  string
}

// view is what a rank that shrinks its world knows of the others.
type view struct {
	list   []kolo.Rank          // who is left
	calls  map[kolo.Rank]uint64 // the call of Shrink that each is in
	awaits error                // what the list is not final for, or nil
	owes   bool                 // it is this rank that has to say something
	try    map[kolo.Rank]uint64 // with whom this rank has to try its links, and a number that both ends share
	news   <-chan struct{}      // closed when it may be another
}

func newShrinks() shrinks {
	return shrinks{called: map[kolo.Rank]uint64{}, tried: map[kolo.Rank]uint64{}, opened: map[kolo.Rank][]kolo.Rank{}, mine: map[kolo.Rank]*shrinker{}, links: map[[2]kolo.Rank]*brokenLink{}, out: map[kolo.Rank]*exclusion{}}
}

// maxWhy is the most bytes of a cause that are told.
const maxWhy = 500

// announce counts a call of Shrink.
func (p *process) announce(r kolo.Rank) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.shrinks
	if s.mine[r] == nil {
		s.mine[r] = &shrinker{}
	}
	s.mine[r].calls++
}

// say notes that a rank says of its link to another that it is broken.
func (s *shrinks) say(r, peer kolo.Rank, why string) {
	key, end := [2]kolo.Rank{min(r, peer), max(r, peer)}, 0
	if r > peer {
		end = 1
	}
	if s.links[key] == nil {
		s.links[key] = &brokenLink{why: why}
	}
	s.links[key].said[end] = true
}

// letter is what a rank here says.
func (s *shrinks) letter(r kolo.Rank) *shrinkLetter {
	m := &shrinkLetter{rank: r, call: s.mine[r].calls, tried: s.mine[r].tried, opened: s.opened[r], links: map[kolo.Rank]string{}, out: maps.Clone(s.out)}
	for key, l := range s.links {
		for end, said := range l.said {
			if key[end] == r && said {
				m.links[key[1-end]] = l.why
			}
		}
	}
	return m
}

// size is how much there is to tell in a letter.
func (m *shrinkLetter) size() int { return int(m.call+m.tried) + len(m.links) + len(m.out) }

// state says, if that is not known, that a rank is in Shrink, to whom it has links, which
// of them are broken, and who goes.
func (p *process) state(r kolo.Rank, c *linkCheck) {
	p.mu.Lock()
	s := &p.shrinks
	for peer, err := range c.dead {
		if p.parted[peer] == nil {
			s.say(r, peer, shorten(err.Error()))
		}
	}
	s.opened[r] = c.opened
	for key := range s.links {
		if i := slices.Index(key[:], r); i >= 0 && p.parted[key[1-i]] == nil {
			s.say(r, key[1-i], "")
		}
	}
	m := s.letter(r)
	anything := m.size() > s.mine[r].told
	if anything {
		s.called[r], s.tried[r], s.mine[r].told = m.call, m.tried, m.size()
		p.tellNews()
	}
	p.mu.Unlock()
	if anything && p.outside != nil {
		b := pack(m)
		for _, q := range p.outside.procs {
			_ = p.outside.part.Control.Tell(q, b) // who is lost is reported by Lost
		}
	}
}

func shorten(text string) string {
	if len(text) > maxWhy {
		return text[:maxWhy] + "..."
	}
	return text
}

// shrinks takes note of what a rank of another process says.
func (o *outside) shrinks(from int, m *shrinkLetter) error {
	known := func(r kolo.Rank) bool { return r >= 0 && int(r) < len(o.part.Processes) }
	bad := !known(m.rank) || o.part.Processes[m.rank] != from
	for r := range m.links {
		bad = bad || !known(r) || r == m.rank
	}
	for r, x := range m.out {
		bad = bad || !known(r) || slices.ContainsFunc(x.ends, func(r kolo.Rank) bool { return !known(r) })
	}
	if bad {
		return fmt.Errorf("%w: process %d tells of ranks that it cannot know", kolo.ErrArgument, from)
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	s := &o.p.shrinks
	s.called[m.rank], s.tried[m.rank], s.opened[m.rank] = m.call, m.tried, m.opened
	for peer, why := range m.links {
		s.say(m.rank, peer, why)
	}
	for r, x := range m.out {
		if s.out[r] == nil {
			s.out[r] = x
		}
	}
	o.p.tellNews()
	return nil
}

// broken lists the links between ranks of an ascending list that are broken, those first of
// which only one end has said so.
func (s *shrinks) broken(list []kolo.Rank) (open, known [][2]kolo.Rank) {
	for key, l := range s.links {
		_, low := slices.BinarySearch(list, key[0])
		_, high := slices.BinarySearch(list, key[1])
		switch {
		case !low || !high:
		case l.said[0] && l.said[1]:
			known = append(known, key)
		default:
			open = append(open, key)
		}
	}
	return open, known
}

// agree is who is left, once that can be known; who then has to go for a broken link goes.
func (p *process) agree(w *World) *view {
	p.mu.Lock()
	s := &p.shrinks
	v := &view{list: p.survivors(), calls: maps.Clone(s.called), news: p.nextNews()}
	if p.awaited(v, w.rank); v.awaits != nil {
		p.mu.Unlock()
		return v
	}
	_, known := s.broken(v.list)
	for _, r := range cover.Fewest(known) {
		s.out[r] = s.exclude(r, known)
	}
	v.list = p.survivors()
	c := &linkCheck{opened: s.opened[w.rank]}
	p.mu.Unlock()
	if len(known) > 0 {
		p.state(w.rank, c)
	}
	return v
}

// awaited notes what is missing before the ranks of a view can know who is left.
func (p *process) awaited(v *view, me kolo.Rank) {
	s := &p.shrinks
	late := slices.DeleteFunc(slices.Clone(v.list), func(r kolo.Rank) bool { return r == me || s.called[r] > s.mine[me].met[r] })
	if len(late) > 0 {
		v.await(me, late, "not called Shrink")
		return
	}
	open, known := s.broken(v.list)
	if len(open)+len(known) > 0 {
		if s.mine[me].tried < s.mine[me].calls {
			v.try = s.toTry(v.list, me)
		}
		late = slices.DeleteFunc(slices.Clone(v.list), func(r kolo.Rank) bool { return s.tried[r] == s.called[r] })
		if len(late) > 0 {
			v.await(me, late, "not tried their data links")
			return
		}
	}
	for _, l := range open {
		end := 0
		if s.links[l].said[0] {
			end = 1
		}
		late = append(late, l[end])
	}
	if slices.Sort(late); len(late) > 0 {
		v.await(me, slices.Compact(late), "not answered that a data link of theirs is broken")
		v.owes = slices.Contains(late, me)
	}
}

// await notes who has not done something.
func (v *view) await(me kolo.Rank, late []kolo.Rank, what string) {
	e := &kolo.Error{Rank: me, Peer: kolo.NoRank, Ranks: late}
	if len(late) == 1 {
		e.Peer = late[0]
	}
	e.Err = fmt.Errorf("%w: rank %s %s", kolo.ErrDeadline, haveNot(late), what)
	v.awaits = e
}

// toTry is with whom a rank has a link, as far as it or the other has said.
func (s *shrinks) toTry(list []kolo.Rank, me kolo.Rank) map[kolo.Rank]uint64 {
	try := map[kolo.Rank]uint64{}
	for _, r := range list {
		if r != me && (slices.Contains(s.opened[me], r) || slices.Contains(s.opened[r], me)) {
			try[r] = s.called[me] + s.called[r]
		}
	}
	return try
}

// tries says whether the ranks of a list still have reason to try their links.
func (p *process) tries(list []kolo.Rank) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	open, known := p.shrinks.broken(list)
	return slices.Equal(list, p.survivors()) && len(open)+len(known) > 0
}

// haveTried notes that a rank has tried its links in this call of Shrink.
func (p *process) haveTried(r kolo.Rank) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shrinks.mine[r].tried = p.shrinks.mine[r].calls
}

// exclude is why a rank goes.
func (s *shrinks) exclude(r kolo.Rank, known [][2]kolo.Rank) *exclusion {
	x := &exclusion{}
	for _, l := range known {
		if i := slices.Index(l[:], r); i >= 0 {
			x.ends = append(x.ends, l[1-i])
		}
	}
	slices.Sort(x.ends)
	x.why = s.links[[2]kolo.Rank{min(r, x.ends[0]), max(r, x.ends[0])}].why
	return x
}

// err is the exclusion as the error of the rank.
func (x *exclusion) err(r kolo.Rank) error {
	e := &kolo.Error{Rank: r, Peer: kolo.NoRank, Ranks: x.ends}
	if len(x.ends) == 1 {
		e.Peer = x.ends[0]
	}
	e.Err = fmt.Errorf("%w: %w: the data link of rank %d to rank %s is broken though both live (%s); no group can have both ends, "+
		"and of the ranks at such links as few go as can be, of equal choices the higher. Groups without those ranks work on; "+
		"close this World, and join the next epoch of the job when the link works", kolo.ErrLeftOut, kolo.ErrLost, int(r), kolo.RankList(x.ends), x.why)
	return e
}

// stands says whether a list is still who is left.
func (p *process) stands(list []kolo.Rank) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	open, known := p.shrinks.broken(list)
	return slices.Equal(list, p.survivors()) && len(open)+len(known) == 0
}

// shrunk notes with which calls of the others one of Shrink has met: in the next, others count.
func (p *process) shrunk(w *World, v *view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shrinks.mine[w.rank].met = v.calls
}
