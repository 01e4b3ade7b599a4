//go:build !purego

package kernel

// grain divides the number of bytes that the kernels take: whole vectors.
const grain = 16

// hasVectors is true: every arm64 processor has what the kernels use.
const hasVectors = true
