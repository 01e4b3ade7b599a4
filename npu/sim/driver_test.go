package sim_test

import (
	"testing"

	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/nputest"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
)

func TestDriver(t *testing.T) {
	for _, c := range []struct {
		name   string
		fast   bool
		bubble bool
	}{{"in a bubble", false, true}, {"fast", true, false}, {"paced", false, false}, {"fast in a bubble", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			nputest.Kit{Bubble: c.bubble, Open: func(t testing.TB) npu.Driver {
				d, err := sim.New(sim.Config{Servers: 2, Devices: 2, Memory: 1 << 30, Fast: c.fast})
				require.NoError(t, err)
				return d
			}}.Run(t)
		})
	}
}
