//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/kolo-ccl/kolo/channel/roce"
)

// maxEntries is the most registrations that are kept.
const maxEntries = 1 << 10

// cache has the memory regions of an adapter. Those of the Go heap are kept for the
// next message out of the same memory, as long as they are no more than limit bytes; the
// cache then keeps that memory alive, too.
type cache struct {
	a     *adapter
	limit int64
	heap  heap

	mu     sync.Mutex
	list   map[span]*entry
	bytes  int64 // of list
	clock  uint64
	hits   int64
	misses int64
}

// span is memory and what may be done with it.
type span struct {
	low   uintptr
	size  int
	write bool
}

func (s span) covers(t span) bool {
	return s.low <= t.low && t.low+uintptr(t.size) <= s.low+uintptr(s.size) && (s.write || !t.write)
}

// entry is a memory region.
type entry struct {
	span
	mr     uintptr
	pin    runtime.Pinner
	kept   bool // in list
	users  int
	last   uint64 // clock of the last use
	lkey   uint32
	rkey   uint32
	memory []byte
}

// Register finds or makes the region of some bytes.
func (a *adapter) Register(b []byte, write bool) (*roce.Region, error) {
	c := &a.cache
	s := span{uintptr(unsafe.Pointer(unsafe.SliceData(b))), len(b), write}
	e := c.find(s)
	if e == nil {
		var err error
		if e, err = a.register(s, b); err != nil {
			return nil, err
		}
		c.keep(e)
	}
	return &roce.Region{VA: uint64(s.low), Local: e.lkey, Remote: e.rkey, Entry: e}, nil
}

// find is the entry that covers a span, now used once more, or nil.
func (c *cache) find(s span) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.list[s]
	if e == nil {
		for t, x := range c.list {
			if t.covers(s) {
				e = x
				break
			}
		}
	}
	if e == nil {
		c.misses++
		return nil
	}
	c.hits++
	c.clock++
	e.users, e.last = e.users+1, c.clock
	return e
}

// register makes a memory region, used once. It gives up what is kept if there is no
// room for it otherwise.
func (a *adapter) register(s span, b []byte) (*entry, error) {
	e := &entry{span: s, users: 1, memory: b}
	access := uintptr(0)
	if s.write {
		access = accessLocalWrite | accessRemoteWrite
	}
	e.pin.Pin(unsafe.SliceData(b)) // says nothing of memory that is not Go's
	var err error
	if e.mr, err = a.lib.make(fnRegMR, a.pd, s.low, uintptr(s.size), access); err != nil {
		a.cache.shrink(0)
		if e.mr, err = a.lib.make(fnRegMR, a.pd, s.low, uintptr(s.size), access); err != nil {
			e.pin.Unpin()
			return nil, fmt.Errorf("register %d bytes: %w", s.size, err)
		}
	}
	mr := view[abiMR](e.mr)
	e.lkey, e.rkey = mr.lkey, mr.rkey
	return e, nil
}

// keep puts an entry into the cache if it may be kept.
func (c *cache) keep(e *entry) {
	if int64(e.size) > c.limit || !c.heap.has(e.memory) {
		return
	}
	c.mu.Lock()
	if c.list[e.span] == nil { // else somebody was quicker, and it is for once only
		c.list[e.span] = e
		c.bytes += int64(e.size)
		c.clock++
		e.kept, e.last = true, c.clock
	}
	c.mu.Unlock()
	c.shrink(c.limit)
}

// shrink drops the entries that were not used for the longest time, until the cache is
// within limit bytes.
func (c *cache) shrink(limit int64) {
	for {
		c.mu.Lock()
		var oldest *entry
		if c.bytes > limit || len(c.list) > maxEntries {
			for _, e := range c.list {
				if e.users == 0 && (oldest == nil || e.last < oldest.last) {
					oldest = e
				}
			}
		}
		if oldest != nil {
			delete(c.list, oldest.span)
			c.bytes -= int64(oldest.size)
			oldest.kept = false
		}
		c.mu.Unlock()
		if oldest == nil {
			return
		}
		c.a.deregister(oldest)
	}
}

// Release ends a use of a region.
func (a *adapter) Release(r *roce.Region) {
	e := r.Entry.(*entry)
	c := &a.cache
	c.mu.Lock()
	e.users--
	over := !e.kept && e.users == 0
	c.mu.Unlock()
	if over {
		a.deregister(e)
	}
}

// deregister gives a memory region back. That it cannot be leaves the memory registered
// until the device is closed, and pinned.
func (a *adapter) deregister(e *entry) {
	if err := a.lib.call(fnDeregMR, e.mr); err != nil {
		a.note(err)
		return
	}
	e.pin.Unpin()
	e.memory = nil
}
