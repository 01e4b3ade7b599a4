//go:build linux && (amd64 || arm64)

package shm

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo/internal/cpu"
)

// here publishes the core that this process is on.
func (b *board) here() uint64 {
	core := uint64(cpu.CPU())
	if c := b.mine.area.core; c.Load() != core { // the others read it
		c.Store(core)
	}
	return core
}

// needed says whether a process that is waited for was last seen on the core of the caller,
// which then does well to yield it. Else that process runs elsewhere, or is behind others
// there: then a yield would only bring on a third one, that waits as well.
func (b *board) needed() bool {
	if !b.ready || !b.d.crowded.Load() {
		return true
	}
	core := b.here()
	for i := range b.parties {
		if q := &b.parties[i]; q.area.core.Load() == core && b.awaits(q) {
			return true
		}
	}
	return false
}

// awaits says whether the round waits for a process.
func (b *board) awaits(q *party) bool {
	a := &q.area
	switch {
	case !b.posted:
		return a.ended.Load()+boardHeads < b.number
	case b.heads < len(b.parties):
		return q.gives && a.head(b.number).number.Load() != b.number
	case b.whole && b.read < b.end:
		return a.folded.Load() < b.end
	case b.folded < b.wrote:
		return q.gives && a.wrote.Load() <= b.folded
	case b.twice && b.read < b.folded:
		return a.folded.Load() <= b.read
	}
	return (q.takes || b.wrote < b.end) && a.read.Load() < b.end // for room, or for inputs
}

// spread moves this process to the core that has the fewest of the group, if its own has
// two more at least, and this process is one of the last of them. Processes that yield to
// each other are never off their core for long, so the kernel takes all of them for
// bound to its cache, and may leave eight of them on one core and none on another for
// seconds. It is a nudge: the kernel may put the process elsewhere at any time.
func (b *board) spread() {
	if !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	var set unix.CPUSet
	core := int(b.here())
	if !b.ready || time.Since(b.moved) < moveEvery || b.on(core) < 1 || unix.SchedGetaffinity(0, &set) != nil {
		return
	}
	before, here := 0, 1+b.on(core) // of the group on this core: before this process, and all
	for i := range b.parties {
		if q := &b.parties[i]; q.at < b.mine.at && int(q.area.core.Load()) == core {
			before++
		}
	}
	least, best := here-1, core
	for c, left := 0, min(set.Count(), maxCores); left > 0; c++ {
		if !set.IsSet(c) {
			continue
		}
		if left--; b.on(c) < least {
			least, best = b.on(c), c
		}
	}
	if best == core || before < (here+least+1)/2 {
		return
	}
	b.moved = time.Now()
	nudge(&set, best)
	b.here()
}

// The limits of spread.
const (
	moveEvery = time.Millisecond
	maxCores  = 256 // that are looked at
)

// on is how many of the other processes were last seen on a core.
func (b *board) on(core int) (n int) {
	for i := range b.parties {
		if int(b.parties[i].area.core.Load()) == core {
			n++
		}
	}
	return n
}

// nudge has the caller's thread go on on a core, and allows it those that it had before.
func nudge(all *unix.CPUSet, core int) {
	var one unix.CPUSet
	one.Set(core)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.SchedSetaffinity(0, &one) == nil {
		_ = unix.SchedSetaffinity(0, all) // as it was a moment ago
	}
}

// spread spreads the processes of the groups that wait over the cores.
func (d *Driver) spread() {
	for _, b := range *d.boards.Load() {
		if b.open.Load() {
			b.spread()
		}
	}
}

// needed says whether another process may need this core so that what is waited for comes.
func (d *Driver) needed() bool {
	open := false
	for _, b := range *d.boards.Load() {
		if b.open.Load() {
			if b.near.Load() {
				return true
			}
			open = true
		}
	}
	return !open
}
