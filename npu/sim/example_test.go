package sim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
)

// Two devices: one computes on its first stream and sends the result to the other on
// its second, which waits for an event. The clock of a fast cluster jumps.
func Example() {
	ctx := context.Background()
	c, err := sim.New(sim.Config{Devices: 2, Launch: -1, Fast: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close(ctx)
	d0, _ := c.Open(0)
	d1, _ := c.Open(1)
	compute, _ := d0.NewStream(npu.StreamConfig{Name: "compute"})
	send, _ := d0.NewStream(npu.StreamConfig{Name: "send"})
	ready, _ := d0.NewEvent("gradients ready")
	start, _ := d0.NewNotify("start")
	grads, _ := d0.Alloc(56_000_000)
	there, _ := d1.Alloc(56_000_000)

	compute.Await(start) // so that all is asked for before anything begins
	compute.Launch(npu.Kernel{Name: "backward", Time: time.Millisecond, Args: []kolo.Memory{grads},
		Host: func(args [][]byte) error { args[0][0] = 42; return nil }})
	compute.Record(ready)
	send.Wait(ready)
	send.Copy(there, grads)
	start.Set()

	first := make([]byte, 1)
	send.Copy(kolo.HostMemory(first), grads.Slice(0, 1))
	if err := send.Sync(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("first byte:", first[0])
	spans, _ := c.Timeline()
	for _, s := range spans {
		fmt.Printf("%-12s %-8s %v to %v\n", s.Lane, s.Name, s.Begin, s.End)
	}
	// Output:
	// first byte: 42
	// npu0/compute backward 0s to 1ms
	// hccs 0>1     copy     1ms to 2ms
	// pcie 0 out   copy     2.002ms to 2.002001ms
}
