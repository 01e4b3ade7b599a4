//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// device is an NPU that is open. What is below "thread" belongs to its thread; the
// rest is guarded by the driver's lock.
type device struct {
	v     *Driver
	index int
	info  npu.Info

	blocks   npu.Blocks
	raw      map[uint64]uintptr // what aclrtMalloc gave, by address
	keys     map[uint64][]byte  // of memory of other processes, by address
	used     int64
	streams  []*stream // that are not closed
	handles  int       // events and notifies that are not closed
	made     int       // streams ever
	users    int       // tasks on the device, of any stream, that have to do with its memory
	events   []uintptr // of AscendCL, to be used again
	lost     error
	closing  bool // nothing more may begin
	closed   bool
	idle     []chan struct{} // closed when nothing is in flight
	commands []func()
	calls    []func()
	ending   bool // commands and calls end when they are empty

	work  chan struct{} // has one when there are commands
	serve chan struct{} // has one when there are calls
	ended chan struct{} // closed when the device is given back

	// thread
	context   uintptr
	service   uintptr       // a stream for the report thread alone
	reporter  uintptr       // the report thread's number
	reported  chan struct{} // closed when the report thread has ended
	stop      chan struct{} // closed when it is to end
	stopping  atomic.Bool
	canReach  []bool
	links     []uint64
	peers     map[int]bool // that access was enabled to
	healthAt  time.Time
	finishing bool
	alive     map[uintptr]bool // events of AscendCL
}

// limits of a device.
const (
	maxStreams  = 1024
	maxHandles  = 1 << 16
	maxAhead    = 256 // tasks of a stream that the device has: a full stream blocks its caller
	bounceSize  = 4 << 20
	scratchSize = bounceSize
)

func newDevice(v *Driver, index int) *device {
	return &device{v: v, index: index, raw: map[uint64]uintptr{}, keys: map[uint64][]byte{}, peers: map[int]bool{}, alive: map[uintptr]bool{},
		work: make(chan struct{}, 1), serve: make(chan struct{}, 1), ended: make(chan struct{}), reported: make(chan struct{}), stop: make(chan struct{})}
}

func (d *device) Info() npu.Info { return d.info }

func (d *device) Alloc(size int64) (kolo.Memory, error) {
	v := d.v
	v.mu.Lock()
	err := d.trouble()
	switch {
	case err != nil:
	case size <= 0:
		err = fmt.Errorf("%w: %d bytes asked for", kolo.ErrArgument, size)
	case d.info.Memory > 0 && size > d.info.Memory-d.used, size > math.MaxInt64-2*npu.Alignment:
		err = fmt.Errorf("%w: %d bytes asked for, %d of %d are used by this process", npu.ErrMemory, size, d.used, d.info.Memory)
	default:
		d.used += size
	}
	v.mu.Unlock()
	if err != nil {
		return kolo.Memory{}, d.error("alloc", err)
	}
	var raw uintptr
	var addr uint64
	err = d.do(func() (err error) {
		raw, addr, err = d.malloc(size)
		return err
	}, func() { _ = d.v.lib.call(fnFree, raw) }) // nobody has used it
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil && d.closed {
		err = d.trouble() // and the memory has gone with the device
	}
	if err != nil {
		d.used -= size
		return kolo.Memory{}, d.error("alloc", err)
	}
	d.blocks.Add(&npu.Block{Addr: addr, Size: size})
	d.raw[addr] = raw
	return kolo.Memory{Space: d.info.Space, Addr: addr, Size: size}, nil
}

// malloc asks for memory at a multiple of npu.Alignment, which AscendCL promises less
// than: where it does not come by itself there is more of it.
func (d *device) malloc(size int64) (raw uintptr, addr uint64, err error) {
	raw, err = d.v.lib.made(fnMalloc, uintptr(size), hugeFirst)
	if err != nil || raw%npu.Alignment == 0 {
		return raw, uint64(raw), err
	}
	if err = d.v.lib.call(fnFree, raw); err != nil {
		return 0, 0, err
	}
	raw, err = d.v.lib.made(fnMalloc, uintptr(size+npu.Alignment), hugeFirst)
	return raw, (uint64(raw) + npu.Alignment - 1) &^ (npu.Alignment - 1), err
}

func (d *device) Free(m kolo.Memory) error {
	v := d.v
	v.mu.Lock()
	var err error
	var raw uintptr
	switch {
	case d.closed:
		err = d.trouble()
	case m.Space != d.info.Space:
		err = fmt.Errorf("%w: the memory is of space %d, this device's is %d", npu.ErrForeign, m.Space, d.info.Space)
	default:
		if d.keys[m.Addr] != nil {
			err = fmt.Errorf("%w: the memory is another process's; Unimport it", kolo.ErrArgument)
		} else if _, err = d.blocks.Remove(m); err == nil {
			raw = d.raw[m.Addr]
			delete(d.raw, m.Addr)
			d.used -= m.Size
		}
	}
	gone := d.lost != nil
	v.mu.Unlock()
	if err == nil && !gone {
		err = d.do(func() error { return v.lib.call(fnFree, raw) }, nil)
	}
	if err != nil {
		return d.error("free", err)
	}
	return nil
}

func (d *device) NewStream(cfg npu.StreamConfig) (npu.Stream, error) {
	s := &stream{d: d, priority: cfg.Priority}
	if err := d.newStream(s, cfg.Name); err != nil {
		return nil, d.error("new stream", err)
	}
	return s, nil
}

func (d *device) newStream(s *stream, name string) error {
	v := d.v
	v.mu.Lock()
	err := d.trouble()
	if err == nil && len(d.streams) >= maxStreams {
		err = fmt.Errorf("%w: %d streams are open; close some", kolo.ErrLimit, len(d.streams))
	}
	if s.name = name; name == "" {
		s.name = fmt.Sprintf("stream %d", d.made)
	}
	s.who = fmt.Sprintf("stream %q of device %d", s.name, d.index)
	d.made++
	v.mu.Unlock()
	if err == nil {
		err = d.do(s.create, s.destroy)
	}
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.closed {
		return d.trouble()
	}
	d.streams = append(d.streams, s)
	return nil
}

func (d *device) NewEvent(name string) (npu.Event, error) {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	if err := d.newHandle(); err != nil {
		return nil, d.error("new event", err)
	}
	return &event{d: d, mark: npu.Mark{Name: name}}, nil
}

func (d *device) NewNotify(name string) (npu.Notify, error) {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	if err := d.newHandle(); err != nil {
		return nil, d.error("new notify", err)
	}
	return &notify{d: d, flag: npu.Flag{Name: name}}, nil
}

func (d *device) newHandle() error {
	if err := d.trouble(); err != nil {
		return err
	}
	if d.handles >= maxHandles {
		return fmt.Errorf("%w: %d events and notifies are open; close some", kolo.ErrLimit, d.handles)
	}
	d.handles++
	return nil
}

// Edge has no figures: AscendCL does not declare any.
func (d *device) Edge(s kolo.Space) (kolo.Edge, bool) {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	p := d.v.spaces[s]
	switch {
	case d.closed || d.closing:
	case s == kolo.HostSpace:
		return kolo.Edge{Link: kolo.LinkPCIe}, true
	case p == d:
		return kolo.Edge{Link: kolo.LinkSelf}, true
	case p != nil && d.canReach[p.index]:
		return kolo.Edge{Link: linkOf(d.links[p.index])}, true
	}
	return kolo.Edge{}, false
}

// linkOf is the link that bits of aclrtGetDevicesTopo stand for. What can be accessed
// and is not said to be behind PCIe is HCCS.
func linkOf(bits uint64) kolo.Link {
	switch {
	case bits&(topoHCCS|topoSIO|topoSwitch) != 0:
		return kolo.LinkHCCS
	case bits&(topoPIX|topoPHB|topoSYS) != 0:
		return kolo.LinkPCIe
	}
	return kolo.LinkHCCS
}

func (d *device) Health() npu.Health {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	h := npu.Health{Err: d.trouble(), Streams: len(d.streams), Buffers: len(d.blocks.All()), Used: d.used}
	for _, s := range d.streams {
		h.Tasks += s.queue.Len()
	}
	return h
}

func (d *device) Abort(cause error) {
	d.v.enter()
	defer d.v.leave()
	d.abort(cause)
}

func (d *device) abort(cause error) {
	for _, s := range d.streams {
		s.abort(cause)
	}
}

func (d *device) Close(ctx context.Context) error {
	v := d.v
	v.enter()
	if d.closed {
		v.leave()
		return d.end(ctx)
	}
	if !d.closing {
		d.closing = true
		cause := d.error("close", kolo.ErrClosed)
		if d.lost == nil {
			d.abort(cause)
		}
		v.cut(d, cause)
	}
	quiet := make(chan struct{})
	d.idle = append(d.idle, quiet)
	d.settle()
	v.leave()
	select {
	case <-quiet:
	case <-ctx.Done():
		select {
		case <-quiet: // there was nothing to wait for
		default:
			return d.error("close", fmt.Errorf("%w: waiting for what runs: %w", kolo.ErrCanceled, ctx.Err()))
		}
	}
	v.enter()
	if !d.closed {
		d.closed = true
		delete(v.spaces, d.info.Space)
		for _, s := range d.streams {
			s.closed = true
		}
		d.push(d.finish)
	}
	v.leave()
	return d.end(ctx)
}

// grace is how long the end of a device may take, whatever the context says: nothing
// is waited for in it but the library.
const grace = 5 * time.Second

// end waits until the device is given back.
func (d *device) end(ctx context.Context) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-d.ended:
		return nil
	case <-timer.C:
	}
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return d.error("close", fmt.Errorf("%w: the library does not give the device back: %w", kolo.ErrCanceled, ctx.Err()))
	}
}

// settle tells who waits that nothing is in flight. v.mu is held.
func (d *device) settle() {
	if len(d.idle) == 0 || d.users > 0 || slices.ContainsFunc(d.streams, func(s *stream) bool { return !s.queue.Idle() }) {
		return
	}
	for _, c := range d.idle {
		close(c)
	}
	d.idle = nil
}

// cut ends what streams of other devices have in flight with a device. v.mu is held.
func (v *Driver) cut(d *device, cause error) {
	for _, p := range v.open {
		if p == nil || p == d {
			continue
		}
		for _, s := range p.streams {
			if slices.ContainsFunc(s.flight, func(k *task) bool { return slices.Contains(k.parts, d) }) {
				p.push(func() { s.breakDown(cause) })
			}
		}
	}
}

// lose notes that the device cannot be relied on: everything on it ends, now.
func (d *device) lose(cause error) {
	v := d.v
	v.enter()
	defer v.leave()
	if d.lost != nil || d.closed {
		return
	}
	d.lost = d.error("lose", fmt.Errorf("%w: %w", npu.ErrLost, cause))
	for _, s := range d.streams {
		s.resolve(math.MaxUint64, d.lost)
		v.order.Fail(&s.queue, d.lost)
	}
	v.cut(d, d.lost)
}

// trouble says why the device cannot be used.
func (d *device) trouble() error {
	switch {
	case d.lost != nil && !d.closed:
		return d.lost
	case d.closing:
		return fmt.Errorf("%w: device %d", kolo.ErrClosed, d.index)
	}
	return nil
}

func (d *device) error(op string, err error) error {
	return &npu.Error{Op: op, Device: d.index, Err: err}
}

// leave takes a stream off the list.
func (d *device) leave(s *stream) {
	if i := slices.Index(d.streams, s); i >= 0 {
		d.streams = slices.Delete(d.streams, i, i+1)
	}
}

// address of host memory or of a device's.
func address(m kolo.Memory) uintptr {
	if m.Space != kolo.HostSpace {
		return uintptr(m.Addr)
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(m.Host)))
}
