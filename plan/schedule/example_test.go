package schedule_test

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/schedule"
)

// A Broadcast of 1,000 bytes to one other rank, as GOAL for LogGOPSim.
func ExampleOf() {
	c := &kolo.Call{Collective: kolo.Broadcast, DType: kolo.Uint8, Count: 1000, InPlace: true}
	t := plan.OneServer(2)
	programs, err := plan.Programs(plan.KeyOf(c, "binomial"), t)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := schedule.Of(programs, c, t.FoldRate())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(s.GOAL()))
	// Output:
	// num_ranks 2
	//
	// rank 0 {
	// l0: send 1000b to 1 tag 0
	// }
	//
	// rank 1 {
	// l0: recv 1000b from 0 tag 0
	// }
}
