//go:build linux && (amd64 || arm64)

package shm

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/cpu"
)

// Driver joins the ranks of this process to those of other processes of the host. It
// is a channel.Remote, a channel.Poller, a channel.Allocator and a channel.Medium.
type Driver struct {
	config   channel.Config
	me       address
	text     []byte // me as JSON
	probe    []byte // a random text that peers try to read out of this process
	private  bool   // for tests: reading peers' private memory is refused
	listener *net.UnixListener

	bell     bell
	bellMem  []byte
	bellFile *os.File

	mu      sync.Mutex
	peers   map[string]*peer // by socket; this process is not among them
	byRank  map[kolo.Rank]*peer
	gone    map[kolo.Rank]bool     // own ranks whose endpoint is closed
	talking map[*net.UnixConn]bool // sockets in a handshake
	leaving []*board               // that are closed and not released
	opened  int                    // endpoints
	closed  bool
	met     chan struct{} // closed by the first Meet
	meet    sync.Once
	shut    sync.Once

	self    *peer                   // the way from this process to itself
	ears    atomic.Pointer[[]*peer] // peers that frames may come from
	crowded atomic.Bool             // there are more ranks than cores
	pollers atomic.Int32
	posters atomic.Int32             // in Post of a board
	nappers atomic.Int32             // pollers that are asleep
	polls   atomic.Uint32            // how often Poll was called
	dozing  atomic.Bool              // hear sleeps for a moment
	stir    chan struct{}            // ends that
	timer   *time.Timer              // of hear
	deep    atomic.Bool              // hear sleeps until the bell is rung
	several atomic.Bool              // ranks of this process may wait for each other's goroutines
	boards  atomic.Pointer[[]*board] // that are open
	losses  atomic.Uint32            // peers that are lost
	ended   atomic.Bool

	arenas  atomic.Pointer[[]*arena]
	arenaMu sync.Mutex // held while peers are told of arenas
	arenaNo uint32

	movers  movers
	buffers buffers
	work    sync.WaitGroup // the driver's goroutines
	moving  sync.WaitGroup // moves that use mapped memory
}

// New makes the driver of one world in this process. It is registered as "shm".
func New(c channel.Config) (channel.Driver, error) {
	if c.Engine == nil {
		return nil, fmt.Errorf("%w: the shm driver needs an engine", kolo.ErrArgument)
	}
	d := &Driver{config: c, peers: map[string]*peer{}, byRank: map[kolo.Rank]*peer{}, gone: map[kolo.Rank]bool{},
		talking: map[*net.UnixConn]bool{}, met: make(chan struct{}),
		stir: make(chan struct{}, 1), timer: time.NewTimer(restFor), probe: []byte(rand.Text() + rand.Text())}
	d.ears.Store(&[]*peer{})
	d.arenas.Store(&[]*arena{})
	d.boards.Store(&[]*board{})
	d.movers.init()
	if err := d.settle(); err != nil {
		d.release()
		return nil, fmt.Errorf("shm: %w", err)
	}
	// ended by Close
	d.work.Go(d.accept)
	d.work.Go(d.hear) // ended by Close
	for range runtime.GOMAXPROCS(0) {
		d.work.Go(d.movers.run) // ended by Close
	}
	return d, nil
}

// settle makes what the process has of its own: its socket, its bell, its loop.
func (d *Driver) settle() (err error) {
	if d.me, err = here(); err != nil {
		return err
	}
	d.me.Socket = "@kolo-shm-" + rand.Text()
	if d.text, err = json.Marshal(d.me); err != nil {
		return err
	}
	d.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.me.Socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	if d.bellMem, d.bellFile, err = makeShared("kolo-bell", bellBytes); err != nil {
		return err
	}
	d.bell = newBell(d.bellMem)
	mem, err := unix.Mmap(-1, 0, halfBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("%d bytes of memory: %w", halfBytes, err)
	}
	d.self = newPeer(d, d.me)
	d.self.loop = true
	d.self.rise(wiring{mem: mem, to: newArea(mem), from: newArea(mem), bell: d.bell})
	return nil
}

// Link is kolo.LinkSHM.
func (d *Driver) Link() kolo.Link { return kolo.LinkSHM }

// Address says how this process is reached: by its socket, and which process it is.
func (d *Driver) Address() ([]byte, error) { return slices.Clone(d.text), nil }

// Meet tells the driver of the ranks of other processes. It may be called again with
// further ones. A process that is not of this host, user and network namespace cannot
// be reached; the ops to it complete with kolo.ErrLost.
func (d *Driver) Meet(peers []channel.Peer) error {
	list := make([]address, len(peers))
	for i, p := range peers {
		var err error
		if list[i], err = parseAddress(p.Address); err != nil {
			return fmt.Errorf("%v: %w", p.Rank, err)
		}
		if p.Rank < 0 || p.Rank > maxRank {
			return fmt.Errorf("%w: %v", kolo.ErrArgument, p.Rank)
		}
	}
	d.mu.Lock()
	for i, p := range peers {
		if list[i].Socket == d.me.Socket {
			d.byRank[p.Rank] = d.self
			continue
		}
		q := d.peers[list[i].Socket]
		if q == nil {
			q = newPeer(d, list[i])
			d.peers[list[i].Socket] = q
		}
		d.byRank[p.Rank] = q
	}
	d.crowd()
	d.mu.Unlock()
	for i, p := range peers {
		d.mu.Lock()
		q := d.peers[list[i].Socket]
		d.mu.Unlock()
		if q != nil {
			q.add(p.Rank)
		}
	}
	d.meet.Do(func() { close(d.met) })
	return nil
}

// crowd notes whether spinning would keep a core from somebody who has work: with
// more ranks on this host than cores. d.mu is held.
func (d *Driver) crowd() {
	near := 0
	for _, p := range d.byRank {
		if p == d.self || d.me.reaches(p.address) {
			near++
		}
	}
	alone := runtime.NumCPU() // processors of this process
	d.crowded.Store(runtime.GOMAXPROCS(0) < min(alone, 2) || near > cmp.Or(d.config.Cores, alone))
}

// Open makes the endpoint of a rank of this process.
func (d *Driver) Open(rank kolo.Rank) (channel.Endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, fmt.Errorf("%w: the shm driver", kolo.ErrClosed)
	case rank < 0 || rank > maxRank:
		return nil, fmt.Errorf("%w: %v", kolo.ErrArgument, rank)
	case d.byRank[rank] != nil && d.byRank[rank] != d.self:
		return nil, fmt.Errorf("%w: %v is of another process", kolo.ErrArgument, rank)
	}
	d.byRank[rank] = d.self
	d.opened++
	d.several.Store(d.opened > 1 || runtime.GOMAXPROCS(0) == 1)
	d.crowd()
	return &endpoint{d, rank}, nil
}

// Poll gives the calling goroutine to the driver until done is set, or until nothing
// has come for some time: it looks at the boards and the rings, and carries bytes.
// After some microseconds it sleeps until a peer rings, which costs one system call on
// either side; a goroutine that parks instead takes two more to wake.
// Meanwhile the peers need not wake anybody else here, and for a moment after a Poll that
// was worth it neither: another is likely to follow.
func (d *Driver) Poll(done *atomic.Uint32) {
	d.pollers.Add(1)
	polls := d.polls.Add(1)
	d.awake()
	patience := pollFor
	crowded := d.crowded.Load()
	if crowded {
		patience = yieldFor
	}
	if polls%pollsPerMove == 0 && !d.several.Load() {
		d.spread()
	}
	var since time.Time
	naps, stay := 0, 0
	for i := 1; done.Load() == 0; i++ {
		switch {
		case d.look() || d.movers.help():
			i, naps, stay, since = 0, 0, 0, time.Time{}
			continue
		case crowded && stay < stayLooks && !d.needed():
			stay++
			cpu.Pause(1)
		case crowded:
			stay = 0
			yield()
		default:
			cpu.Pause(1)
		}
		if i%pollsPerLook != 0 {
			continue
		}
		if d.awake(); !crowded { // the ear may have gone to sleep meanwhile
			yield() // who is waited for may be on this core
		}
		several := d.several.Load()
		if several {
			runtime.Gosched()
		}
		if now := time.Now(); since.IsZero() {
			since = now
		} else if now.Sub(since) > patience {
			if naps++; naps > maxNaps || several {
				break
			}
			d.nap(done)
			since = time.Time{}
		}
	}
	switch {
	case d.pollers.Add(-1) > 0: // the others look
		if d.nappers.Load() > 0 {
			d.bell.wake()
		}
	case done.Load() == 0:
		d.bell.asleep.Store(1)
		d.look()
		d.rouse()
	case d.deep.Load():
		d.bell.wake()
	}
}

// awake says that peers need not ring. They read the word, so it is not written for
// nothing.
func (d *Driver) awake() {
	if d.bell.asleep.Load() != 0 {
		d.bell.asleep.Store(0)
	}
}

// nap sleeps in the system call until a peer rings, or a moment.
func (d *Driver) nap(done *atomic.Uint32) {
	seen := d.bell.rung.Load()
	d.nappers.Add(1)
	d.bell.asleep.Store(1)
	if !d.look() && done.Load() == 0 {
		d.bell.wait(seen, int64(napFor))
	}
	d.nappers.Add(-1)
	d.awake()
}

// How long to look for a frame before sleeping. A sleeper costs its peer the system
// call that wakes it, and itself some microseconds.
const (
	pollFor      = 100 * time.Microsecond // a rank that waits, on a core that nobody else wants
	yieldFor     = 300 * time.Microsecond // and where it yields the core at each look
	napFor       = time.Millisecond       // then asleep until a peer rings, at most; who completes an op otherwise does not ring
	maxNaps      = 10                     // in a row, before the goroutine parks
	hearFor      = 5 * time.Microsecond   // the driver's goroutine
	restFor      = time.Millisecond       // the driver's goroutine, after which it looks whether ranks still poll
	pollsPerLook = 32                     // looks at the rings between two at the clock
	sleepFor     = time.Second            // a bound; whoever has something rings
	stayLooks    = 32                     // looks in a row, some microseconds, where nobody who is waited for needs this core
	pollsPerMove = 64                     // Polls from one look at the cores to the next
)

// look takes what has come from all peers, and says whether there was anything.
func (d *Driver) look() (found bool) {
	for _, b := range *d.boards.Load() {
		if b.open.Load() && b.advance(nil) {
			found = true
		}
	}
	for _, p := range *d.ears.Load() {
		if p.in.waiting() || p.stuck.Load() {
			found = p.drain() || found
		}
	}
	return found
}

// hear is the driver's goroutine: it sleeps until a peer rings, and takes what there is.
// While ranks poll it keeps out of their way, in short sleeps. In a long one it is deep
// asleep: whoever has polled wakes it, as the peers may think that nobody sleeps here.
func (d *Driver) hear() {
	for polls := uint32(0); !d.ended.Load(); {
		seen := d.bell.rung.Load()
		last := polls
		polls = d.polls.Load()
		if d.pollers.Load()+d.posters.Load() > 0 || polls != last && d.bell.asleep.Load() == 0 {
			d.doze()
			continue
		}
		if d.look() || d.listen() {
			continue
		}
		d.deep.Store(true)
		d.bell.asleep.Store(1)
		if !d.look() && d.polls.Load() == polls {
			d.bell.wait(seen, int64(sleepFor))
		}
		if d.deep.Store(false); d.pollers.Load() == 0 {
			d.bell.asleep.Store(0)
			d.look() // before it rests because somebody has polled meanwhile
		}
	}
}

// doze is the short sleep of the driver's goroutine. A Poll that ends in vain ends it.
// It is no system call: while a goroutine is in one, the runtime's monitor looks 10,000
// times a second, on the cores of those who poll.
func (d *Driver) doze() {
	d.dozing.Store(true)
	if d.bell.asleep.Load() == 0 || d.pollers.Load()+d.posters.Load() > 0 {
		d.timer.Reset(restFor)
		select {
		case <-d.stir:
		case <-d.timer.C:
		}
	}
	d.dozing.Store(false)
}

// rouse ends the short sleep.
func (d *Driver) rouse() {
	if d.dozing.Load() {
		select {
		case d.stir <- struct{}{}:
		default:
		}
	}
}

// listen spins for a short time, where there is a core to spare.
func (d *Driver) listen() bool {
	if d.crowded.Load() || d.pollers.Load() > 0 {
		return false
	}
	for start := time.Now(); time.Since(start) < hearFor; {
		for range pollsPerLook {
			if d.look() {
				return true
			}
			cpu.Pause(1)
		}
	}
	return false
}

// listenTo adds a peer to those that look looks at.
func (d *Driver) listenTo(p *peer) {
	d.mu.Lock()
	list := append(slices.Clone(*d.ears.Load()), p)
	d.ears.Store(&list)
	d.mu.Unlock()
	d.bell.wake()
}

// Close ends the driver: ops that are left complete with kolo.ErrLost. It gives peers a
// moment to take what is on its way to them, and waits for its goroutines.
func (d *Driver) Close() error {
	d.shut.Do(func() {
		d.mu.Lock()
		d.closed = true
		all := []*peer{d.self}
		for _, p := range d.peers {
			all = append(all, p)
		}
		for c := range d.talking {
			_ = c.Close() // it ends the handshake
		}
		d.mu.Unlock()
		slices.SortFunc(all, func(a, b *peer) int { return cmp.Compare(a.Socket, b.Socket) })
		for _, p := range all {
			p.linger()
		}
		d.farewell()
		_ = d.listener.Close() // it ends accept
		d.meet.Do(func() { close(d.met) })
		for _, p := range all {
			p.fail(fmt.Errorf("%w: this process has closed its shm driver", kolo.ErrLost))
		}
		for _, b := range *d.boards.Load() {
			b.Cancel(nil, fmt.Errorf("%w: this process has closed its shm driver", kolo.ErrLost))
		}
		d.ended.Store(true)
		d.bell.wake()
		d.rouse()
		d.movers.close()
		d.work.Wait()
		d.moving.Wait()
		for d.pollers.Load() > 0 {
			runtime.Gosched()
		}
		d.ears.Store(&[]*peer{})
		d.boards.Store(&[]*board{})
		d.mu.Lock()
		d.leaving = nil
		d.mu.Unlock()
		for _, p := range all {
			p.unmap()
		}
		d.release()
	})
	return nil
}

// release gives back what settle and Alloc made.
func (d *Driver) release() {
	for _, a := range *d.arenas.Load() {
		a.unmap()
	}
	if d.listener != nil {
		_ = d.listener.Close() // for a New that failed
	}
	if d.bellFile != nil {
		_ = d.bellFile.Close()     // nothing was written
		_ = unix.Munmap(d.bellMem) // it is a mapping
	}
}

// endpoint is one rank's end of its links.
type endpoint struct {
	d    *Driver
	rank kolo.Rank
}

// Connect makes the Conn to a rank that Meet has named, or to one of this process.
func (e *endpoint) Connect(to kolo.Rank) (channel.Conn, error) {
	d := e.d
	d.mu.Lock()
	p, closed := d.byRank[to], d.closed
	d.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("%w: the shm driver", kolo.ErrClosed)
	case p == nil:
		return nil, fmt.Errorf("%w: shm has not been told of %v", kolo.ErrArgument, to)
	}
	return p.connect(e.rank, to), nil
}

// Close breaks the links of the rank; the peers hear of it.
func (e *endpoint) Close() {
	d := e.d
	d.mu.Lock()
	done := d.gone[e.rank] || d.closed
	d.gone[e.rank] = true
	all := []*peer{d.self}
	for _, p := range d.peers {
		all = append(all, p)
	}
	d.mu.Unlock()
	if done {
		return
	}
	// ended by the driver's Close; this Close has no turn, and may be called in one
	d.work.Go(func() {
		for _, p := range all {
			p.leave(e.rank)
		}
	})
}
