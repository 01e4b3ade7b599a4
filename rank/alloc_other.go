//go:build !linux

package rank

// hugePages does nothing: there is no way to ask.
func hugePages([]byte) {}
