package faulty_test

import (
	"fmt"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/channel/hccs"
)

// A driver that loses the first message from rank 0 to rank 1, and one in ten of
// all the others.
func ExampleNew() {
	engine := hccs.NewEngine(1)
	defer engine.Close()
	inner, err := hccs.New(channel.Config{Job: "example", Engine: engine})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := faulty.New(inner, `
		lose 0 -> 1 send 0   # they count from 0
		lose * -> * 10%
	`, 42)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(d.Script())

	_, err = faulty.New(inner, "loose 0 -> 1", 42)
	fmt.Println(err)
	// Output:
	// lose 0 -> 1 send 0
	// lose * -> * 10%
	// bad argument: script line 1: "loose": want lose, delay or cut
}
