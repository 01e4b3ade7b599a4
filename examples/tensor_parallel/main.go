// Command tensor_parallel lays 16 ranks out as 2 servers of 8: the 8 ranks of a
// server share the layers of a model (tensor parallel, by ring), and each of them
// shares its gradients with its twin on the other server (data parallel, by tree).
// The two kinds of group work at the same time and do not wait for each other.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	servers    = 2
	perServer  = 8
	activation = 4096
	gradient   = 1 << 18
	steps      = 20
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("tensor_parallel", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	topology, err := plan.Servers(perServer, perServer)
	if err != nil {
		return err
	}
	cfg := rank.Config{Topology: topology}
	return cfg.Run(ctx, servers*perServer, func(ctx context.Context, w *rank.World) error {
		tp, dp, err := groups(w)
		if err != nil {
			return err
		}
		if err := train(ctx, tp, dp); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Fprintf(out, "group %q: ranks 0 to 7, rank %d here, ring, %d AllReduces of %d activations\n", tp.Name(), tp.Rank(), steps, activation)
			fmt.Fprintf(out, "group %q: ranks 0 and 8, rank %d here, tree, %d AllReduces of %d gradients at the same time\n", dp.Name(), dp.Rank(), steps, gradient)
			fmt.Fprintln(out, "all sums right")
		}
		return nil
	})
}

// groups makes this rank's two groups. Only the members of a group make it.
func groups(w *rank.World) (tp, dp *rank.Group, err error) {
	server, place := int(w.Rank())/perServer, int(w.Rank())%perServer
	var mates, twins []kolo.Rank
	for i := range perServer {
		mates = append(mates, kolo.Rank(server*perServer+i))
	}
	for s := range servers {
		twins = append(twins, kolo.Rank(s*perServer+place))
	}
	tp, err = w.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("tp%d", server), Ranks: mates, Algorithm: "ring", Priority: 1})
	if err != nil {
		return nil, nil, err
	}
	dp, err = w.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("dp%d", place), Ranks: twins, Algorithm: "tree"})
	return tp, dp, err
}

// train does some steps: the gradients of the last step travel between the servers
// while the activations of this one are summed within them.
func train(ctx context.Context, tp, dp *rank.Group) error {
	acts, grads := make([]float32, activation), make([]float32, gradient)
	for step := range steps {
		for i := range grads {
			grads[i] = float32(int(dp.Rank())+1) * float32(i%100+step)
		}
		shared := rank.AllReduceAsync(dp, grads, kolo.Sum)
		for i := range acts {
			acts[i] = float32(int(tp.Rank())+1) * float32(i%50+step)
		}
		if err := rank.AllReduce(ctx, tp, acts, kolo.Sum); err != nil {
			return err
		}
		if err := shared.Wait(ctx); err != nil {
			return err
		}
		for i, got := range acts {
			if want := float32(perServer*(perServer+1)/2) * float32(i%50+step); got != want {
				return fmt.Errorf("step %d, activation %d: %v, want %v", step, i, got, want)
			}
		}
		for i, got := range grads {
			if want := float32(servers*(servers+1)/2) * float32(i%100+step); got != want {
				return fmt.Errorf("step %d, gradient %d: %v, want %v", step, i, got, want)
			}
		}
	}
	return nil
}
