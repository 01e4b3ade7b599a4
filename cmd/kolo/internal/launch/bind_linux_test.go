package launch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCoresAreThoseThatMayBeUsed(t *testing.T) {
	var set unix.CPUSet
	for _, cpu := range []int{1, 2, 5, 6, 9} {
		set.Set(cpu)
	}
	got := coresOf(&set, func(cpu int) string {
		if cpu == 9 {
			return "" // not known
		}
		return fmt.Sprintf("%d,%d", cpu%4, cpu%4+4)
	})
	require.Equal(t, []core{{1, 5}, {2, 6}, {9}}, got)
}

// Each process begins on its own processors, and the launcher keeps those that it had.
func TestProcessesAreBound(t *testing.T) {
	cores, err := usable()
	require.NoError(t, err)
	n := min(len(cores), 4)
	before := allowedOfAll(t)
	j, r := shell(t, n, `echo $RANK $(grep Cpus_allowed_list /proc/self/status)`)
	j.Bind, j.Prefix = BindCore, ""
	require.NoError(t, j.Run(t.Context()))
	var want []string
	for i := range n {
		if len(cores[i]) > 1 {
			t.Skip("the kernel writes sets of several in ways of its own")
		}
		want = append(want, fmt.Sprintf("%d Cpus_allowed_list: %d\n", i, cores[i][0]))
	}
	require.Equal(t, want, sorted(r.out.String()))
	require.Empty(t, r.log.String())
	require.Equal(t, before, allowedOfAll(t), "no thread of the launcher is bound")
}

// allowedOfAll is what the threads of this process may use, each set once.
func allowedOfAll(t *testing.T) (list []string) {
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, task := range tasks {
		text, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Cpus_allowed_list") && !slices.Contains(list, line) {
				list = append(list, line)
			}
		}
	}
	return list
}

// More processes than cores are not bound, and that is said.
func TestTooManyProcessesAreNotBound(t *testing.T) {
	cores, err := usable()
	require.NoError(t, err)
	if len(cores) > 16 {
		t.Skip("too many cores to start more processes than them")
	}
	j, r := shell(t, len(cores)+1, `echo $(grep Cpus_allowed_list /proc/self/status)`)
	j.Bind, j.Prefix = BindCore, ""
	require.NoError(t, j.Run(t.Context()))
	lines := slices.Compact(sorted(r.out.String()))
	require.Len(t, lines, 1)
	require.Contains(t, r.log.String(), "not bound")
}
