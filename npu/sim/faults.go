package sim

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Host is the number that stands for the host in Slow.
const Host = -1

// fault makes a task fail.
type fault struct {
	at  int // number of the task
	err error
}

// Fail makes the n-th task that begins on a device from here on fail when it ends,
// with npu.ErrFault and err; 1 is the next. Copies, reductions, kernels, and the jobs
// of an Engine that touch the device are tasks. A task that fails changes no byte.
func (c *Cluster) Fail(index, n int, err error) {
	c.core.Lock()
	defer c.core.Unlock()
	s := c.slots[index]
	s.faults = append(s.faults, fault{s.begun + n, fmt.Errorf("%w: %w", npu.ErrFault, err)})
}

// Lose takes a device away: everything on it, and every transfer with it, ends at
// once with npu.ErrLost. It cannot be opened again.
func (c *Cluster) Lose(index int) {
	c.core.Enter()
	defer c.core.Leave()
	c.slots[index].lost = true
	for _, d := range c.core.Opened() {
		if d.Index() == index && d.Hooks() != nil {
			d.Lose(nil)
		}
	}
}

// Slow makes the way from one device to another, in that direction, slower by a
// factor of at least 1, for transfers that begin later. Either may be Host. A factor
// of 1 heals it.
func (c *Cluster) Slow(from, to int, factor float64) error {
	c.core.Lock()
	defer c.core.Unlock()
	if factor < 1 || from == to || min(from, to) < Host || max(from, to) >= len(c.slots) {
		return fmt.Errorf("%w: sim: slow %d to %d by %v", kolo.ErrArgument, from, to, factor)
	}
	at := func(i int) *slot {
		if i == Host {
			return nil
		}
		return c.slots[i]
	}
	for _, l := range c.route(at(from), at(to)) {
		l.slow = factor
	}
	return nil
}

// struck counts a task that begins, and is its fault.
func (s *slot) struck() error {
	s.begun++
	for i, f := range s.faults {
		if f.at == s.begun {
			s.faults = append(s.faults[:i], s.faults[i+1:]...)
			return f.err
		}
	}
	return nil
}
