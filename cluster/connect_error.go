package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// ConnectError says which processes of a world cannot connect to which, and how that was tried:
// the error of a join on all ranks, where it is so. It is a kolo.ErrDeadline.
type ConnectError struct {
	Pairs   int           // of processes, in all
	Linked  int           // that have connected
	Slowest time.Duration // of those
	Blocked []Blocked     // those that have not, alike ones together, most first
	More    int           // pairs beyond Blocked, which has at most 16
	Silent  []kolo.Rank   // of processes that have not told whom they reach
}

// Blocked are pairs of processes that cannot connect, each of one side with each of the other.
// The process of the higher number dials. From and To are one of them.
type Blocked struct {
	Ranks, With      []kolo.Rank // all ranks of the processes; without With: each with each other
	Pairs            int
	From, To         kolo.Rank
	FromHost, ToHost string
	Tried            []Attempt
}

// blockedPair is two processes that cannot connect.
type blockedPair struct {
	from, to int
	by       *failing
}

// newConnectError makes one of what processes have told.
func newConnectError(members []Member, rows map[int]*row) *ConnectError {
	n := len(members)
	e := &ConnectError{Pairs: n * (n - 1) / 2}
	kinds := map[string][]blockedPair{}
	for q := range members {
		r := rows[q]
		if r == nil {
			e.Silent = append(e.Silent, members[q].Ranks...)
			continue
		}
		e.Linked, e.Slowest = e.Linked+r.Linked, max(e.Slowest, r.Slowest)
		for i := range r.Failed {
			f := &r.Failed[i]
			key := kindOf(f.Tried)
			for _, to := range f.To {
				if to >= 0 && to < n && to != q {
					kinds[key] = append(kinds[key], blockedPair{q, to, f})
				}
			}
		}
	}
	slices.Sort(e.Silent)
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		for _, s := range stars(kinds[key]) {
			e.Blocked = append(e.Blocked, s.blocked(members))
		}
	}
	slices.SortStableFunc(e.Blocked, func(a, b Blocked) int { return b.Pairs - a.Pairs })
	for _, b := range e.Blocked[min(len(e.Blocked), maxNotes):] {
		e.More += b.Pairs
	}
	e.Blocked = e.Blocked[:min(len(e.Blocked), maxNotes)]
	return e
}

// star is processes none of which connects with any of others.
type star struct {
	hubs, leaves []int
	one          blockedPair
}

// stars groups pairs: who has most of them first, which is more likely to be at fault than the
// others; those that miss the same others share a star.
func stars(pairs []blockedPair) (list []star) {
	at := map[int]map[int]blockedPair{}
	for _, p := range pairs {
		for _, end := range [][2]int{{p.from, p.to}, {p.to, p.from}} {
			if at[end[0]] == nil {
				at[end[0]] = map[int]blockedPair{}
			}
			at[end[0]][end[1]] = p
		}
	}
	index := map[string]int{}
	for len(at) > 0 {
		if s := clique(at); s != nil {
			return append(list, *s)
		}
		hub := slices.MinFunc(slices.Collect(maps.Keys(at)), func(a, b int) int { return cmp.Or(len(at[b])-len(at[a]), a-b) })
		leaves := slices.Sorted(maps.Keys(at[hub]))
		key := fmt.Sprint(leaves)
		i, ok := index[key]
		if !ok {
			i = len(list)
			index[key], list = i, append(list, star{leaves: leaves, one: at[hub][leaves[0]]})
			for _, q := range leaves { // one whose addresses are known here
				if p := at[hub][q]; p.by.To[0] == p.to {
					list[i].one = p
					break
				}
			}
		}
		list[i].hubs = append(list[i].hubs, hub)
		for _, q := range leaves {
			if delete(at[q], hub); len(at[q]) == 0 {
				delete(at, q)
			}
		}
		delete(at, hub)
	}
	return list
}

// clique is a star of all, where none connects with any other, and they are more than two.
func clique(at map[int]map[int]blockedPair) *star {
	if len(at) < 3 {
		return nil
	}
	for _, others := range at {
		if len(others) < len(at)-1 {
			return nil
		}
	}
	s := &star{hubs: slices.Sorted(maps.Keys(at))}
	s.one = at[s.hubs[0]][s.hubs[1]]
	return s
}

// blocked is the star in ranks.
func (s *star) blocked(members []Member) Blocked {
	ranks := func(list []int) (out []kolo.Rank) {
		for _, q := range list {
			out = append(out, members[q].Ranks...)
		}
		slices.Sort(out)
		return out
	}
	from, to := &members[s.one.from], &members[s.one.by.To[0]]
	pairs := len(s.hubs) * len(s.leaves)
	if len(s.leaves) == 0 {
		pairs = len(s.hubs) * (len(s.hubs) - 1) / 2
	}
	return Blocked{Ranks: ranks(s.hubs), With: ranks(s.leaves), Pairs: pairs, From: slices.Min(from.Ranks), To: slices.Min(to.Ranks),
		FromHost: from.Host.Name, ToHost: to.Host.Name, Tried: s.one.by.Tried}
}

// joinError is the error as that of a rank.
func (e *ConnectError) joinError() error {
	k := &kolo.Error{Rank: kolo.NoRank, Peer: kolo.NoRank, Err: e}
	for _, b := range e.Blocked {
		k.Ranks = append(k.Ranks, b.Ranks...)
	}
	slices.Sort(k.Ranks)
	k.Ranks = slices.Compact(k.Ranks)
	return k
}

// Unwrap is that a join was not in time.
func (e *ConnectError) Unwrap() error { return kolo.ErrDeadline }

// maxTried is how many addresses of a process are named.
const maxTried = 4

// Error has a line for each kind of pairs that cannot connect, and what to check.
func (e *ConnectError) Error() string {
	var b strings.Builder
	blocked := e.More
	for _, x := range e.Blocked {
		blocked += x.Pairs
	}
	fmt.Fprintf(&b, "%v: %d of %d pairs of processes cannot connect, %d have", kolo.ErrDeadline, blocked, e.Pairs, e.Linked)
	if e.Linked > 0 {
		fmt.Fprintf(&b, " (the slowest in %v)", roughly(e.Slowest))
	}
	for _, x := range e.Blocked {
		fmt.Fprintf(&b, "\n  rank %s with ", rankRanges(x.Ranks))
		if len(x.With) > 0 {
			fmt.Fprintf(&b, "rank %s", rankRanges(x.With))
		} else {
			b.WriteString("each other")
		}
		if x.Pairs > 1 {
			fmt.Fprintf(&b, " (%d pairs)", x.Pairs)
		}
		fmt.Fprintf(&b, ": rank %d on %s has dialled rank %d on %s at ", int(x.From), cmp.Or(x.FromHost, "an unnamed host"), int(x.To), cmp.Or(x.ToHost, "an unnamed host"))
		for i, a := range x.Tried {
			if i == maxTried {
				fmt.Fprintf(&b, " and %d more addresses", len(x.Tried)-i)
				break
			}
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(shortened(a.String()))
		}
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n  and %d more pairs", e.More)
	}
	if len(e.Silent) > 0 {
		fmt.Fprintf(&b, "\n  rank %s has not told whom it reaches: it has ended, or is stopped", rankRanges(e.Silent))
	}
	b.WriteString("\n  check that a firewall lets TCP through to the ports (any, unless Config.Listen names one) in that direction, and that the addresses are those of the right network (HCCL_SOCKET_IFNAME, HCCL_IF_IP)")
	return b.String()
}

// shortened is a text of at most 200 bytes.
func shortened(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// rankRanges is ascending ranks as "0-3, 7", not too many.
func rankRanges(list []kolo.Rank) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		switch {
		case len(parts) == maxNotes:
			return strings.Join(parts, ", ") + fmt.Sprintf(" and %d more", len(list)-i)
		case j == i:
			parts = append(parts, fmt.Sprint(int(list[i])))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", int(list[i]), int(list[j])))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
