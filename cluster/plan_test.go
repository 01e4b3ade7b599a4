package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// tuneAndUse makes a table with the other processes, tells of it, and makes calls in a
// world that has it.
func tuneAndUse(ctx context.Context, p *Process) error {
	w := p.Worlds()[0]
	tuned, err := rank.Tune(ctx, w.Group(), rank.TuneConfig{Collectives: []kolo.Collective{kolo.AllReduce, kolo.AllGather},
		Sizes: []int64{64, 40000}, Contest: plan.ContestConfig{Rounds: 2, Fringe: 1.5}})
	if err != nil {
		return err
	}
	fmt.Printf("TABLE %d rules, digest %x: %v\n", len(tuned.Tuning.Rules), tuned.Tuning.Digest(), tuned.Tuning.Rules)
	next, err := Open(ctx, Config{After: p.Epoch(), Timeout: patience, Transport: os.Getenv("KOLO_TEST_TRANSPORT"),
		Rank: rank.Config{Timeout: patience, Tuning: tuned.Tuning}})
	if err != nil {
		return err
	}
	v := next.Worlds()[0]
	for _, count := range []int{16, 10000} {
		ch, err := v.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: int64(count)})
		if err != nil {
			return err
		}
		fmt.Printf("CHOICE-%d %v\n", count, ch)
		if err := allReduce(ctx, v.Group(), allRanks(v.Size()), count); err != nil {
			return err
		}
	}
	return v.Close(ctx)
}

// Processes that tune together have one table, and a world with it chooses by it.
func TestTuneBetweenProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			list := spawn(t, "tune", 3, "KOLO_TEST_TRANSPORT="+transport)
			for _, word := range []string{"TABLE", "CHOICE-16", "CHOICE-10000"} {
				first := list[0].wait(t, word, patience)
				t.Log(word, first)
				for _, o := range list[1:] {
					require.Equal(t, first, o.wait(t, word, patience))
				}
				if word != "TABLE" {
					require.Contains(t, first, "tuning rule")
				}
			}
			for _, o := range list {
				o.wait(t, "DONE", patience)
			}
		})
	}
}

// Processes whose tables differ are told so at the first call that meets, also if the rule
// for that call is the same.
func TestTablesThatDifferBetweenProcesses(t *testing.T) {
	rules := []plan.Rule{{Collective: kolo.AllReduce, Algorithm: "ring"}, {Collective: kolo.AllGather, Algorithm: "nhr"}}
	for name, other := range map[string][]plan.Rule{"none": nil, "another for AllGather": {rules[0], {Collective: kolo.AllGather, Algorithm: "ring"}}} {
		t.Run(name, func(t *testing.T) {
			at := standing(t)
			list := make([]*Process, 2)
			errs := make(chan error, 2)
			for i, table := range [][]plan.Rule{rules, other} {
				go func() { // ends with the join
					var err error
					list[i], err = Open(t.Context(), Config{Rendezvous: at, Size: 2, Ranks: []kolo.Rank{kolo.Rank(i)}, Timeout: patience,
						Getenv: noEnv, Transport: "tcp", Rank: rank.Config{Timeout: patience, Tuning: &plan.Tuning{Rules: table}}})
					errs <- err
				}()
			}
			require.NoError(t, <-errs)
			require.NoError(t, <-errs)
			worlds := worldsOf(list)
			for _, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 100) }) {
				require.ErrorIs(t, err, kolo.ErrMismatch)
			}
			closeAll(t, worlds)
		})
	}
}

// Between processes the model chooses, since all must choose alike, and Explain says so. A
// group within one of them is timed.
func TestTimedBetweenProcesses(t *testing.T) {
	worlds := worldsOf(together(t, Config{Transport: "tcp", Rank: rank.Config{Timeout: patience, Choice: plan.Timed, Contest: plan.ContestConfig{Within: 1000}}}, 1, 2))
	for _, err := range each(worlds, func(w *rank.World) error {
		for range 50 {
			if err := allReduce(t.Context(), w.Group(), allRanks(3), 1000); err != nil {
				return err
			}
		}
		ch, err := w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: 1000})
		require.Contains(t, ch.Why, "not timed, as the group spans processes")
		if err != nil || w.Rank() == 0 {
			return err
		}
		here, err := w.NewGroup(rank.GroupConfig{Name: "here", Ranks: []kolo.Rank{1, 2}})
		if err != nil {
			return err
		}
		for range 200 {
			if err := allReduce(t.Context(), here, allRanks(3)[1:], 1000); err != nil {
				return err
			}
		}
		ch, err = here.Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: 1000})
		require.Contains(t, ch.Why, "timed: median", ch.Explain())
		return err
	}) {
		require.NoError(t, err)
	}
	closeAll(t, worlds)
}

// Plans from outside run between processes, also where some ranks call in place and the
// others do not, which no process knows of another.
func TestPlansFromOutsideBetweenProcesses(t *testing.T) {
	lib, err := rank.ReadPlans(os.DirFS("../plan/msccl/testdata"))
	require.NoError(t, err)
	for _, transport := range []string{"shm", "tcp"} {
		for _, e := range lib.Entries() {
			t.Run(transport+"/"+e.Name, func(t *testing.T) {
				own := *e
				own.MinBytes, own.MaxBytes = 0, 0
				own.InPlace, own.OutOfPlace = true, true
				one := &plan.Library{}
				require.NoError(t, one.Add(&own))
				sizes := []int{1, e.Ranks - 1}
				worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience, Plans: one}}, sizes...))
				for turn := range 4 {
					for r, err := range each(worlds, func(w *rank.World) error { return callPlan(t, w, e, turn) }) {
						require.NoError(t, err, "turn %d, rank %d", turn, r)
					}
				}
				closeAll(t, worlds)
			})
		}
	}
}

// callPlan makes a call of an entry: out of place, in place, or on odd or on even ranks only.
func callPlan(t *testing.T, w *rank.World, e *plan.Entry, turn int) error {
	const count = 1001
	n, me := e.Ranks, int(w.Rank())
	inPlace := turn == 1 || turn >= 2 && me%2 == turn-2
	c := e.Key.Collective
	ins := count
	if c == kolo.ReduceScatter || c == kolo.AllToAll {
		ins *= n
	}
	outs := count
	if c == kolo.AllGather || c == kolo.AllToAll {
		outs *= n
	}
	in, out := data(w.Rank(), ins), make([]int32, outs)
	switch {
	case !inPlace:
	case c == kolo.AllGather:
		copy(out[me*count:], in)
		in = out[me*count:][:count]
	case c == kolo.ReduceScatter:
		out = in[me*count:][:count]
	default:
		out = in
	}
	ch, err := w.Group().Explain(kolo.Call{Collective: c, DType: kolo.Int32, Op: kolo.Sum, Count: count, InPlace: inPlace})
	if err != nil || ch.Algorithm != e.Name {
		return fmt.Errorf("the choice is %v (%w)", ch, err)
	}
	if err := rank.Do(t.Context(), w.Group(), rank.Request{Collective: c, In: rank.Of(in), Out: rank.Of(out), Op: kolo.Sum}); err != nil {
		return err
	}
	all := make([][]int32, n)
	for r := range all {
		all[r] = data(kolo.Rank(r), ins)
	}
	want := make([]int32, 0, outs)
	for i := range outs {
		var x int32
		switch c {
		case kolo.AllGather:
			x = all[i/count][i%count]
		case kolo.AllToAll:
			x = all[i/count][me*count+i%count]
		default:
			at := i
			if c == kolo.ReduceScatter {
				at += me * count
			}
			for r := range all {
				x += all[r][at]
			}
		}
		want = append(want, x)
	}
	if !slices.Equal(want, out) {
		t.Errorf("%s, turn %d: wrong on rank %d", e.Name, turn, me)
	}
	return nil
}
