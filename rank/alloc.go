package rank

// Alloc makes a slice of n zeros for use as a buffer: memory of the Go heap like that
// of make, which the system is asked to hold in huge pages where it knows them, and of
// which a buffer of their size begins with one. Buffers of some MiB and more are read and
// written faster for it, since their addresses stay in the processor's translation buffer, and
// other processes of the host read them up to twice as fast.
func Alloc[T Number](n int) []T {
	size := int(dtypeOf[T]().Size())
	if n < hugePage/size {
		return make([]T, n)
	}
	s := make([]T, n+hugePage/size)
	at := spanOf(Of(s).Memory).lo
	skip := int(-at&(hugePage-1)) / size
	s = s[skip:][:n:n]
	hugePages(Of(s).Memory.Host)
	return s
}

// hugePage is the size of a huge page of most systems.
const hugePage = 2 << 20
