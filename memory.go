package kolo

import "fmt"

// Space says where memory is: 0 is the host; every device has a number of its
// own, given by package npu when it opens the device.
type Space uint32

// HostSpace is ordinary memory of this process.
const HostSpace Space = 0

// Memory is a handle to a range of bytes, the only form in which buffers pass
// between layers. It owns nothing: who made the bytes keeps them alive and hands
// them over for the time that the receiving function states.
type Memory struct {
	Host  []byte // the bytes, when Space is HostSpace
	Space Space
	Addr  uint64 // device address, when Space is not HostSpace
	Size  int64  // length in bytes of device memory; host memory has len(Host)
}

// HostMemory is the handle of ordinary bytes.
func HostMemory(b []byte) Memory { return Memory{Host: b} }

// Len is the length in bytes.
func (m Memory) Len() int64 {
	if m.Space == HostSpace {
		return int64(len(m.Host))
	}
	return m.Size
}

// Slice is the part from byte off on, n bytes long. It panics outside of m, as
// slicing does.
func (m Memory) Slice(off, n int64) Memory {
	if m.Space == HostSpace {
		return Memory{Host: m.Host[off : off+n : off+n]}
	}
	if off < 0 || n < 0 || off > m.Size-n {
		panic(fmt.Sprintf("kolo: slice [%d:%d] of %d bytes of device memory", off, off+n, m.Size))
	}
	return Memory{Space: m.Space, Addr: m.Addr + uint64(off), Size: n}
}
