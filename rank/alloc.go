package rank

// Alloc makes a slice of n zeros for use as a buffer: memory of the Go heap like that
// of make, which the system is asked to hold in huge pages where it knows them. Buffers
// of some MiB and more are read and written faster for it: their addresses stay in the
// processor's translation buffer.
func Alloc[T Number](n int) []T {
	s := make([]T, n)
	hugePages(Of(s).Memory.Host)
	return s
}
