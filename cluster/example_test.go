package cluster_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/rank"
)

// Two processes of one rank each, which are goroutines here. Started by kolo run, torchrun or
// srun, a process needs no more than cluster.Config{}.
func ExampleJoin() {
	ctx := context.Background()
	meeting, err := cluster.Serve("127.0.0.1:0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	process := func(r kolo.Rank) (err error) {
		w, err := cluster.Join(ctx, cluster.Config{Rendezvous: meeting.Address(), Size: 2, Ranks: []kolo.Rank{r}})
		if err != nil {
			return err
		}
		defer func() {
			if e := w.Close(ctx); err == nil {
				err = e
			}
		}()
		x := []float64{float64(r) + 1, 10}
		if err := rank.AllReduce(ctx, w.Group(), x, kolo.Sum); err != nil {
			return err
		}
		if r == 0 {
			fmt.Println(x)
		}
		return nil
	}
	var errs [2]error
	var wg sync.WaitGroup
	for r := range errs {
		wg.Go(func() { errs[r] = process(kolo.Rank(r)) })
	}
	wg.Wait()
	fmt.Println(errs, meeting.Close())
	// Output:
	// [3 20]
	// [<nil> <nil>] <nil>
}
