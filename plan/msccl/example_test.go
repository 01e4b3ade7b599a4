package msccl_test

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/msccl"
)

// A ring is written as MSCCL's XML, and read back and proven. A step that says otherwise is
// found, and named.
func Example() {
	key := plan.Key{Algorithm: "ring", Collective: kolo.AllGather}
	programs, err := plan.Programs(key, plan.OneServer(3))
	if err != nil {
		fmt.Println(err)
		return
	}
	file, err := msccl.Export(key, programs)
	if err != nil {
		fmt.Println(err)
		return
	}
	text := string(file.XML())
	p, err := msccl.Import([]byte(text))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Name, p.Collective, len(p.Programs), "ranks,", p.Report.Messages, "messages")
	_, err = msccl.Import([]byte(strings.Replace(text, `srcoff="0"`, `srcoff="7"`, 1)))
	fmt.Println(err)
	// Output:
	// ring AllGather 3 ranks, 6 messages
	// msccl: gpu 0, tb 0, step 0 (s): bad argument: chunks 7 to 7 of in, which has 1
}
