// Package nputest is the test that every device driver must pass. A driver's own
// test is five lines:
//
//	func TestDriver(t *testing.T) {
//		nputest.Run(t, func(t testing.TB) npu.Driver {
//			d, err := mydriver.New()
//			require.NoError(t, err)
//			return d
//		})
//	}
//
// Where hardware is missing, open skips and says why. A driver whose devices say that
// they are simulated is also asked for the exact times of its Edges, and with
// Kit.Bubble all checks run in a synctest bubble, where a stream that hangs fails at
// once. Every check ends with the questions that hold for all: has each callback
// been called exactly once, and has every goroutine of the driver ended.
package nputest
