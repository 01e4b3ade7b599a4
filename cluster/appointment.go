package cluster

import (
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// appointment is two ranks of different processes that measure the way between them, a
// leading, or a rank that is to look at its process's memory, which is a and b. All
// processes make the same list, and each keeps its own appointments in that order, so that
// no two wait for each other.
type appointment struct{ a, b kolo.Rank }

// maxNear is how many processes of a host are looked at for pairs.
const maxNear = 64

// joining is the driver that joins two processes, "" for none.
func (m *channelMap) joining(r *roster, a, b int) string {
	order := preferred()
	if !m.auto {
		order = m.names[1:]
	}
	x, y, at := m.profile(r, a), m.profile(r, b), nearnessOf(&r.Members[a].Host, &r.Members[b].Host)
	for _, name := range order {
		if m.obstacle(name, &x, &y, at) == "" {
			return name
		}
	}
	return ""
}

// appointments are, in this order: the memory of the first process of each host that has
// several ranks; some pairs of each host, as many of each driver; and the first processes of
// hosts, within each rack and then between racks. In the rounds of the last nobody is twice.
func appointments(r *roster, t *plan.Topology, driver func(a, b int) string, how effort) (list []appointment) {
	first := func(q int) kolo.Rank { return slices.Min(r.Members[q].Ranks) }
	hosts, racks := r.hosts(t)
	for _, host := range hosts {
		if q := host[0]; len(r.Members[q].Ranks) > 1 {
			list = append(list, appointment{first(q), first(q)})
		}
	}
	for _, host := range hosts {
		for _, pair := range nearPairs(host[:min(len(host), maxNear)], driver, how.near) {
			list = append(list, appointment{first(pair[0]), first(pair[1])})
		}
	}
	var leads []int // of racks
	for _, rack := range racks {
		leads = append(leads, rack[0])
		list = appendRounds(list, rack, how.far, first)
	}
	return appendRounds(list, leads, how.far, first)
}

// hosts are the processes of each host, and racks the first process of each host by rack.
// Where servers are processes, racks are hosts: see topology.
func (r *roster) hosts(t *plan.Topology) (hosts, racks [][]int) {
	at, rackAt := numbering{}, numbering{}
	for q := range r.Members {
		m := &r.Members[q]
		i := at.of(m.place())
		if i < len(hosts) {
			hosts[i] = append(hosts[i], q)
			continue
		}
		hosts = append(hosts, []int{q})
		rack := m.Host.Rack
		if r.several() {
			rack = ""
		}
		if k := rackAt.of(rack); k < len(racks) {
			racks[k] = append(racks[k], q)
		} else {
			racks = append(racks, []int{q})
		}
	}
	return hosts, racks
}

// nearPairs are up to so many pairs of a host's processes for each driver: the first, the
// last that has a process with it in common, and those between. So pairs are not in each
// other's way, as none begins before the one in front has ended.
func nearPairs(host []int, driver func(a, b int) string, most int) (list [][2]int) {
	by := map[string][][2]int{}
	var names []string
	for j := range host {
		for i := range j {
			name := driver(host[i], host[j])
			pairs := by[name]
			switch {
			case pairs == nil:
				names = append(names, name)
			case host[i] != pairs[0][0]:
				continue
			case len(pairs) == most:
				pairs = pairs[:most-1]
			}
			by[name] = append(pairs, [2]int{host[i], host[j]})
		}
	}
	for _, name := range names {
		list = append(list, by[name]...)
	}
	return list
}

// appendRounds lets each meet so many others, by the circle method: of an even number one
// stays and the others move on by a place each round.
func appendRounds(list []appointment, who []int, most int, first func(q int) kolo.Rank) []appointment {
	n := len(who) + len(who)%2
	meet := func(i, j int) {
		if max(i, j) < len(who) {
			list = append(list, appointment{first(who[min(i, j)]), first(who[max(i, j)])})
		}
	}
	for round := range min(n-1, most) {
		meet(n-1, round)
		for i := 1; i < n/2; i++ {
			meet((round+i)%(n-1), (round-i+n-1)%(n-1))
		}
	}
	return list
}
