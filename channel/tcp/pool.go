package tcp

import (
	"math/bits"
	"sync"
)

// pool has buffers for what comes before its receive, and for Views. Its classes are
// the powers of two from 256 bytes on.
type pool struct{ classes [48]sync.Pool }

const smallest = 8 // log2 of the smallest class

// get is a buffer of n bytes. Its capacity is that of its class.
func (p *pool) get(n int64) []byte {
	c := max(bits.Len64(uint64(max(n, 1)-1)), smallest)
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, 1<<c)
}

// put gives a buffer back. It must be as get has made it, though of any length.
func (p *pool) put(b []byte) {
	if cap(b) >= 1<<smallest {
		b = b[:cap(b)]
		p.classes[bits.Len64(uint64(cap(b)-1))].Put(&b)
	}
}
