package cpu

import "runtime"

// maxPause is the most PAUSE instructions of one call of Pause: on some
// processors that many take 50 microseconds, and assembly cannot be preempted.
const maxPause = 1000

// CPU is the number of the core that runs the caller, a hint where to look for
// work or data: the goroutine may have moved when CPU returns. Numbers start at
// 0 and are below 4096. It is 0 where the number is not known: on arm64, on
// systems other than Linux, on old processors. It takes 10 to 20 ns.
func CPU() int {
	if !numbered {
		return 0
	}
	return int(rdtscp() & 0xfff) // Linux: node<<12 | core
}

// Pause tells the core n times that this is a loop that waits: it then saves
// power and leaves more to the core's other thread. One pause takes 10 to 50 ns.
// It is not a scheduling point; n is cut to 1000.
func Pause(n int) {
	if n > 0 {
		pause(min(n, maxPause))
	}
}

// HasAVX2 says whether the processor has AVX2 and F16C and the system saves their
// registers. It is false on all but amd64.
func HasAVX2() bool { return avx2 }

var (
	numbered = runtime.GOOS == "linux" && hasRDTSCP()
	avx2     = hasAVX2()
)

func hasRDTSCP() bool {
	most, _, _, _ := cpuid(0x80000000, 0)
	if most < 0x80000001 {
		return false
	}
	_, _, _, d := cpuid(0x80000001, 0)
	return d>>27&1 == 1
}

func hasAVX2() bool {
	most, _, _, _ := cpuid(0, 0)
	if most < 7 {
		return false
	}
	const osxsave, avx, f16c = 1 << 27, 1 << 28, 1 << 29
	if _, _, c, _ := cpuid(1, 0); c&(osxsave|avx|f16c) != osxsave|avx|f16c {
		return false
	}
	const xmm, ymm = 1 << 1, 1 << 2
	if xgetbv()&(xmm|ymm) != xmm|ymm {
		return false
	}
	_, b, _, _ := cpuid(7, 0)
	return b>>5&1 == 1
}

func cpuid(leaf, sub uint32) (a, b, c, d uint32)
func xgetbv() uint32
func rdtscp() uint32
func pause(n int)
