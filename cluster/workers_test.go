package cluster

import "testing"

func TestProcessesOfAHostShareItsProcessors(t *testing.T) {
	for name, c := range map[string]struct {
		hosts []string // of each process
		cores int
		procs int
		want  int // of process 0
	}{
		"alone":                 {[]string{"a"}, 8, 8, 8},
		"one on each host":      {[]string{"a", "b"}, 8, 8, 8},
		"two on a host of two":  {[]string{"a", "a"}, 2, 2, 1},
		"two on a host of four": {[]string{"a", "a", "b"}, 4, 4, 2},
		"more than processors":  {[]string{"a", "a", "a", "a"}, 2, 2, 1},
		"of unknown processors": {[]string{"a", "a"}, 0, 4, 2},
		"each with a limit":     {[]string{"a", "a"}, 64, 8, 8},
	} {
		r := &roster{Size: len(c.hosts)}
		for _, h := range c.hosts {
			m := Member{}
			m.Host.Machine, m.Host.Cores = h, c.cores
			r.Members = append(r.Members, m)
		}
		if got := r.workers(0, c.procs); got != c.want {
			t.Errorf("%s: %d workers, want %d", name, got, c.want)
		}
	}
}
