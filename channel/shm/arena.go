//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
)

// arena is memory that Alloc has made.
type arena struct {
	number uint32
	board  uint64 // the group that it is the board of, or 0
	mem    []byte
	file   *os.File
}

func (a *arena) unmap() {
	_ = a.file.Close()     // nothing was written through it
	_ = unix.Munmap(a.mem) // it is a mapping
}

// maxRegions is the most arenas of a process.
const maxRegions = 4096

// Alloc makes n zero bytes that peers read in place. Peers that this process is joined
// to are told before it returns.
func (d *Driver) Alloc(n int64) (kolo.Memory, error) { return d.alloc(n, 0) }

// alloc is Alloc, also for the board of a group.
func (d *Driver) alloc(n int64, board uint64) (kolo.Memory, error) {
	if n <= 0 || n > 1<<46 {
		return kolo.Memory{}, fmt.Errorf("%w: %d bytes of shared memory", kolo.ErrArgument, n)
	}
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	d.arenaMu.Lock()
	defer d.arenaMu.Unlock()
	list := *d.arenas.Load()
	switch {
	case closed:
		return kolo.Memory{}, fmt.Errorf("%w: the shm driver", kolo.ErrClosed)
	case len(list) == maxRegions:
		return kolo.Memory{}, fmt.Errorf("%w: %d pieces of shared memory; allocate larger ones", kolo.ErrLimit, maxRegions)
	}
	mem, file, err := makeShared("kolo-arena", n)
	if err != nil {
		return kolo.Memory{}, fmt.Errorf("shm: %w", err)
	}
	d.arenaNo++
	a := &arena{number: d.arenaNo, board: board, mem: mem, file: file}
	list = append(slices.Clone(list), a)
	d.arenas.Store(&list)
	for _, p := range *d.ears.Load() {
		if p.told {
			p.tell(note{Region: a.number, Size: n, Board: board}, a.file)
		}
	}
	return kolo.HostMemory(mem), nil
}

// Free gives back memory that Alloc made.
func (d *Driver) Free(m kolo.Memory) error {
	d.arenaMu.Lock()
	defer d.arenaMu.Unlock()
	list := slices.Clone(*d.arenas.Load())
	i := slices.IndexFunc(list, func(a *arena) bool { return len(m.Host) > 0 && &a.mem[0] == &m.Host[0] })
	if i < 0 {
		return fmt.Errorf("%w: this memory is not of Alloc, or was freed", kolo.ErrArgument)
	}
	a := list[i]
	list = slices.Delete(list, i, i+1)
	d.arenas.Store(&list)
	for _, p := range *d.ears.Load() {
		if p.told {
			p.tell(note{Dropped: a.number}, nil)
		}
	}
	a.unmap()
	return nil
}

// appendSpans appends the list of the pieces of a message, as an offer has it. It is
// empty if there are too many.
func (d *Driver) appendSpans(to []byte, mem []kolo.Memory) []byte {
	for _, m := range mem {
		if len(m.Host) == 0 {
			continue
		}
		if len(to) == maxSpans*spanBytes {
			return to[:0]
		}
		s := span{addr: uint64(uintptr(unsafe.Pointer(&m.Host[0]))), size: uint64(len(m.Host))}
		s.region, s.offset = d.regionOf(m.Host)
		var b [spanBytes]byte
		s.put(b[:])
		to = append(to, b[:]...)
	}
	return to
}

// region is an arena of a peer, mapped here.
type region struct {
	mem     []byte
	users   int // moves that are in it
	dropped bool
	number  uint32
	board   uint64 // the group that it is the board of, or 0
}

// owed says whether a board here has yet to take from it what its owner has written.
func (r *region) owed() bool {
	if r.board == 0 || len(r.mem) < boardData {
		return false
	}
	a := newBoardArea(r.mem)
	return slices.ContainsFunc(a.heads[:], func(h boardHead) bool { return h.number.Load() != 0 })
}

// learn maps an arena of the peer, or lets one go.
func (p *peer) learn(n note, fd int) error {
	var mem []byte
	if n.Region != 0 {
		if fd < 0 || n.Size <= 0 {
			return fmt.Errorf("%w: memory without a file", errCorrupt)
		}
		var err error
		if mem, err = mapShared(fd, n.Size, unix.PROT_READ); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.Region != 0 {
		if p.state != up || p.regions[n.Region] != nil || len(p.regions) == maxRegions {
			_ = unix.Munmap(mem) // it is a mapping
			return fmt.Errorf("%w: piece %d of shared memory", errCorrupt, n.Region)
		}
		p.regions[n.Region] = &region{mem: mem, number: n.Region, board: n.Board}
		if n.Board != 0 {
			p.boards[n.Board] = n.Region
		}
	}
	if r := p.regions[n.Dropped]; r != nil {
		r.dropped = true
		if r.users > 0 || r.owed() {
			return nil
		}
		r.users++
		p.leaveRegion(r)
	}
	return nil
}

// leaveRegion notes that a move has ended; the lock is held.
func (p *peer) leaveRegion(r *region) {
	if r.users--; r.users == 0 && r.dropped {
		delete(p.regions, r.number)
		if p.boards[r.board] == r.number {
			delete(p.boards, r.board)
		}
		_ = unix.Munmap(r.mem) // it is a mapping
	}
}
