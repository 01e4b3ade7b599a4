package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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

// Processes that are bound to some processors of a host share those of all.
func TestProcessorsOfBoundProcesses(t *testing.T) {
	for name, c := range map[string]struct {
		lists []string // of each process of host a, but for the last, which is of host b
		cores []int
		want  int
	}{
		"all may use all":       {[]string{"0-3", "0-3", "0-7"}, []int{4, 4, 8}, 4},
		"a core each":           {[]string{"0", "1", "0"}, []int{1, 1, 1}, 2},
		"a share each":          {[]string{"0-1,4-5", "2-3,6-7", "0"}, []int{4, 4, 1}, 8},
		"one core for both":     {[]string{"3", "3", "0"}, []int{1, 1, 1}, 1},
		"one does not say":      {[]string{"0", "", "0"}, []int{1, 2, 1}, 2},
		"no list":               {[]string{"0", "x", "0"}, []int{1, 1, 1}, 1},
		"backwards":             {[]string{"0", "5-2", "0"}, []int{1, 1, 1}, 1},
		"too many":              {[]string{"0", "0-4000000000", "0"}, []int{1, 1, 1}, 1},
		"fewer than they count": {[]string{"0", "0", "0"}, []int{1, 4, 1}, 4},
	} {
		r := &roster{Size: len(c.lists)}
		for i, list := range c.lists {
			m := Member{}
			m.Host.Machine, m.Host.Cores, m.Host.Processors = "a", c.cores[i], list
			if i == len(c.lists)-1 {
				m.Host.Machine = "b"
			}
			r.Members = append(r.Members, m)
		}
		require.Equal(t, c.want, r.cores(0), name)
	}
}

func TestThisProcessSaysWhatItMayUse(t *testing.T) {
	h := thisHost("")
	if h.Processors == "" {
		t.Skip("this system does not say")
	}
	var set [maxProcessors]bool
	require.True(t, addProcessors(&set, h.Processors), h.Processors)
}
