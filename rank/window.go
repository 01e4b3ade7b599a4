package rank

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// Limits of one-sided access.
const (
	maxRegions  = 4096    // regions of a window, as in HIXL
	maxNotices  = 4096    // notices of a window that nobody has taken, as in HIXL
	maxNotice   = 1024    // bytes of the name, and of the message, of a notice, as in HIXL
	maxPieces   = 1 << 16 // pieces of one transfer
	maxInFlight = 1 << 16 // transfers of one connection
)

// WindowConfig says how a window is made.
type WindowConfig struct {
	// Name tells the windows of a rank apart. A peer connects to the window of the same name.
	Name string
	// Timeout is the longest that a transfer or a Connect may take. 0 means
	// Config.Timeout; negative means no deadline.
	Timeout time.Duration
}

// Window is a rank's side of one-sided transfers, as HIXL has them: memory that it lets
// other ranks read and write without a call of its own, and connections to the windows
// of others. Nothing is collective; a rank that is only written to makes a window,
// registers memory, listens, and takes notices.
//
// Registered memory is the caller's, who keeps it until Deregister or Close has returned
// and decides with the peers when it is read and written: between two ranks nothing but a
// Notice says that bytes have come. Its methods may be called by any goroutine.
type Window struct {
	world   *World
	name    string
	timeout time.Duration

	mu      sync.Mutex
	regions []*region // in the order in which they were registered
	byKey   map[uint64]*region
	notices []Notice
	closed  error         // why nobody gets at the memory any more
	left    chan struct{} // closed when Close has done its work
	news    chan struct{} // closed and made anew when a notice comes or the window closes
	free    chan struct{} // the same when a region has no user any more
}

// region is memory that is registered.
type region struct {
	Region
	memory kolo.Memory
	users  int  // transfers that use it
	gone   bool // deregistered
}

// Region is registered memory, as its peers know it. It may be told to other ranks in any
// way.
type Region struct {
	Name string
	Key  uint64 // names it among all regions of the world; 0 is none
	Size int64  // bytes
}

// Notice is a short message that tells a peer something about its memory. Name and
// Message have at most 1024 bytes each.
type Notice struct {
	From    kolo.Rank // world rank; set by the receiving side
	Name    string
	Message []byte
}

// NewWindow makes a window of this rank. Close it; closing the World does that too.
func (w *World) NewWindow(c WindowConfig) (*Window, error) {
	if c.Timeout == 0 {
		c.Timeout = w.p.cfg.Timeout
	}
	win := &Window{world: w, name: c.Name, timeout: c.Timeout, byKey: map[uint64]*region{},
		left: make(chan struct{}), news: make(chan struct{}), free: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("new window %q: %w: the world of %v", c.Name, kolo.ErrClosed, w.rank)
	}
	if slices.ContainsFunc(w.windows, func(o *Window) bool { return o.name == c.Name }) {
		return nil, fmt.Errorf("new window %q: %w: %v has one of that name; close it or choose another name", c.Name, kolo.ErrArgument, w.rank)
	}
	w.windows = append(w.windows, win)
	return win, nil
}

// Listen lets peers connect, those that have asked before and those that will. Memory is
// registered before. A rank that only connects to others needs no Listen.
func (win *Window) Listen() error {
	if err := win.over(); err != nil {
		return err
	}
	win.world.actor.tell(nil, &windowMade{win})
	return nil
}

// over is why the window is closed, or nil.
func (win *Window) over() error {
	win.mu.Lock()
	defer win.mu.Unlock()
	return win.closed
}

// Name is the window's name.
func (win *Window) Name() string { return win.name }

// Register opens memory to one-sided access by ranks that connect from now on: a
// connection knows the regions that there were when it was made. name is for the peers to
// find it and may be empty. The same memory registered again is the same region.
func (win *Window) Register(name string, m kolo.Memory) (Region, error) {
	bad := func(err error, format string, args ...any) (Region, error) {
		return Region{}, fmt.Errorf("register memory in window %q: %w: %s", win.name, err, fmt.Sprintf(format, args...))
	}
	if m.Space != kolo.HostSpace && !win.world.p.engine.Reaches(m.Space) {
		return Region{}, fmt.Errorf("register memory in window %q: %w", win.name, unreached(m.Space))
	}
	if m.Len() < 0 {
		return bad(kolo.ErrArgument, "it has %d bytes", m.Len())
	}
	win.mu.Lock()
	defer win.mu.Unlock()
	if win.closed != nil {
		return Region{}, win.closed
	}
	at := spanOf(m)
	for _, r := range win.regions {
		switch same := !at.empty() && spanOf(r.memory) == at; {
		case same && r.Name == name:
			return r.Region, nil
		case same:
			return bad(kolo.ErrArgument, "it is region %q already, and %q is another name", r.Name, name)
		case name != "" && r.Name == name:
			return bad(kolo.ErrArgument, "there is another region %q", name)
		}
	}
	if len(win.regions) == maxRegions {
		return bad(kolo.ErrLimit, "%d regions; register larger pieces", maxRegions)
	}
	r := &region{Region: Region{Name: name, Key: rand.Uint64() | 1, Size: m.Len()}, memory: m}
	win.regions, win.byKey[r.Key] = append(win.regions, r), r
	return r.Region, nil
}

// Deregister takes a region back. Transfers that come later are refused with
// kolo.ErrArgument; it returns when none uses the memory any more, or with an error when
// ctx ends before, and then the memory is still used.
func (win *Window) Deregister(ctx context.Context, r Region) error {
	win.mu.Lock()
	x := win.byKey[r.Key]
	if x == nil {
		win.mu.Unlock()
		return fmt.Errorf("deregister memory in window %q: %w: no region of key %#x", win.name, kolo.ErrArgument, r.Key)
	}
	x.gone = true
	win.mu.Unlock()
	if err := win.unused(ctx, x); err != nil {
		return fmt.Errorf("deregister region %q of window %q: %w", x.Name, win.name, err)
	}
	win.mu.Lock()
	defer win.mu.Unlock()
	win.regions = slices.DeleteFunc(win.regions, func(o *region) bool { return o == x })
	delete(win.byKey, x.Key)
	return nil
}

// unused waits until nothing uses a region.
func (win *Window) unused(ctx context.Context, r *region) error {
	for {
		win.mu.Lock()
		users, free := r.users, win.free
		win.mu.Unlock()
		if users == 0 {
			return nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			if !isClosed(free) {
				return fmt.Errorf("%w; %d transfers still use the memory", ctxerr.Of(ctx), users)
			}
		}
	}
}

// place is a range in somebody's regions.
type place struct {
	key         uint64
	offset, len int64
}

// acquire is the memory of places, all of which must lie in regions; it is used until
// release.
func (win *Window) acquire(places []place) (memory []kolo.Memory, used []*region, err error) {
	win.mu.Lock()
	defer win.mu.Unlock()
	if win.closed != nil {
		return nil, nil, fmt.Errorf("%w: %v", kolo.ErrLeft, win.closed)
	}
	for _, p := range places {
		r := win.byKey[p.key]
		if r == nil || r.gone {
			return nil, nil, fmt.Errorf("%w: no region of key %#x; it was deregistered, or is another window's", kolo.ErrArgument, p.key)
		}
		if err := r.holds(p.offset, p.len); err != nil {
			return nil, nil, err
		}
		memory, used = append(memory, r.memory.Slice(p.offset, p.len)), append(used, r)
	}
	for _, r := range used {
		r.users++
	}
	return memory, used, nil
}

// holds says why a range is not in the region, or nil.
func (r *Region) holds(offset, n int64) error {
	if offset < 0 || n < 0 || offset > r.Size-n {
		return fmt.Errorf("%w: %d bytes from %d on are not in region %q of %d bytes", kolo.ErrArgument, n, offset, r.Name, r.Size)
	}
	return nil
}

// release ends the use of regions.
func (win *Window) release(used []*region) {
	win.mu.Lock()
	defer win.mu.Unlock()
	for _, r := range used {
		if r.users--; r.users == 0 && (r.gone || win.closed != nil) {
			close(win.free)
			win.free = make(chan struct{})
		}
	}
}

// known lists the regions for a peer that connects.
func (win *Window) known() (list []Region) {
	win.mu.Lock()
	defer win.mu.Unlock()
	for _, r := range win.regions {
		if !r.gone {
			list = append(list, r.Region)
		}
	}
	return list
}

// notify keeps a notice for the user.
func (win *Window) notify(n Notice) error {
	win.mu.Lock()
	defer win.mu.Unlock()
	switch {
	case win.closed != nil:
		return win.closed
	case len(win.notices) == maxNotices:
		return fmt.Errorf("%w: %v has %d notices in window %q that it has not taken", kolo.ErrLimit, win.world.rank, maxNotices, win.name)
	}
	win.notices = append(win.notices, n)
	win.changed()
	return nil
}

// changed wakes those who wait for notices; mu is held.
func (win *Window) changed() {
	close(win.news)
	win.news = make(chan struct{})
}

// Notices takes the notices that have come, oldest first, without waiting: HIXL's
// GetNotifies.
func (win *Window) Notices() []Notice {
	win.mu.Lock()
	defer win.mu.Unlock()
	list := win.notices
	win.notices = nil
	return list
}

// NextNotice waits for a notice and takes it. The data that was put before it, by the same
// connection, is in this rank's memory. It returns kolo.ErrClosed when the window closes; it
// does not hear that a peer is gone.
func (win *Window) NextNotice(ctx context.Context) (Notice, error) {
	for {
		win.mu.Lock()
		if len(win.notices) > 0 {
			n := win.notices[0]
			win.notices[0] = Notice{}
			win.notices = win.notices[1:]
			win.mu.Unlock()
			return n, nil
		}
		news, closed := win.news, win.closed
		win.mu.Unlock()
		if closed != nil {
			return Notice{}, closed
		}
		select {
		case <-news:
		case <-ctx.Done():
			if !isClosed(news) {
				return Notice{}, fmt.Errorf("next notice of window %q: %w", win.name, ctxerr.Of(ctx))
			}
		}
	}
}

// Close ends the window's connections, both those made here and those of peers, whose
// outstanding transfers fail with kolo.ErrLeft, and takes all memory back. It returns when
// none of it is used any more, or with an error when ctx or Config.CloseTimeout has ended
// before. It may be called again, and waits then for the first Close.
func (win *Window) Close(ctx context.Context) error {
	w := win.world
	ctx, cancel := context.WithTimeout(ctx, w.p.cfg.CloseTimeout)
	defer cancel()
	win.mu.Lock()
	if win.closed != nil {
		win.mu.Unlock()
		if err := closedBy(ctx, win.left); err != nil {
			return fmt.Errorf("close window %q: %w", win.name, err)
		}
		return nil
	}
	win.closed = fmt.Errorf("%w: window %q of %v", kolo.ErrClosed, win.name, w.rank)
	win.changed()
	regions := slices.Clone(win.regions)
	win.mu.Unlock()
	defer close(win.left)
	w.mu.Lock()
	w.windows = slices.DeleteFunc(w.windows, func(o *Window) bool { return o == win })
	w.mu.Unlock()
	ended := make(chan struct{})
	w.actor.tell(nil, &windowClosed{win, ended})
	var errs []error
	select {
	case <-ended:
	case <-ctx.Done():
		if !isClosed(ended) {
			errs = append(errs, ctxerr.Of(ctx))
		}
	}
	for _, r := range regions {
		errs = append(errs, win.unused(ctx, r))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close window %q: %w", win.name, err)
	}
	return nil
}
