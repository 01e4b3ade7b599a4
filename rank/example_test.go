package rank_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Four ranks add up their vectors.
func ExampleRun() {
	err := rank.Run(context.Background(), 4, func(ctx context.Context, w *rank.World) error {
		grads := []float32{1, float32(w.Rank())}
		if err := rank.AllReduce(ctx, w.Group(), grads, kolo.Sum); err != nil {
			return err
		}
		if w.Rank() == 3 {
			fmt.Println(grads)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 6]
	// <nil>
}

// A World with an algorithm of its own, and a tenth of a second for a call. A rank that
// does not come is named.
func ExampleConfig_Run() {
	cfg := rank.Config{Algorithm: "ring", Timeout: time.Second / 10}
	seen := make(chan struct{})
	err := cfg.Run(context.Background(), 3, func(ctx context.Context, w *rank.World) error {
		if w.Rank() == 2 {
			<-seen // is busy elsewhere
			return nil
		}
		err := rank.Barrier(ctx, w.Group())
		var e *kolo.Error
		if errors.As(err, &e) && w.Rank() == 0 {
			fmt.Println(errors.Is(err, kolo.ErrDeadline), e.Op, e.Ranks)
			close(seen)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// true Barrier [rank 2]
	// <nil>
}

// A health check looks twice at what a rank does: a call that has not moved in between says
// whom it waits for, long before its deadline.
func ExampleWorld_Progress() {
	seen := make(chan struct{})
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		if w.Rank() == 1 {
			w.Busy("loading a checkpoint")
			<-seen
		}
		work := rank.AllReduceAsync(w.Group(), make([]float32, 1000), kolo.Sum)
		if w.Rank() == 0 {
			before, _ := w.Progress(ctx) // an error names an actor that does not answer
			<-time.After(time.Second / 100)
			now, _ := w.Progress(ctx)
			for _, p := range rank.Stuck(before, now) {
				fmt.Println(p.Call.Collective, p.Phase, p.Waits[0].For, p.Waits[0].Peers)
			}
			close(seen)
		}
		return work.Wait(ctx)
	})
	fmt.Println(err)
	// Output:
	// AllReduce gathering call [rank 1]
	// <nil>
}

// Two groups of four ranks: pairs that share a tensor, and their counterparts.
func ExampleWorld_NewGroup() {
	err := rank.Run(context.Background(), 4, func(ctx context.Context, w *rank.World) error {
		r := w.Rank()
		tensor, err := w.NewGroup(rank.GroupConfig{Name: "tensor", Ranks: []kolo.Rank{r &^ 1, r | 1}})
		if err != nil {
			return err
		}
		data, err := w.NewGroup(rank.GroupConfig{Name: "data", Ranks: []kolo.Rank{r & 1, r&1 + 2}})
		if err != nil {
			return err
		}
		a, b := []int{int(r)}, []int{int(r)}
		if err := rank.AllReduce(ctx, tensor, a, kolo.Sum); err != nil {
			return err
		}
		if err := rank.AllReduce(ctx, data, b, kolo.Sum); err != nil {
			return err
		}
		if r == 3 {
			fmt.Println("2+3 =", a[0], "and 1+3 =", b[0])
			fmt.Println("world rank 3 is", tensor.RankOf(3), "of", tensor.Name())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 2+3 = 5 and 1+3 = 4
	// world rank 3 is rank 1 of tensor
	// <nil>
}

// An asynchronous call: other work is done while it runs.
func ExampleAllReduceAsync() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		buf := []int64{1, 2, 3}
		work := rank.AllReduceAsync(w.Group(), buf, kolo.Max)
		// buf belongs to the runtime here
		if err := work.Wait(ctx); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Println(buf)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 2 3]
	// <nil>
}

// Ranks give different numbers of elements.
func ExampleAllGatherV() {
	err := rank.Run(context.Background(), 3, func(ctx context.Context, w *rank.World) error {
		counts := rank.Vector{Counts: []int64{1, 0, 2}}
		mine := [][]byte{[]byte("k"), nil, []byte("lo")}[w.Rank()]
		all := make([]byte, 3)
		if err := rank.AllGatherV(ctx, w.Group(), all, mine, counts); err != nil {
			return err
		}
		if w.Rank() == 1 {
			fmt.Printf("%s\n", all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// klo
	// <nil>
}

// Both ranks send first. Blocking sends would wait for each other.
func ExampleBatch() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		me, peer := w.Rank(), 1-w.Rank()
		got := make([]int32, 1)
		err := rank.Batch(ctx, w.Group(), []rank.Request{
			{Collective: kolo.Send, In: rank.Of([]int32{int32(me) + 10}), Peer: peer},
			{Collective: kolo.Recv, Out: rank.Of(got), Peer: peer},
		})
		if me == 0 {
			fmt.Println(got)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [11]
	// <nil>
}

// Float16 has no Go type: a Request takes its bits.
func ExampleDo() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		b := rank.Float16s([]uint16{0x3c00, 0x4000}) // 1 and 2
		err := rank.Do(ctx, w.Group(), rank.Request{Collective: kolo.AllReduce, In: b, Out: b, Op: kolo.Sum})
		if w.Rank() == 0 {
			fmt.Printf("%x\n", b.Memory.Host)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// 00400044
	// <nil>
}

// Different calls are an error on every rank, before any output changes.
func ExampleDo_mismatch() {
	err := rank.Run(context.Background(), 3, func(ctx context.Context, w *rank.World) error {
		n := 4
		if w.Rank() == 1 {
			n = 3
		}
		err := rank.AllReduce(ctx, w.Group(), make([]float32, n), kolo.Sum)
		var e *kolo.Error
		if errors.As(err, &e) && w.Rank() == 0 {
			fmt.Println(e.Ranks, errors.Is(err, kolo.ErrMismatch))
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [rank 1] true
	// <nil>
}

// Several tensors are one call.
func ExampleAllReduceTensors() {
	err := rank.Run(context.Background(), 4, func(ctx context.Context, w *rank.World) error {
		weights, bias := []float32{1, 2, 3}, []float32{10}
		err := rank.AllReduceTensors(ctx, w.Group(), [][]float32{weights, bias}, kolo.Sum)
		if w.Rank() == 0 {
			fmt.Println(weights, bias, w.Group().Calls())
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [4 8 12] [40] 1
}
