//go:build race

package rank

// raceEnabled says that the race detector is on: it allocates, and takes its time.
const raceEnabled = true
