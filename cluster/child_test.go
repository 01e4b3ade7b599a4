package cluster

// child runs what a test wants of a process of its own, and returns the exit code.
func child(string) int { return 2 }
