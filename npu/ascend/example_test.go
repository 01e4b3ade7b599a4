package ascend_test

import (
	"fmt"

	"github.com/kolo-ccl/kolo/npu/ascend"
)

// What npu-smi info -t topo prints becomes edges between devices.
func ExampleParseTopo() {
	m, err := ascend.ParseTopo(`
         NPU0       NPU1       NPU2       CPU Affinity
NPU0     X          SIO        HCCS_SW    0-79
NPU1     SIO        X          HCCS_SW    0-79
NPU2     HCCS_SW    HCCS_SW    X          80-159
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range m.Pairs() {
		fmt.Println(m.Devices[p.A], m.Devices[p.B], m.Paths[p.A][p.B], p.Edge.Link)
	}
	// Output:
	// 0 1 SIO hccs
	// 0 2 HCCS_SW hccs
	// 1 2 HCCS_SW hccs
}
