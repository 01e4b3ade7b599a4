//go:build !purego

package kernel

// hasStreams says whether stream may be called.
var hasStreams = hasVectors

// stream copies n bytes, a multiple of 64 and not 0, to dst, which is aligned to 64 bytes, by
// non-temporal stores. They are ordered before all stores that follow.
//
//go:noescape
func stream(dst, src *byte, n int)
