package npu

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Blocks are the allocations of a device that are live, by address, with who uses
// them: what a driver asks before it touches memory. It is not safe for use by
// several goroutines at once.
type Blocks struct{ list []*Block }

// Block is one allocation.
type Block struct {
	Addr uint64
	Size int64
	Data []byte // the bytes, where the device is simulated
	Own  any    // the driver's
	// Imported says that the memory is of another process, and not given back by Free.
	Imported bool

	holds int
	user  string
}

// Hold notes that who uses the block until Release.
func (b *Block) Hold(who string) {
	b.holds++
	b.user = who
}

// Release ends one Hold.
func (b *Block) Release() {
	if b.holds == 0 {
		panic("npu: a block was released that nobody holds")
	}
	b.holds--
}

// Add notes an allocation. One that overlaps another is refused with kolo.ErrOverlap.
func (l *Blocks) Add(b *Block) error {
	i, found := l.search(b.Addr)
	for _, k := range []int{i - 1, i} {
		if k < 0 || k >= len(l.list) {
			continue
		}
		if x := l.list[k]; k == i && found || x.end() > b.Addr && b.end() > x.Addr {
			return fmt.Errorf("%w: the %d bytes at %#x and the %d bytes at %#x, which are in use", kolo.ErrOverlap, b.Size, b.Addr, x.Size, x.Addr)
		}
	}
	l.list = slices.Insert(l.list, i, b)
	return nil
}

// Find is the block that holds all of the memory.
func (l *Blocks) Find(m kolo.Memory) (*Block, error) {
	i, found := l.search(m.Addr)
	if !found {
		i--
	}
	if i < 0 || m.Size < 0 || m.Addr >= l.list[i].end() {
		return nil, fmt.Errorf("%w: the %d bytes at %#x were freed, or never given", ErrFreed, m.Size, m.Addr)
	}
	if b := l.list[i]; uint64(m.Size) > b.end()-m.Addr {
		return nil, fmt.Errorf("%w: the %d bytes at %#x go beyond their allocation of %d bytes at %#x", ErrFreed, m.Size, m.Addr, b.Size, b.Addr)
	}
	return l.list[i], nil
}

// Remove takes out the block that is exactly the memory, if nobody holds it.
func (l *Blocks) Remove(m kolo.Memory) (*Block, error) {
	b, err := l.Find(m)
	switch {
	case err != nil:
		return nil, err
	case b.Addr != m.Addr || b.Size != m.Size:
		return nil, fmt.Errorf("%w: the %d bytes at %#x are a part of an allocation; free its %d bytes at %#x", kolo.ErrArgument, m.Size, m.Addr, b.Size, b.Addr)
	case b.holds > 0:
		return nil, fmt.Errorf("%w: the memory is in use by %s; sync or abort that stream first", ErrBusy, b.user)
	}
	i, _ := l.search(b.Addr)
	l.list = slices.Delete(l.list, i, i+1)
	return b, nil
}

// All are the blocks in the order of their addresses, to read.
func (l *Blocks) All() []*Block { return l.list }

func (l *Blocks) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(l.list, addr, func(b *Block, at uint64) int { return cmp.Compare(b.Addr, at) })
}

func (b *Block) end() uint64 { return b.Addr + uint64(b.Size) }
