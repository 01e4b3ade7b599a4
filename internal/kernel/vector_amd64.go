//go:build !purego

package kernel

import "github.com/kolo-ccl/kolo/internal/cpu"

// grain divides the number of bytes that the kernels take: a lane of 4 bytes is the
// least that a masked instruction reads or writes.
const grain = 4

var hasVectors = cpu.HasAVX2()
