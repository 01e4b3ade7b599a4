package rc

// psnMask is the range of a packet sequence number: 24 bits.
const psnMask = 1<<24 - 1

// A queue pair counts packets in 64 bits, from origin plus the first PSN on, so that
// nothing in it wraps; the PSN is the low 24 bits of the count.
const origin = 1 << 24

// psnOf is the PSN of a packet's count.
func psnOf(seq int64) uint32 { return uint32(seq) & psnMask }

// near is the count nearest to base that has the PSN: within half of the PSN space,
// 2^23 on either side.
func near(base int64, psn uint32) int64 {
	d := int32((psn-uint32(base))<<8) >> 8
	return base + int64(d)
}
