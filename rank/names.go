package rank

// names counts how often groups of a name were made. It holds the latest maxNames of them: a
// program that gives each group a name of its own does not grow by it. One that takes a name
// again after so many others have come would make a group that the ranks number differently,
// and which ends at its deadline.
type names struct {
	count map[string]nameCount
	order []nameUse // oldest first; entries of names that were used again since are stale
	uses  int
}

type nameCount struct{ n, use int }

type nameUse struct {
	name string
	use  int
}

// maxNames is how many names of groups a rank remembers.
const maxNames = 1 << 14

// get is how often a name was made.
func (s *names) get(name string) int { return s.count[name].n }

// set takes note that it was made so often.
func (s *names) set(name string, n int) {
	if s.count == nil {
		s.count = map[string]nameCount{}
	}
	s.uses++
	s.count[name] = nameCount{n, s.uses}
	s.order = append(s.order, nameUse{name, s.uses})
	for len(s.order) > 2*maxNames || len(s.count) > maxNames {
		u := s.order[0]
		s.order = s.order[1:]
		if c := s.count[u.name]; c.use != u.use {
			continue
		}
		if len(s.count) > maxNames {
			delete(s.count, u.name)
		} else {
			s.order = append(s.order, u) // it is old and stays: few names are used often
		}
	}
}
