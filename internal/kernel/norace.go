//go:build !race

package kernel

// racing says that this is a build for the race detector.
const racing = false

// announce does nothing without the race detector.
func announce(dsts, srcs [][]byte, from, to int) {}
