package plan_test

import (
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// What an algorithm does is proven for all counts and all timings at once, and
// estimated for one count on one topology.
func ExampleVerify() {
	topo := plan.OneServer(4)
	topo.Levels[0] = kolo.Edge{Link: kolo.LinkHCCS, Latency: 2 * time.Microsecond, Bandwidth: 20e9}
	topo.Reduce = 50e9
	call := &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: 1 << 20}
	key := plan.KeyOf(call, "ring")
	programs, err := plan.Programs(key, topo)
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := plan.Verify(key, programs)
	fmt.Printf("%d steps, %d messages, %d credits: %v\n", report.Steps, report.Messages, report.Credits, err)

	line, err := plan.Simulate(programs, topo, call)
	fmt.Println(line.Total, line.Levels[0], err)
	leg := line.Critical[0]
	fmt.Printf("%v: %s, until %v\n", leg.Rank, programs[leg.Rank].Describe(leg.Step), leg.End)

	broken := *programs[2]
	broken.Steps = broken.Steps[:11] // without the last
	programs[2] = &broken
	_, err = plan.Verify(key, programs)
	fmt.Println(err)
	// Output:
	// 48 steps, 24 messages, 0 credits: <nil>
	// 389.487µs {24 25165824} <nil>
	// rank 2: send in[1] to rank 3, until 54.429µs
	// plan: match: rank 1, step 10 (send out[3] to rank 2): it has no partner: rank 1 sends 6 messages to rank 2 on lane 0, which takes 5
}
