package plan_test

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Two servers of four ranks each, as they were measured, and a call.
func ExampleChoose() {
	t, err := plan.Servers(4, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t)
	call := &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: 1 << 20}
	choice, err := plan.Choose(call, t, plan.Policy{Algorithm: "ring"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(choice)
	_, err = plan.Choose(call, t, plan.Policy{HCCLAlgo: "level0:NA;level1:waltz"})
	fmt.Println(err != nil)
	// Output:
	// 8 ranks in 2 servers of 4: in a server hccs 300ns 10 GB/s; between servers tcp 30µs 1.2 GB/s; reduce 8 GB/s
	// ring for AllReduce of 4 MiB by 8 ranks in 2 servers of 4: forced for all collectives
	// true
}
