// Package channeltest is the test that every channel driver must pass. A driver's
// own test is five lines:
//
//	func TestDriver(t *testing.T) {
//		channeltest.Run(t, func(t testing.TB, c channel.Config) channel.Driver {
//			d, err := mydriver.New(c)
//			require.NoError(t, err)
//			return d
//		})
//	}
//
// The ranks of the test are actors of one system, each on a shard of its own, and
// use the driver through channel.Spawn as package rank does. Every check ends with
// the questions that hold for all: has each op completed exactly once, on its
// rank's shard, and has every goroutine of the driver ended.
package channeltest
