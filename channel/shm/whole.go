//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// Vectors that are read where they are, in memory that is mapped here or in private memory of
// their process, need no blocks. A part whose sources all are so is done at once. An AllReduce
// where every process shows its inputs and its output is done whole, with nothing in the arenas:
// each process folds its share of the vector to its own output, piece by piece, and reads the
// shares of the others out of theirs. The words of the arena count pieces then:
//
//	folded   so many pieces of the share are done; the last counts as the end of the round
//	read     the end: this process reads no memory of the others any more
const (
	privateFrom = 16 << 10  // bytes that are read at once, from which a system call costs less than a copy
	sharePiece  = 256 << 10 // of a share
	readMost    = 256 << 10 // bytes of a system call, which the runtime is not told of
	copyMost    = 256 << 10 // bytes that are copied at a time: from 1 MiB on the runtime's copy goes past the caches
	scratchMost = 512 << 10 // what is read of private memory at a time, to be folded while it is in the cache
	scratchEach = 128 << 10 // of one vector
	scratchLess = 16 << 10
)

// tellReads tells the others whether this process can read the private memory of all of them.
func (b *board) tellReads() {
	reads := uint64(readsAll)
	for i := range b.parties {
		p := b.parties[i].p
		p.mu.Lock()
		if !p.reads {
			reads = readsAll + 1
		}
		p.mu.Unlock()
	}
	b.mine.area.reads.Store(reads)
}

// canBeRead says whether all others can read this process's private memory.
func (b *board) canBeRead() bool {
	if b.readable || !b.ready {
		return b.readable
	}
	for i := range b.parties {
		if b.parties[i].area.reads.Load() != readsAll {
			return false
		}
	}
	b.readable = true
	return true
}

// shows says whether the kernel reads memory of this process for others. It does not where
// memory is of a device, or is kept secret (memfd_secret). The ends are tried, and some places
// between them: a vector seldom is of two kinds of memory.
func (a address) shows(m []byte) bool {
	var got [showPoints]byte
	var from [showPoints]unix.RemoteIovec
	n := min(2+len(m)>>20, showPoints)
	for i := range n {
		from[i] = unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&m[(len(m)-1)/(n-1)*i])), Len: 1}
	}
	from[n-1].Base = uintptr(unsafe.Pointer(&m[len(m)-1]))
	to := unix.Iovec{Base: &got[0], Len: uint64(n)}
	read, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(a.Process), uintptr(unsafe.Pointer(&to)), 1, uintptr(unsafe.Pointer(&from[0])), uintptr(n), 0)
	return e == 0 && int(read) == n
}

// showPoints are the places that are tried of a vector.
const showPoints = 16

// settle decides how the round goes, when all heads have come.
func (b *board) settle() {
	b.whole, b.all = b.shown, !b.round.Trades
	for i := range b.parties {
		q := &b.parties[i]
		q.taken = 0
		b.whole = b.whole && (q.output.addr != 0 || q.output.mem != nil)
		b.all = b.all && (!q.gives || len(q.inputs) > 0)
	}
	if b.whole {
		b.wrote = b.end
		b.mine.area.wrote.Store(b.end)
	}
}

// direct says whether a part can be done at once: all that it takes is read where it is.
func (b *board) direct(t *slot) bool {
	switch {
	case b.round.Trades:
		return false
	case t.from == channel.EveryRank:
		return b.all
	}
	w := b.rows[t.from]
	return w.party < 0 || len(b.parties[w.party].inputs) > 0
}

// span appends to the list of sources bytes from to to of what a rank gives to a part, which is
// read where it is. i is its place among this process's sources, if it is of this process.
func (b *board) span(t *slot, p *channel.Share, i int, w row, from, to int64) error {
	if w.party < 0 {
		b.srcs = append(b.srcs, p.Src[i].Host[from:to])
		return nil
	}
	q := &b.parties[w.party]
	v := q.inputs[w.local]
	if v.addr == 0 {
		b.srcs = append(b.srcs, v.mem[t.at+from:t.at+to])
		return nil
	}
	n := int(to - from)
	if b.used+n > len(b.scratch) { // what is in the list keeps what it has
		b.scratch, b.used = make([]byte, max(n, scratchMost)), 0
	}
	into := b.scratch[b.used:][:n:n]
	b.used += (n + line - 1) &^ (line - 1)
	b.srcs = append(b.srcs, into)
	return b.copyFrom(q, into, v.addr+uint64(t.at+from))
}

// foldSpan does bytes from to to of a part whose sources are all read where they are.
func (b *board) foldSpan(t *slot, p *channel.Share, from, to int64) error {
	if t.from != channel.EveryRank {
		if w := b.rows[t.from]; w.party >= 0 && b.round.Op.Copies(1) {
			return b.copyTo(p.Dst, from, to, &b.parties[w.party], b.parties[w.party].inputs[w.local].at(t.at))
		}
	}
	step := b.step()
	for ; from < to; from += step {
		end := min(from+step, to)
		b.srcs, b.dsts, b.used = b.srcs[:0], b.dsts[:0], 0
		if t.from != channel.EveryRank {
			if err := b.span(t, p, 0, b.rows[t.from], from, end); err != nil {
				return err
			}
		} else {
			for _, w := range b.rows {
				if err := b.span(t, p, w.local, w, from, end); err != nil {
					return err
				}
			}
		}
		for _, m := range p.Dst {
			b.dsts = append(b.dsts, m.Host[from:end])
		}
		b.round.Op.Spread(b.dsts, b.srcs)
		if !b.breathe() {
			return errTaken
		}
	}
	return nil
}

// step is how many bytes of a part are folded at a time, so that what is read of private memory
// for it stays in the cache.
func (b *board) step() int64 {
	private := 0
	for i := range b.parties {
		if q := &b.parties[i]; q.private {
			private += q.locals
		}
	}
	if private == 0 {
		return copyMost
	}
	return int64(min(max(scratchMost/private, scratchLess), scratchEach) &^ (line - 1))
}

// copyTo copies bytes from to to of a vector of a party to places of this process.
func (b *board) copyTo(dst []kolo.Memory, from, to int64, q *party, v vector) error {
	if from == to || len(dst) == 0 {
		return nil
	}
	for ; from < to; from += copyMost {
		end := min(from+copyMost, to)
		first := dst[0].Host[from:end]
		if v.addr == 0 {
			copy(first, v.mem[from:end])
		} else if err := b.copyFrom(q, first, v.addr+uint64(from)); err != nil {
			return err
		}
		for _, m := range dst[1:] {
			copy(m.Host[from:end], first)
		}
		if !b.breathe() {
			return errTaken
		}
	}
	return nil
}

// copyFrom reads private memory of a party.
func (b *board) copyFrom(q *party, to []byte, addr uint64) error {
	if err := q.process.copyFrom(to, addr); err != nil {
		if b.withdrew = b.gaveUp(); b.withdrew != nil {
			return nil // of which move tells
		}
		return fmt.Errorf("%w: %v: %w%s", kolo.ErrLost, q.p, err, remedy(err))
	}
	return nil
}

// remedy is what to do about memory that a process has shown and that cannot be read.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EFAULT):
		return ": a part of its vector is memory of a device or kept secret, or was given back during the call; copy it to other memory first"
	case errors.Is(err, unix.EPERM):
		return ": the process does not let itself be read any more (PR_SET_DUMPABLE, kernel.yama.ptrace_scope)"
	}
	return ""
}

// moveWhole does the next pieces of an AllReduce that is done whole.
func (b *board) moveWhole() (found, ended bool, err error) {
	t, p := &b.layout.slots[0], &b.round.Parts[0]
	for more := true; more && b.read < b.end; found = found || more {
		more = false
		if b.folded < b.end {
			more = true
			if err := b.foldPiece(t, p); err != nil || b.withdrew != nil {
				return true, false, err
			}
		}
		left := b.folded < b.end
		for i := range b.parties {
			got, all, err := b.takeFrom(&b.parties[i], t, p)
			if err != nil {
				return true, false, err
			}
			more, left = more || got, left || !all
		}
		if !left {
			if b.withdrew = b.gaveUp(); b.withdrew != nil {
				return true, false, nil
			}
			b.read = b.end
			b.mine.area.read.Store(b.end)
			b.ring()
		}
	}
	return found, b.read == b.end && b.takers(), nil
}

// pieces is the number of pieces of a share, the same for all.
func (b *board) pieces(t *slot) int {
	from, to := b.share(0, t.length) // none is larger
	return max(int((to-from+sharePiece-1)/sharePiece), 1)
}

// foldPiece folds the next piece of this process's share.
func (b *board) foldPiece(t *slot, p *channel.Share) error {
	from, to := b.share(b.mine.at, t.length)
	k := int64(b.folded - b.first)
	if err := b.foldSpan(t, p, min(from+k*sharePiece, to), min(from+(k+1)*sharePiece, to)); err != nil {
		return err
	}
	if b.withdrew = b.gaveUp(); b.withdrew != nil {
		return nil
	}
	if b.folded++; b.folded-b.first == uint64(b.pieces(t)) {
		b.folded = b.end
	}
	b.mine.area.folded.Store(b.folded)
	b.ring()
	return nil
}

// takeFrom reads the pieces that a party has folded, and says whether there were some and whether
// those were the last.
func (b *board) takeFrom(q *party, t *slot, p *channel.Share) (got, all bool, err error) {
	there, pieces := q.area.folded.Load(), b.pieces(t)
	ready := 0
	switch {
	case there >= b.end:
		ready = pieces
	case there > b.first:
		ready = int(min(there-b.first, uint64(pieces)))
	}
	if ready > q.taken {
		from, to := b.share(q.at, t.length)
		if err := b.copyTo(p.Dst, min(from+int64(q.taken)*sharePiece, to), min(from+int64(ready)*sharePiece, to), q, q.output); err != nil {
			return true, false, err
		}
		q.taken, got = ready, true
	}
	return got, q.taken == pieces, nil
}

// copyFrom reads memory of the process at an address. The system call is one that the runtime is
// not told of: it does not wait, and is short.
func (p process) copyFrom(to []byte, addr uint64) error {
	for len(to) > 0 {
		n := min(len(to), readMost)
		local := unix.Iovec{Base: &to[0], Len: uint64(n)}
		remote := unix.RemoteIovec{Base: uintptr(addr), Len: n}
		got, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(p.pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
		switch {
		case e == unix.EINTR:
			continue
		case e != 0:
			return fmt.Errorf("read %d bytes at %#x of process %d: %w", len(to), addr, p.pid, e)
		case got == 0:
			return fmt.Errorf("read %d bytes at %#x of process %d: none came", len(to), addr, p.pid)
		}
		to, addr = to[got:], addr+uint64(got)
	}
	return nil
}
