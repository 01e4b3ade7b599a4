package plan

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// TestMachineRespectsDependenciesAndOrder drives the Programs of several algorithms
// in random order and checks each begin against the Program itself.
func TestMachineRespectsDependenciesAndOrder(t *testing.T) {
	for _, name := range []string{"ring", "nhr", "mesh", "tree", "double-tree", "halving-doubling"} {
		for _, n := range []int{2, 5, 16} {
			c, _, err := Compile(Key{Algorithm: name, Collective: kolo.AllReduce}, OneServer(n), 1)
			require.NoError(t, err)
			for seed := range uint64(5) {
				drive(t, c, rand.New(rand.NewPCG(seed, 7)))
			}
		}
	}
}

func drive(t *testing.T, c Compiled, rng *rand.Rand) {
	var m Machine
	m.Reset(c.Program, c.Successors)
	begun, ended := make([]bool, len(c.Steps)), make([]bool, len(c.Steps))
	var open []int
	for !m.Ended() {
		for {
			i, ok := m.Next()
			if !ok {
				break
			}
			require.False(t, begun[i])
			begun[i] = true
			open = append(open, i)
			for _, a := range c.Steps[i].After {
				require.True(t, ended[a], "%s: step %d began before step %d had ended", c.Algorithm, i, a)
			}
			checkConnection(t, c, i, begun, ended)
			if rng.IntN(3) == 0 {
				break
			}
		}
		require.NotEmpty(t, open, "%s: stuck", c.Algorithm)
		k := rng.IntN(len(open))
		ended[open[k]] = true
		m.Done(open[k])
		open = slices.Delete(open, k, k+1)
	}
	done, all := m.Progress()
	require.Equal(t, len(c.Steps), done)
	require.Equal(t, len(c.Steps), all)
}

// checkConnection checks that the earlier steps of i's connections have begun, and
// that no more than window of them run.
func checkConnection(t *testing.T, c Compiled, i int, begun, ended []bool) {
	st := &c.Steps[i]
	for _, q := range st.Peers {
		running := 0
		for k := range c.Steps {
			o := &c.Steps[k]
			if o.Lane != st.Lane || (o.Op == Send) != (st.Op == Send) || !slices.Contains(o.Peers, q) {
				continue
			}
			if k < i {
				require.True(t, begun[k], "%s: step %d overtook step %d", c.Algorithm, i, k)
			}
			if begun[k] && !ended[k] {
				running++
			}
		}
		require.LessOrEqual(t, running, window)
	}
}

func TestMachineResetDoesNotAllocate(t *testing.T) {
	c, _, err := Compile(Key{Algorithm: "ring", Collective: kolo.AllReduce}, OneServer(8), 0)
	require.NoError(t, err)
	var m Machine
	run := func() {
		m.Reset(c.Program, c.Successors)
		for !m.Ended() {
			i, ok := m.Next()
			if ok {
				m.Done(i)
			}
		}
	}
	run()
	require.Zero(t, testing.AllocsPerRun(100, run))
}

func TestMachinePanicsOnAStepThatDoesNotRun(t *testing.T) {
	c, _, err := Compile(Key{Algorithm: "ring", Collective: kolo.AllReduce}, OneServer(3), 0)
	require.NoError(t, err)
	var m Machine
	m.Reset(c.Program, c.Successors)
	require.PanicsWithValue(t, "plan: step 0 ended but is not running", func() { m.Done(0) })
}

// BenchmarkMachineStep is the cost of a step in the Machine alone.
func BenchmarkMachineStep(b *testing.B) {
	c, _, err := Compile(Key{Algorithm: "ring", Collective: kolo.AllReduce}, OneServer(8), 0)
	require.NoError(b, err)
	var m Machine
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(c.Steps) {
		m.Reset(c.Program, c.Successors)
		for !m.Ended() {
			if i, ok := m.Next(); ok {
				m.Done(i)
			}
		}
	}
}
