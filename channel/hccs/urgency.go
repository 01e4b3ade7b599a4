package hccs

import (
	"runtime"
	"sync/atomic"
)

const (
	smallCall = 8 << 20 // bytes touched by a call up to which it is more urgent than larger ones of its priority
	levels    = 8       // of priority that are told apart, half of them below 0
	classes   = 2 * levels
	longWait  = 200 // blocks that helpers do while nobody comes or goes before they hurry no more: some 500 microseconds
)

// Class is how urgent a call is: a larger class is more urgent.
type Class int

// ClassOf is the class of a call of a priority that touches so many bytes: by priority, and
// of one priority the small ones before the large.
func ClassOf(priority int, bytes int64) Class {
	c := 2 * (min(max(priority, -levels/2), levels/2-1) + levels/2)
	if bytes <= smallCall {
		c++
	}
	return Class(c)
}

// urgency is who waits for calls of which class, and who helps with jobs of which class, so that
// those that do what is less urgent give way.
type urgency struct {
	lent   [classes]atomic.Int32  // goroutines in Lend
	waits  [classes]atomic.Uint64 // goroutines between Enter and Leave, and above waitBits how many have entered
	yields atomic.Int32           // goroutines in GiveWay
	grant  atomic.Bool            // a helper may do one block although somebody is in GiveWay
	_      [cacheLine]byte
	seen   atomic.Uint64         // sum of waits when a helper looked
	looks  atomic.Int32          // looks since it changed
	helps  [classes]atomic.Int32 // goroutines in help
	_      [cacheLine]byte
}

// waitBits is how many bits count those who wait.
const waitBits = 16

// Enter notes that the calling goroutine waits for a call of class c and does not help: who
// does what is less urgent gives way after each block, until Leave or for as long as a call may take.
func (u *urgency) Enter(c Class) { u.waits[c].Add(1<<waitBits + 1) }

// Leave ends Enter.
func (u *urgency) Leave(c Class) { u.waits[c].Add(^uint64(0)) }

// GiveWay gives the processor away once to who does less urgent jobs, for a block of one of them.
func (u *urgency) GiveWay() {
	u.yields.Add(1)
	u.grant.Store(true)
	runtime.Gosched()
	u.yields.Add(-1)
}

// hands is the number of lent goroutines that do jobs of class c.
func (u *urgency) hands(c Class) (n int) {
	for i := range c + 1 {
		n += int(u.lent[i].Load())
	}
	return n
}

// hurried says whether somebody waits for what is more urgent than class c. A helper asks
// after each block.
func (u *urgency) hurried(c Class) bool {
	sum, waits := uint64(0), false
	for i := range u.waits {
		n := u.waits[i].Load()
		sum += n
		if i <= int(c) {
			continue
		}
		if u.lent[i].Load() > 0 {
			return true
		}
		waits = waits || n&(1<<waitBits-1) > 0
	}
	if !waits {
		return false
	}
	if u.seen.Load() != sum {
		u.seen.Store(sum)
		u.looks.Store(0)
	}
	return u.looks.Load() < longWait
}

// admits says whether one more goroutine is to help with jobs of class c: while somebody waits for what is
// more urgent, one processor is left to that, and who gives way is back after one block.
func (u *urgency) admits(c Class, procs int) bool {
	if !u.hurried(c) {
		return true
	}
	n := 0
	for i := range c + 1 {
		n += int(u.helps[i].Load())
	}
	return n <= max(1, procs-1) && (u.yields.Load() == 0 || u.grant.CompareAndSwap(true, false))
}
