package survey_test

import (
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan/survey"
)

// What is measured is compared with what was expected, here from a file: one link has
// become slow.
func ExampleSurvey_Diff() {
	expected, err := survey.Parse([]byte(`{"kolo_topology": 1,
	 "ranks": [{"rank": 0, "process": 0, "host": "a"}, {"rank": 1, "process": 1, "host": "b"}],
	 "links": [{"from": 0, "to": 1, "link": "roce", "latency_ns": 5000, "bandwidth": 25000000000},
	           {"from": 1, "to": 0, "link": "roce", "latency_ns": 5000, "bandwidth": 25000000000}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	measured := &survey.Survey{Places: expected.Places, Ways: append([]survey.Way(nil), expected.Ways...)}
	measured.Ways[1].Edge = kolo.Edge{Link: kolo.LinkRoCE, Latency: 6 * time.Microsecond, Bandwidth: 12e9}
	for _, f := range measured.Diff(expected, survey.Tolerance{}) {
		fmt.Println(f.Kind, f.Ranks, f.What)
	}
	// Output:
	// slow [rank 1 rank 0] roce from rank 1 to rank 0 gives 12 GB/s, 48 % of the 25 GB/s expected
}
