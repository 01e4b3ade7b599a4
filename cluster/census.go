package cluster

// census counts the processes of a world by what they have and by where they are.
type census struct {
	r        *roster
	profiles []profile
	of       []int   // the profile of each process
	list     [][]int // the processes of each profile, ascending
	machine  map[string][][]int
	network  map[[2]string][][]int // the same of network namespaces
}

func (m *channelMap) census(r *roster) *census {
	c := &census{r: r, machine: map[string][][]int{}, network: map[[2]string][][]int{}}
	known := map[profile]int{}
	for q := range r.Members {
		x := m.profile(r, q)
		i, ok := known[x]
		if !ok {
			i = len(c.profiles)
			known[x], c.profiles = i, append(c.profiles, x)
		}
		c.of = append(c.of, i)
	}
	c.list = make([][]int, len(c.profiles))
	for q, i := range c.of {
		h := &r.Members[q].Host
		at := [2]string{h.Machine, h.Network}
		if c.machine[h.Machine] == nil {
			c.machine[h.Machine] = make([][]int, len(c.profiles))
		}
		if c.network[at] == nil {
			c.network[at] = make([][]int, len(c.profiles))
		}
		for _, lists := range [][][]int{c.list, c.machine[h.Machine], c.network[at]} {
			lists[i] = append(lists[i], q)
		}
	}
	return c
}

// pairs is how many pairs there are of two profiles, or of one, in a place.
func pairs(lists [][]int, i, j int) int {
	if i == j {
		return len(lists[i]) * (len(lists[i]) - 1) / 2
	}
	return len(lists[i]) * len(lists[j])
}

// count is how many pairs of two profiles are so near.
func (c *census) count(i, j int, at nearness) int {
	all, machine, network := pairs(c.list, i, j), 0, 0
	for _, lists := range c.machine {
		machine += pairs(lists, i, j)
	}
	for _, lists := range c.network {
		network += pairs(lists, i, j)
	}
	switch at {
	case near:
		return network
	case aside:
		return machine - network
	}
	return all - machine
}

// around are the processes of a profile among which those are that are so near to a process, and how
// many of them are not: those that are nearer, itself among them.
func (c *census) around(q, profile int, at nearness) (list []int, nearer int) {
	h := &c.r.Members[q].Host
	machine, network := c.machine[h.Machine][profile], c.network[[2]string{h.Machine, h.Network}][profile]
	switch at {
	case near:
		if c.of[q] == profile {
			nearer = 1
		}
		return network, nearer
	case aside:
		return machine, len(network)
	}
	return c.list[profile], len(machine)
}

// first lists pairs of two profiles that are so near, of which the first maxNotes are all among
// those that it lists.
func (c *census) first(i, j int, at nearness) (found [][2]int) {
	for _, high := range [][2]int{{i, j}, {j, i}} { // the profile of the higher number, and of the lower
		n := 0
		for _, a := range c.list[high[0]] {
			list, _ := c.around(a, high[1], at)
			for _, b := range list {
				if b >= a || n == maxNotes {
					break
				}
				if nearnessOf(&c.r.Members[a].Host, &c.r.Members[b].Host) == at {
					found = append(found, [2]int{b, a})
					n++
				}
			}
			if n == maxNotes {
				break
			}
		}
	}
	return found
}

// members adds the processes of a profile that have one of another so near.
func (c *census) members(profile, other int, at nearness, to map[int]bool) {
	for _, q := range c.list[profile] {
		if list, nearer := c.around(q, other, at); len(list) > nearer {
			to[q] = true
		}
	}
}
