package npu_test

import (
	"context"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	_ "github.com/kolo-ccl/kolo/npu/sim" // its name is sim
)

// A device doubles a vector of the host's: what is asked of a stream is done in order, and
// the host waits once.
func Example() {
	ctx := context.Background()
	driver, err := npu.Open("sim", npu.Config{Options: "devices=1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close(ctx)
	device, err := driver.Open(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, _ := device.NewStream(npu.StreamConfig{Name: "compute"})
	memory, _ := device.Alloc(4)
	host := kolo.HostMemory([]byte{1, 2, 3, 4})
	stream.Copy(memory, host)
	stream.Reduce(memory, memory, kolo.Uint8, kolo.Sum)
	stream.Copy(host, memory)
	fmt.Println(stream.Sync(ctx), host.Host)
	// Output: <nil> [2 4 6 8]
}
