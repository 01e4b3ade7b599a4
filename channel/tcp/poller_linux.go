package tcp

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller has the control connections of a driver, outside of the runtime's own
// poller: a rank that waits looks at them itself, and no other goroutine is woken for
// what it finds.
//
// socks is an epoll set of all connections. bell is one that has only socks in it, one
// event at a time; the runtime watches bell for the goroutine of serve. While ranks
// poll, the bell is off: then a packet wakes nobody.
type poller struct {
	socks, bell int
	file        *os.File // of bell
	ranks       atomic.Int32
	procs       int32       // GOMAXPROCS
	crowded     atomic.Bool // the host has more processes of this world than processors
	lone        atomic.Bool // and this, where each has less than two
	closing     atomic.Bool
	served      sync.WaitGroup // the goroutine of serve
	use         sync.RWMutex   // held for reading by ranks that poll
	rings       atomic.Bool    // the bell is on
	dry         atomic.Bool    // in the last poll nothing has come for long

	polls atomic.Int64 // how often a rank has stopped to poll
	waits atomic.Bool  // timer will turn the bell on
	hot   atomic.Pointer[wire]

	mu    sync.Mutex
	wires map[int32]*wire
	last  int32
	timer *time.Timer
	seen  int64         // polls at the last tick
	after time.Duration // of the timer
}

// How a rank polls.
const (
	// How long after the last byte before it parks. Where others have the processor between two
	// looks, time says little: it looks so often too, for theirs may be the bytes. pollLong is
	// the most; if nothing comes in the next poll either, that one is shorter than what the rank
	// takes for one in which something has come.
	pollFor    = 200 * time.Microsecond
	pollLooks  = 256
	pollLong   = 4 * time.Millisecond
	pollLonger = 900 * time.Microsecond
	againFor   = 4 // looks that ask the last connection first
	// Looks before the first yield of the processor: where each process of the host that this
	// driver knows has one, and where they share them.
	pollYield     = 64
	pollYieldSoon = 1
	// Looks between two that let other goroutines run where those have a processor: this wakes
	// a thread, which takes time from the other process there.
	goschedEvery = 1024
	pollBatch    = 64
	clockEvery   = 8 // looks between two looks at the clock
	// A rank also stops if there is always something: it has a context to listen to.
	pollMost    = 5 * time.Millisecond
	clockRarely = 64

	// How long after the last poll the bell may be off; twice at most. While ranks go on
	// polling the time is doubled up to bellMost, for the timer wakes a thread.
	bellAfter = 200 * time.Microsecond
	bellMost  = 2 * time.Millisecond
)

func newPoller() (*poller, error) {
	p := &poller{wires: map[int32]*wire{}, procs: int32(runtime.GOMAXPROCS(0))}
	var err error
	if p.socks, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if p.bell, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		_ = unix.Close(p.socks) // the first error counts
		return nil, fmt.Errorf("epoll: %w", err)
	}
	err = unix.SetNonblock(p.bell, true) // so that the runtime watches it
	p.file = os.NewFile(uintptr(p.bell), "epoll")
	if err == nil {
		err = unix.EpollCtl(p.bell, unix.EPOLL_CTL_ADD, p.socks, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT})
	}
	if err != nil {
		_, _ = p.file.Close(), unix.Close(p.socks) // the first error counts
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.rings.Store(true)
	// ended by close
	p.served.Go(p.serve)
	return p, nil
}

// close ends serve and waits for that, and for ranks that poll. The wires are closed
// before.
func (p *poller) close() {
	p.closing.Store(true)
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	_ = p.file.Close() // an epoll set has nothing to lose
	p.served.Wait()
	p.use.Lock()
	defer p.use.Unlock()
	if p.socks >= 0 {
		_ = unix.Close(p.socks) // likewise
		p.socks = -1
	}
}

// crowd takes note of how many processes of the host are known, and of the processors that
// they share; 0: those of this process.
func (p *poller) crowd(processes, cores int) {
	if cores == 0 {
		cores = runtime.NumCPU()
	}
	p.crowded.Store(processes > cores)
	p.lone.Store(processes > 1 && 2*processes > cores)
}

// ring turns the bell on or off. If there is something in socks, it rings at once.
func (p *poller) ring(on bool) {
	e := &unix.EpollEvent{}
	if on {
		e.Events = unix.EPOLLIN | unix.EPOLLONESHOT
	}
	p.rings.Store(on)
	_ = unix.EpollCtl(p.bell, unix.EPOLL_CTL_MOD, p.socks, e) // fails only when they are closed
}

// serve reads what comes while no rank polls.
func (p *poller) serve() {
	raw, err := p.file.SyscallConn()
	for err == nil {
		err = raw.Read(func(fd uintptr) bool {
			var e [1]unix.EpollEvent
			n, err := unix.EpollWait(int(fd), e[:], 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil {
			return
		}
		p.rings.Store(false)
		for p.look() {
		}
		if p.ranks.Load() == 0 && !p.closing.Load() {
			p.ring(true)
		}
	}
}

// again looks at the connection that has had something last, without asking which has:
// most often that is the one. It does so only at the first looks.
func (p *poller) again(idle int) bool {
	if idle >= againFor {
		return false
	}
	w := p.hot.Load()
	return w != nil && w.readable()
}

// look reads what is there, and says whether there was anything.
func (p *poller) look() bool {
	var events [pollBatch]unix.EpollEvent
	some := false
	for i := range pending(p.socks, events[:]) {
		e := &events[i]
		p.mu.Lock()
		w := p.wires[e.Fd]
		p.mu.Unlock()
		if w == nil {
			continue
		}
		if e.Events&unix.EPOLLOUT != 0 {
			w.writable()
			some = true
		}
		if e.Events&^unix.EPOLLOUT != 0 && w.readable() {
			some = true
			if p.hot.Load() != w {
				p.hot.Store(w)
			}
		}
	}
	return some
}

// poll looks until done is set or nothing has come for a while. Between two looks it
// yields the processor, for there may be more ranks than processors.
func (p *poller) poll(done *atomic.Uint32) {
	p.use.RLock()
	defer p.use.RUnlock()
	p.ranks.Add(1)
	if p.rings.Load() {
		p.ring(false)
	}
	var begin, since time.Time
	busy := false
	soon, long := pollYield, pollLong
	if p.dry.Load() {
		long = pollLonger
	}
	if p.crowded.Load() {
		soon = pollYieldSoon
	}
	for idle, looks := 0, 1; done.Load() == 0 && !p.closing.Load(); looks++ {
		if looks%clockRarely == 0 {
			if begin.IsZero() {
				begin = time.Now()
			} else if busy = time.Since(begin) > pollMost; busy {
				break
			}
			if looks%goschedEvery == 0 {
				runtime.Gosched()
			}
		}
		if p.again(idle) || p.look() {
			if idle, since = 0, (time.Time{}); p.dry.Load() {
				p.dry.Store(false)
			}
			continue
		}
		if idle++; idle%clockEvery == 0 {
			if since.IsZero() {
				since = time.Now()
			} else if d := time.Since(since); d > pollFor && idle >= pollLooks || d > long {
				p.dry.Store(true)
				break
			}
		}
		if idle > soon {
			if p.ranks.Load() >= p.procs {
				runtime.Gosched()
			}
			_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
		}
	}
	p.polls.Add(1)
	if p.ranks.Add(-1) == 0 && done.Load() == 0 && !busy { // else one is back soon, or tick finds that it is not
		p.ring(true)
	} else {
		p.ringLater()
	}
}

// ringLater turns the bell on when no rank has polled for a while: one whose call has
// ended most often makes the next at once, and turning the bell on and off for each call,
// with what has come meanwhile ringing it, takes longer than a small call.
func (p *poller) ringLater() {
	if p.waits.Load() || !p.waits.CompareAndSwap(false, true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.after = bellAfter; p.timer == nil {
		p.timer = time.AfterFunc(p.after, p.tick)
	} else {
		p.timer.Reset(p.after)
	}
}

// tick is called by the timer: the bell goes on, unless a rank has polled since the last
// time.
func (p *poller) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := p.polls.Load(); {
	case p.closing.Load():
	case n != p.seen || p.ranks.Load() > 0:
		p.seen = n
		p.after = min(2*p.after, bellMost)
		p.timer.Reset(p.after)
	default:
		p.waits.Store(false)
		p.ring(true)
	}
}

func (p *poller) add(s socket, w *wire) error {
	r := s.(*rawSocket)
	p.mu.Lock()
	p.last++
	r.id = p.last
	p.wires[r.id] = w
	p.mu.Unlock()
	e := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: r.id}
	if err := unix.EpollCtl(p.socks, unix.EPOLL_CTL_ADD, r.fd, e); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// rawSocket is a connection that the runtime's poller does not know.
type rawSocket struct {
	fd      int
	id      int32
	in, out []unix.Iovec // of the reader, and of the writer
}

// detach takes a connection from the runtime's poller. It closes c in any case.
func detach(c *net.TCPConn) (*rawSocket, error) {
	raw, err := c.SyscallConn()
	s := &rawSocket{fd: -1}
	if err == nil {
		var dup error
		err = raw.Control(func(fd uintptr) { s.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		if err == nil {
			err = dup
		}
	}
	if e := c.Close(); err == nil {
		err = e
	}
	return s, err
}

func (s *rawSocket) polled() bool { return true }

func (s *rawSocket) read(space [][]byte) (int, error) {
	s.in = vectors(s.in[:0], space[:min(len(space), maxPieces)])
	return atOnce(unix.SYS_READV, s.fd, s.in)
}

func (s *rawSocket) write(list [][]byte) (int, error) {
	s.out = vectors(s.out[:0], list)
	return atOnce(unix.SYS_WRITEV, s.fd, s.out)
}

// vectors appends what is not empty of list to v.
func vectors(v []unix.Iovec, list [][]byte) []unix.Iovec {
	for _, b := range list {
		if len(b) > 0 {
			v = append(v, unix.Iovec{Base: &b[0]})
			v[len(v)-1].SetLen(len(b))
		}
	}
	return v
}

// atOnce reads or writes what a socket takes at once. As it never waits, the runtime is not told
// of it, as it would be by unix.Readv: of a call that copies for more than 20 us it thinks that
// it waits, starts a thread in place of this one and looks every 20 us from then on.
func atOnce(call uintptr, fd int, v []unix.Iovec) (int, error) {
	if len(v) == 0 {
		return 0, nil
	}
	if call == unix.SYS_WRITEV {
		toWrite(v)
	}
	for {
		n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
		switch errno {
		case 0:
			if call == unix.SYS_READV {
				haveRead(fd, v, int(n))
			}
			clear(v)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			clear(v)
			return 0, errWouldBlock
		default:
			clear(v)
			return 0, errno
		}
	}
}

// pending is unix.EpollWait without a wait, likewise. An error says that nothing is there: it was
// interrupted, or is closed.
func pending(set int, events []unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(set), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func (s *rawSocket) ask(p *poller, write bool) error {
	e := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: s.id}
	if write {
		e.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(p.socks, unix.EPOLL_CTL_MOD, s.fd, e)
}

func (s *rawSocket) shutdown() error { return unix.Shutdown(s.fd, unix.SHUT_WR) }

func (s *rawSocket) interrupt() {} // nothing of it waits

func (s *rawSocket) close(p *poller) {
	p.mu.Lock()
	if w := p.wires[s.id]; w != nil {
		p.hot.CompareAndSwap(w, nil)
	}
	delete(p.wires, s.id)
	p.mu.Unlock()
	_ = unix.Close(s.fd) // what was written is the kernel's; an error would come too late
}

// tune sets what Go has no function for: how long bytes may stay unacknowledged.
func tune(c *net.TCPConn, timeout time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds()))
	})
	if err == nil {
		err = set
	}
	return err
}

// gentle is the congestion control of connections within a host.
const gentle = "reno"

// local sets the congestion control of a socket before it is connected, or of those that a
// listening one will accept, and returns what it was, "" if that is not known. Within a host
// nothing is congested, but some (BBR) space the packets out by timers: 16 MiB each way by two
// processes take 8 ms by BBR and 5.5 ms by reno, which is always there and does not. What
// cannot be set stays.
func local(raw syscall.RawConn, control string) (was string) {
	_ = raw.Control(func(fd uintptr) {
		if was, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); was != control {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, control)
		}
	})
	return was
}
