//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"bufio"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// mapping is a line of /proc/self/maps.
type mapping struct {
	low, high uintptr
	mode      string // as rw-p
	inode     uint64
	path      string
}

// mappings are the parts of this process's address space, lowest first.
func mappings() iter.Seq[mapping] {
	return func(yield func(mapping) bool) {
		f, err := os.Open("/proc/self/maps")
		if err != nil {
			return // nothing is known
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			var m mapping
			var offset uint64
			var device string
			line := s.Text()
			if n, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &m.low, &m.high, &m.mode, &offset, &device, &m.inode); n != 6 || err != nil {
				return
			}
			if fields := strings.SplitN(line, " ", 6); len(fields) == 6 {
				_, m.path, _ = strings.Cut(fields[5], " ")
				m.path = strings.TrimSpace(m.path)
			}
			if !yield(m) {
				return
			}
		}
	}
}

// heap knows where the heap of the Go runtime is. The runtime keeps the address space
// that it has once taken for it, and its pages as long as an object on them lives: what
// is registered there stays what it is as long as it is kept alive. Nobody can say that
// of other memory. That more is known to be heap than is costs correctness, less costs
// time, so the answer is no where there is doubt.
type heap struct {
	mu        sync.Mutex
	low, high uintptr
	foreign   map[uintptr]bool // arenas that were looked up and are not
}

// The heap grows by arenas of this size, at multiples of it.
const (
	arenaSize  = 64 << 20
	maxForeign = 1 << 12
)

// has says whether memory belongs to the heap.
func (h *heap) has(b []byte) bool {
	low := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	high := low + uintptr(len(b))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.low <= low && high <= h.high {
		return true
	}
	arena := low / arenaSize
	if h.foreign[arena] {
		return false
	}
	h.find()
	if h.low <= low && high <= h.high {
		return true
	}
	if len(h.foreign) >= maxForeign || h.foreign == nil {
		h.foreign = map[uintptr]bool{}
	}
	h.foreign[arena] = true
	return false
}

// find finds the heap: an object of it, and around that the mappings without a file
// that are next to each other. The runtime reserves it far from where the kernel puts
// other mappings.
func (h *heap) find() {
	object := make([]byte, 64<<10)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(object)))
	var low, high uintptr
	for m := range mappings() {
		anonymous := m.inode == 0 && (m.path == "" || strings.HasPrefix(m.path, "[anon: Go: ")) && strings.HasSuffix(m.mode, "p")
		if !anonymous || m.low != high {
			if low <= at && at < high {
				break
			}
			low = m.low
		}
		if high = m.high; !anonymous {
			low = high
		}
	}
	if low <= at && at < high && low%(4<<20) == 0 {
		h.low, h.high = low, high
	}
}
