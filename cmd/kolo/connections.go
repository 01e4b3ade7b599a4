package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/rank"
)

// connected is how a process has been linked with those that it has dialled, and whose memory it
// reads.
type connected struct {
	Ranks []kolo.Rank
	To    []cluster.Connection
	Reads []cluster.Reading
}

// slowest is how long the slowest took.
func (c *connected) slowest() (d time.Duration) {
	for _, x := range c.To {
		d = max(d, x.Took)
	}
	return d
}

// connections gives the process of rank 0 the lines of all processes. All call it.
func (p *party) connections(ctx context.Context) (string, error) {
	if p.process == nil {
		return "", nil
	}
	mine := connected{Ranks: p.ranks(), Reads: p.process.Readings()}
	for _, c := range p.process.Connections() {
		if c.Dialled {
			mine.To = append(mine.To, c)
		}
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return "", err
	}
	sizes, err := p.tellAll(ctx, int64(len(text)))
	if err != nil {
		return "", err
	}
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	all := make([]byte, total) // each rank of a process tells the same
	if err := p.together(func(w *rank.World) error {
		to := all
		if w != p.worlds[0] {
			to = make([]byte, total)
		}
		return rank.AllGatherV(ctx, w.Group(), to, text, rank.Vector{Counts: sizes})
	}); err != nil {
		return "", err
	}
	var list []connected
	for r, n := range sizes {
		var c connected
		if err := json.Unmarshal(all[:n], &c); err != nil {
			return "", fmt.Errorf("connections of rank %d: %w", r, err)
		}
		if all = all[n:]; slices.Min(c.Ranks) == kolo.Rank(r) {
			list = append(list, c)
		}
	}
	return connectionsText(p.members(), list) + readingsText(p.members(), list), nil
}

// maxConnections is how many processes have a line.
const maxConnections = 16

// connectionsText has a line for each process, or for those that took longest.
func connectionsText(members []cluster.Member, list []connected) string {
	var b strings.Builder
	fmt.Fprintf(&b, "connections for control: %d pairs of processes, which of each dialled whom at which address\n", len(members)*(len(members)-1)/2)
	list = slices.DeleteFunc(slices.Clone(list), func(c connected) bool { return len(c.To) == 0 })
	if len(list) > maxConnections {
		slices.SortStableFunc(list, func(a, b connected) int { return cmp.Compare(b.slowest(), a.slowest()) })
	}
	for i := range list {
		if i == maxConnections {
			fmt.Fprintf(&b, "  and %d more processes, each of which took %v at most\n", len(list)-i, list[i].slowest().Round(time.Microsecond))
			break
		}
		fmt.Fprintf(&b, "  rank %s: %s\n", kolo.RankList(list[i].Ranks), list[i].text(members))
	}
	return b.String()
}

// readingsText says whether processes read each other's private memory in place, and for each
// reason why some do not one line with the first of them.
func readingsText(members []cluster.Member, list []connected) string {
	type refused struct {
		by, of []kolo.Rank
		pairs  int
	}
	var why []string
	all, tried := map[string]*refused{}, 0
	for i := range list {
		for _, r := range list[i].Reads {
			tried++
			if r.Refusal == "" {
				continue
			}
			x := all[r.Refusal]
			if x == nil {
				x = &refused{by: list[i].Ranks, of: members[r.Process].Ranks}
				all[r.Refusal], why = x, append(why, r.Refusal)
			}
			x.pairs++
		}
	}
	switch {
	case tried == 0:
		return ""
	case len(why) == 0:
		return "private memory of the others: read in place\n"
	}
	var b strings.Builder
	for _, w := range why {
		x := all[w]
		fmt.Fprintf(&b, "private memory of rank %s: not readable by rank %s", kolo.RankList(x.of), kolo.RankList(x.by))
		if x.pairs > 1 {
			fmt.Fprintf(&b, " (so it is %d times of %d)", x.pairs, tried)
		}
		fmt.Fprintf(&b, "; large messages are copied twice: %s\n", w)
	}
	return b.String()
}

// text has the addresses, with whom was dialled there.
func (c *connected) text(members []cluster.Member) string {
	type group struct {
		at    string
		ranks []kolo.Rank
		took  time.Duration
	}
	var groups []*group
	var failed []string
	for _, x := range c.To {
		at, _, err := net.SplitHostPort(x.Address)
		if err != nil {
			at = x.Address
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.at == at })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{at: at})
		}
		groups[i].ranks = append(groups[i].ranks, members[x.Process].Ranks...)
		groups[i].took = max(groups[i].took, x.Took)
		for _, f := range x.Failed {
			failed = append(failed, f.String())
		}
	}
	var parts []string
	for _, g := range groups {
		slices.Sort(g.ranks)
		parts = append(parts, fmt.Sprintf("rank %s at %s within %v", kolo.RankList(g.ranks), g.at, g.took.Round(time.Microsecond)))
	}
	if n := len(failed); n > 0 {
		parts = append(parts, "after "+strings.Join(failed[:min(n, 3)], ", "))
		if n > 3 {
			parts[len(parts)-1] += fmt.Sprintf(" and %d more that failed", n-3)
		}
	}
	return strings.Join(parts, "; ")
}

// unconnected says what the doctor can of a world that cannot be joined, since some of its processes
// cannot connect: the first process what there is here, and which those are.
func (a *app) unconnected(e *cluster.ConnectError) error {
	place, err := a.place()
	if err != nil {
		return err
	}
	if place.process > 0 {
		return errors.New("some processes cannot connect: see the output of rank 0")
	}
	var b strings.Builder
	self := cluster.Self()
	interfaces(&b, self.Addresses)
	b.WriteString("\nlinks\n" + indent(e.Error()+"\n"))
	if _, err := fmt.Fprint(a.out, b.String()); err != nil {
		return err
	}
	return errors.New("some processes cannot connect: see the links")
}
