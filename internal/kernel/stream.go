package kernel

import (
	"sync"
	"unsafe"
)

// scratchSize is what a fold is made of at a time before it is streamed: it stays in the first cache.
const scratchSize = 8 << 10

// scratch is what a fold needs on its way around the caches.
type scratch struct {
	sum  [scratchSize]byte
	srcs [][]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// SpreadAround is Spread with stores that go around the caches, where the processor has
// them: they do not read a line before they write it, and push out nothing that is to be
// read again. It pays where the destinations are larger than the caches: what reads them
// next finds them in memory. A fold that writes one of its sources is Spread: such a line is
// there already.
func (o Op) SpreadAround(dsts, srcs [][]byte) {
	n := o.length(dsts, srcs)
	switch {
	case !hasStreams || n == 0 || len(dsts) == 0, !o.Copies(len(srcs)) && updates(dsts, srcs):
		o.Spread(dsts, srcs)
	case o.Copies(len(srcs)):
		for _, d := range dsts {
			if unsafe.SliceData(d) != unsafe.SliceData(srcs[0]) {
				streamTo(d, srcs[0])
			}
		}
	default:
		s := scratches.Get().(*scratch)
		o.spreadBy(s, dsts, srcs, n)
		clear(s.srcs) // of references
		scratches.Put(s)
	}
}

// updates says whether a destination is one of the sources.
func updates(dsts, srcs [][]byte) bool {
	for _, d := range dsts {
		for _, s := range srcs {
			if unsafe.SliceData(d) == unsafe.SliceData(s) {
				return true
			}
		}
	}
	return false
}

// spreadBy folds into scratch and streams that to every destination.
func (o Op) spreadBy(t *scratch, dsts, srcs [][]byte, n int) {
	var sum [1][]byte
	for from := 0; from < n; from += scratchSize {
		to := min(from+scratchSize, n)
		t.srcs = t.srcs[:0]
		for _, s := range srcs {
			t.srcs = append(t.srcs, s[from:to])
		}
		sum[0] = t.sum[:to-from]
		o.Spread(sum[:], t.srcs)
		for _, d := range dsts {
			streamTo(d[from:to], sum[0])
		}
	}
}

// streamTo copies src to dst around the caches, but for the ends that are no whole lines.
func streamTo(dst, src []byte) {
	const line = 64
	head := min(len(dst), int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst)))&(line-1)))
	copy(dst[:head], src)
	end := head + (len(dst)-head)&^(line-1)
	for from := head; from < end; from += maxStreamed {
		streamLines(dst[from:min(from+maxStreamed, end)], src[from:])
	}
	copy(dst[end:], src[end:])
}

// maxStreamed is the most bytes of a call of assembly, which cannot be preempted.
const maxStreamed = 256 << 10

//go:noinline
func streamLines(dst, src []byte) {
	announce([][]byte{dst}, [][]byte{src}, 0, len(dst))
	stream(unsafe.SliceData(dst), unsafe.SliceData(src), len(dst))
}
