//go:build !amd64 || purego

package kernel

// hasStreams is false: there are no such stores for this architecture.
const hasStreams = false

func stream(dst, src *byte, n int) { panic("kernel: no streaming stores") }
