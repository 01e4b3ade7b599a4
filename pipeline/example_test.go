package pipeline_test

import (
	"context"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
)

// Two ranks compute a slice in four chunks; each is summed while the next is computed.
func ExampleAllReduce() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		x := make([]float32, 8)
		a, err := pipeline.NewAllReduce(pipeline.Config{Group: w.Group(), Buffer: rank.Of(x), Op: kolo.Sum, Chunks: 4})
		if err != nil {
			return err
		}
		step, err := a.Begin()
		if err != nil {
			return err
		}
		for i := range a.Chunks() {
			for k := a.Chunk(i).From; k < a.Chunk(i).To; k++ {
				x[k] = float32(k) * float32(w.Rank()+1)
			}
			if err := step.Ready(i); err != nil {
				return err
			}
		}
		if _, err := step.Wait(ctx); err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Println(x)
		}
		return a.Close()
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [0 3 6 9 12 15 18 21]
}

// A model of three layers, one of which the step does not use.
func ExampleReducer() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		var params []pipeline.Param
		for _, name := range []string{"embedding", "hidden", "head"} {
			params = append(params, pipeline.Param{Name: name, Gradient: rank.Of(make([]float32, 1000))})
		}
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: params, Op: kolo.Avg})
		if err != nil {
			return err
		}
		step, err := r.Begin()
		if err != nil {
			return err
		}
		for _, i := range []int{2, 0} { // as the backward pass computes them
			if err := step.Ready(i); err != nil {
				return err
			}
		}
		report, err := step.Wait(ctx)
		if err != nil {
			return err
		}
		if w.Rank() == 0 {
			fmt.Printf("no gradient for %q; the order is now %v\n", report.Unused, r.Buckets()[0].Params)
		}
		return r.Close()
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: no gradient for ["hidden"]; the order is now [2 0 1]
}

// With Priority the gradients that the next forward pass uses first are reduced first,
// though they are computed last.
func ExampleReducerStep_Use() {
	err := rank.Run(context.Background(), 2, func(ctx context.Context, w *rank.World) error {
		layers := [][]float32{{1, 1}, {2, 2}, {3, 3}}
		var params []pipeline.Param
		for i, x := range layers {
			params = append(params, pipeline.Param{Name: fmt.Sprint("layer ", i), Gradient: rank.Of(x)})
		}
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: params, Op: kolo.Sum, Priority: true})
		if err != nil {
			return err
		}
		step, err := r.Begin()
		if err != nil {
			return err
		}
		for _, i := range []int{2, 1, 0} { // backward
			if err := step.Ready(i); err != nil {
				return err
			}
		}
		for i := range layers { // forward
			if err := step.Use(ctx, i); err != nil {
				return err
			}
			if w.Rank() == 0 {
				fmt.Println(layers[i])
			}
		}
		if _, err := step.Wait(ctx); err != nil {
			return err
		}
		return r.Close()
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// [2 2]
	// [4 4]
	// [6 6]
}
