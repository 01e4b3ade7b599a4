package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// nearness is where two processes are to each other.
type nearness int

const (
	near  nearness = iota // one network namespace of a machine
	aside                 // one machine
	apart
)

func nearnessOf(a, b *Host) nearness {
	switch {
	case a.Machine != b.Machine:
		return apart
	case a.Network != b.Network:
		return aside
	}
	return near
}

// profile is what counts of a process, but for where it is, when it is joined to another.
// Worlds have few of them.
type profile struct {
	user int
	rdma bool   // it has an active RoCE port
	has  string // the drivers that it has opened, each with a comma behind it
}

func (m *channelMap) profile(r *roster, q int) profile {
	h := &r.Members[q].Host
	x := profile{user: h.User, rdma: len(h.RDMA) > 0}
	for _, name := range slices.Sorted(slices.Values(m.has[q])) {
		x.has += name + ","
	}
	return x
}

func (x *profile) opened(name string) bool {
	return slices.Contains(strings.Split(x.has, ","), name)
}

// obstacle is why a driver does not join processes of two profiles, or "". All processes
// come to the same answer, by what all know of each. Where an end has not opened the driver, the text ends
// in notOpened and lacks the ranks before it.
func (m *channelMap) obstacle(name string, x, y *profile, at nearness) string {
	switch {
	case name == "verbs" && m.auto && !(x.rdma && y.rdma):
		return "not both hosts have an active RoCE port"
	case !x.opened(name) || !y.opened(name):
		return notOpened
	case name == "shm" && at == apart:
		return "they are on different hosts"
	case name == "shm" && at == aside:
		return "they are in different network namespaces"
	case name == "shm" && x.user != y.user:
		return fmt.Sprintf("they run as different users (%d and %d)", min(x.user, y.user), max(x.user, y.user))
	case name == "verbs" && m.auto && at != apart:
		return "they are on one host"
	}
	return ""
}

const notOpened = " not opened it"

// suspect is what to check where processes of two profiles are joined by less than their hosts seem
// to have, or "". What is %s in it are hosts, or RoCE ports.
func (m *channelMap) suspect(x, y *profile, at nearness, driver string) string {
	switch {
	case !m.auto || driver != "tcp":
		return ""
	case at != apart:
		return "one machine, and its memory is not shared: give both the same network namespace and user (containers: the host's, or one pod), and see that channel/shm is linked in"
	case x.rdma && y.rdma:
		return "both have RoCE ports (%s) and send by TCP: link channel/verbs in, install libibverbs, and see what kolo doctor says of it"
	case x.rdma != y.rdma:
		return "only one end has an active RoCE port: on %s check the adapter, its driver, the cable and the port's state (rdma link, ibv_devinfo)"
	}
	return ""
}

// pairing is pairs of processes that are joined alike for the same reasons.
type pairing struct {
	driver, why, check string

	pairs [][2]int // the first maxNotes, in their order
	count int
	lacks map[string]map[int]bool // by driver: the processes that have not opened it
	ports map[int]bool            // the processes whose ports or hosts the check is about
	r     *roster
}

// pairings are all pairs of processes, those of a kind together. The work is that of the
// processes and of the profiles there are, not of the pairs.
func (m *channelMap) pairings(r *roster) []*pairing {
	kinds := map[[3]string]*pairing{}
	c := m.census(r)
	for i := range c.profiles {
		for j := range i + 1 {
			for at := near; at <= apart; at++ {
				if n := c.count(i, j, at); n > 0 {
					m.add(kinds, c, i, j, at, n)
				}
			}
		}
	}
	list := slices.Collect(maps.Values(kinds))
	for _, g := range list {
		slices.SortFunc(g.pairs, func(a, b [2]int) int { return cmp.Or(a[1]-b[1], a[0]-b[0]) })
		g.pairs = slices.Compact(g.pairs)
		g.pairs = g.pairs[:min(len(g.pairs), maxNotes)]
		g.finish()
	}
	slices.SortFunc(list, func(a, b *pairing) int {
		return cmp.Or(a.pairs[0][1]-b.pairs[0][1], a.pairs[0][0]-b.pairs[0][0])
	})
	return list
}

// add notes the pairs of two profiles.
func (m *channelMap) add(kinds map[[3]string]*pairing, c *census, i, j int, at nearness, n int) {
	x, y := &c.profiles[i], &c.profiles[j]
	order := preferred()
	if !m.auto {
		order = m.names[1:]
	}
	driver, not, lacks := "nothing", []string(nil), []string(nil)
	for _, name := range order {
		reason := m.obstacle(name, x, y, at)
		if reason == "" {
			driver = name
			break
		}
		if reason == notOpened {
			lacks = append(lacks, name)
		}
		not = append(not, name+": "+reason)
	}
	check := m.suspect(x, y, at, driver)
	key := [3]string{driver, strings.Join(not, ", not "), check}
	g := kinds[key]
	if g == nil {
		g = &pairing{driver: driver, why: key[1], check: check, lacks: map[string]map[int]bool{}, ports: map[int]bool{}, r: c.r}
		if kinds[key] = g; driver == "nothing" {
			g.why = strings.Join(not, ", ")
		} else {
			g.why = reasons(m.auto, not)
		}
	}
	g.count += n
	g.pairs = append(g.pairs, c.first(i, j, at)...)
	for _, k := range []int{i, j} {
		for _, name := range lacks {
			if !c.profiles[k].opened(name) {
				c.members(k, i+j-k, at, add(g.lacks, name))
			}
		}
		if strings.Contains(check, "%s") && (!c.profiles[k].rdma || x.rdma && y.rdma) {
			c.members(k, i+j-k, at, g.ports)
		}
	}
}

// add is the set of a name, made where there is none.
func add(sets map[string]map[int]bool, name string) map[int]bool {
	if sets[name] == nil {
		sets[name] = map[int]bool{}
	}
	return sets[name]
}

// reasons is why a driver was taken.
func reasons(auto bool, not []string) string {
	why := "the best that both have"
	if !auto {
		why = "Config.Transport says so"
	}
	if len(not) > 0 {
		why += "; not " + strings.Join(not, ", not ")
	}
	return why
}

// finish puts the names into the texts.
func (g *pairing) finish() {
	for name, set := range g.lacks {
		var ranks []kolo.Rank
		for _, q := range slices.Sorted(maps.Keys(set)) {
			ranks = append(ranks, g.r.Members[q].Ranks...)
		}
		slices.Sort(ranks)
		has := " has"
		if len(ranks) > 1 {
			has = " have"
		}
		g.why = strings.ReplaceAll(g.why, name+": "+notOpened, fmt.Sprintf("%s: rank %s%s%s", name, kolo.RankList(ranks), has, notOpened))
	}
	if !strings.Contains(g.check, "%s") {
		return
	}
	var names []string
	more := 0
	for _, q := range slices.Sorted(maps.Keys(g.ports)) {
		h := &g.r.Members[q].Host
		name := cmp.Or(h.Name, "an unnamed host")
		if strings.HasPrefix(g.check, "both") {
			name = strings.Join(h.RDMA, ", ")
		}
		switch {
		case slices.Contains(names, name):
		case len(names) == maxNotes:
			more++
		default:
			names = append(names, name)
		}
	}
	sep := ", "
	if strings.HasPrefix(g.check, "both") {
		sep = "; "
	}
	text := strings.Join(names, sep)
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	g.check = fmt.Sprintf(g.check, text)
}

// between names the pairs, not too many.
func (g *pairing) between() string {
	var pairs []string
	for _, p := range g.pairs {
		pairs = append(pairs, fmt.Sprintf("%s with %s", kolo.RankList(g.r.Members[p[0]].Ranks), kolo.RankList(g.r.Members[p[1]].Ranks)))
	}
	text := fmt.Sprintf("%s between rank %s", g.driver, strings.Join(pairs, ", "))
	if more := g.count - len(pairs); more > 0 {
		text += fmt.Sprintf(" and %d more pairs", more)
	}
	return text
}
