package cpu

// maxPause is the most YIELD instructions of one call of Pause.
const maxPause = 1000

// CPU is the number of the core that runs the caller where a cheap instruction
// tells it, and 0 on arm64, where none does.
func CPU() int { return 0 }

// Pause tells the core n times that this is a loop that waits. It is not a
// scheduling point; n is cut to 1000.
func Pause(n int) {
	if n > 0 {
		pause(min(n, maxPause))
	}
}

// HasAVX2 is false on arm64.
func HasAVX2() bool { return false }

func pause(n int)
