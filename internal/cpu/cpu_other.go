//go:build !amd64 && !arm64

package cpu

// CPU is the number of the core that runs the caller where a cheap instruction
// tells it, and 0 on this architecture.
func CPU() int { return 0 }

// Pause does nothing on this architecture.
func Pause(n int) {}

// HasAVX2 is false on this architecture.
func HasAVX2() bool { return false }
