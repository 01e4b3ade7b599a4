//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Sizes of the adapter's parts.
const (
	cqDepth   = 1 << 12 // completions that a queue holds, if the device can
	pollBatch = 32      // completions that are taken at a time
	sendDepth = 128     // requests of a queue pair that the device has at a time
	mostSGE   = 16      // pieces of a request
	inlineMax = 220     // bytes of a message that go with the request itself
	sendSlots = 16      // messages on their way, of a queue pair
)

// New makes the driver of one process over an RDMA adapter. The name "verbs" opens it
// with what ConfigFromEnv makes of channel.Config.Getenv, or an empty Config.
func New(c channel.Config, cfg Config) (*roce.Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	a, err := open(cfg)
	if err != nil {
		return nil, err
	}
	cfg.MTU = min(max(cfg.MTU, 0), a.mtu)
	return roce.NewOver(c, cfg.Config, a)
}

// adapter is a port of a device, a roce.Adapter.
type adapter struct {
	lib   *library
	cfg   Config
	port  Port
	gid   GID
	mtu   int
	limit abiDeviceAttr

	context, pd, channel uintptr
	ops                  struct{ poll, notify, send, recv uintptr }
	async, events, bell  int // file descriptors: the device's, the channel's, of Interrupt
	cache                cache
	notes                atomic.Pointer[error] // the first thing that cannot be helped

	mu     sync.Mutex
	cqs    []*completions
	queues map[uint32]*queue // by serial
	serial uint32
	arenas map[int][]*arena
}

// completions is a completion queue, which several queue pairs share.
type completions struct {
	cq   uintptr
	room int         // for completions of further queue pairs
	busy atomic.Bool // somebody polls; what is below is his
	wcs  [pollBatch]abiWC
}

// open opens the device that the configuration means, and checks it.
func open(cfg Config) (*adapter, error) {
	lib, err := load(cfg.places())
	if err != nil {
		return nil, err
	}
	ports, err := Ports(cfg.Sys)
	if err != nil {
		return nil, fmt.Errorf("verbs: RDMA devices: %w", err)
	}
	a := &adapter{lib: lib, cfg: cfg, bell: -1, queues: map[uint32]*queue{}, arenas: map[int][]*arena{}}
	a.cache = cache{a: a, limit: cfg.Cache, list: map[span]*entry{}}
	if a.port, a.gid, err = cfg.choose(ports); err != nil {
		return nil, err
	}
	if err := a.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: %s port %d by %s: %w", a.port.Device, a.port.Number, lib.file, err), a.Close())
	}
	return a, nil
}

// start makes what the adapter consists of.
func (a *adapter) start() (err error) {
	found := false
	if err := a.lib.devices(func(device uintptr, name string) bool {
		if name != a.port.Device {
			return true
		}
		found = true
		a.context, err = a.lib.make(fnOpenDevice, device)
		return false
	}); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: the system has this device and libibverbs does not: is its provider installed (Debian: ibverbs-providers) and the module ib_uverbs loaded?", kolo.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	if err := a.inspect(); err != nil {
		return err
	}
	if a.pd, err = a.lib.make(fnAllocPD, a.context); err != nil {
		return err
	}
	if a.channel, err = a.lib.make(fnCreateChannel, a.context); err != nil {
		return err
	}
	a.events = int(view[abiChannel](a.channel).fd)
	if a.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	for _, fd := range []int{a.events, a.async} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return fmt.Errorf("%w: descriptor %d of the library: %w", errABI, fd, err)
		}
	}
	return a.try()
}

// errABI says that what the library gives is not what this package takes it for.
var errABI = fmt.Errorf("%w: this libibverbs is not as its ABI was in rdma-core 17 to 44, so it is not used", kolo.ErrUnsupported)

// inspect reads and checks the device, its port and its GID.
func (a *adapter) inspect() error {
	x := view[abiContext](a.context)
	a.ops.poll, a.ops.notify, a.ops.send, a.ops.recv = x.pollCQ, x.notifyCQ, x.postSend, x.postRecv
	a.async = int(x.asyncFD)
	code := 0
	for m := range mappings() {
		for _, p := range []uintptr{x.pollCQ, x.notifyCQ, x.postSend, x.postRecv} {
			if m.low <= p && p < m.high && len(m.mode) > 2 && m.mode[2] == 'x' {
				code++
			}
		}
	}
	if code != 4 {
		return fmt.Errorf("%w: %d of 4 functions of a device's context are code", errABI, code)
	}
	if err := a.lib.call(fnQueryDevice, a.context, uintptr(unsafe.Pointer(&a.limit))); err != nil {
		return err
	}
	if l := &a.limit; l.maxQP <= 0 || l.maxQPWR <= 0 || l.maxSGE <= 0 || l.maxCQE <= 0 || l.ports == 0 || int(l.ports) < a.port.Number {
		return fmt.Errorf("%w: its limits make no sense: %+v", errABI, *l)
	}
	var p abiPortAttr
	if err := a.lib.call(fnQueryPort, a.context, uintptr(a.port.Number), uintptr(unsafe.Pointer(&p))); err != nil {
		return err
	}
	switch {
	case p.state != portActive:
		return fmt.Errorf("%w: the port is not active (state %d)", kolo.ErrUnsupported, p.state)
	case p.layer != layerEthernet:
		return fmt.Errorf("%w: the port's link layer is %d, not Ethernet (2): this driver speaks RoCE v2", kolo.ErrUnsupported, p.layer)
	case p.activeMTU < 1 || p.activeMTU > 5 || p.activeMTU > p.maxMTU:
		return fmt.Errorf("%w: its MTU is %d of at most %d", errABI, p.activeMTU, p.maxMTU)
	}
	a.mtu = 128 << p.activeMTU
	gid := new([16]byte)
	if err := a.lib.call(fnQueryGID, a.context, uintptr(a.port.Number), uintptr(a.gid.Index), uintptr(unsafe.Pointer(gid))); err != nil {
		return err
	}
	if got := gidAddr(*gid); got != a.gid.Addr {
		return fmt.Errorf("%w: GID %d is %v by the library and %v by sysfs", errABI, a.gid.Index, got, a.gid.Addr)
	}
	return nil
}

// try makes a queue pair and a region, compares their fields with what is known, and
// gives them back.
func (a *adapter) try() error {
	q, err := a.NewQueue(roce.QueueConfig{Messages: 1, Room: 64, Wake: func() {}})
	if err != nil {
		return err
	}
	defer q.Fail()
	qp := view[abiQP](q.(*queue).qp)
	cq := view[abiCQ](qp.sendCQ)
	mr := view[abiMR](q.(*queue).arena.mr)
	b := q.(*queue).arena.memory
	ch := view[abiChannel](a.channel)
	switch {
	case qp.context != a.context || qp.pd != a.pd || qp.sendCQ != q.(*queue).cq.cq || qp.recvCQ != qp.sendCQ || qp.number >= 1<<24 || qp.kind != typeRC:
		return fmt.Errorf("%w: a queue pair is %+v", errABI, *qp)
	case cq.context != a.context || cq.channel != a.channel || int(cq.cqe) < 1:
		return fmt.Errorf("%w: a completion queue is %+v", errABI, *cq)
	case mr.context != a.context || mr.pd != a.pd || mr.addr != uintptr(unsafe.Pointer(&b[0])) || mr.length != uintptr(len(b)):
		return fmt.Errorf("%w: a memory region is %+v", errABI, *mr)
	case ch.context != a.context:
		return fmt.Errorf("%w: a completion channel is %+v", errABI, *ch)
	}
	c := q.(*queue).cq
	if n := a.poll(c); n != 0 {
		return fmt.Errorf("%w: %d completions of a queue pair that was never used", errABI, n)
	}
	return a.notify(c)
}

// Addr is the address of the GID.
func (a *adapter) Addr() netip.Addr { return a.gid.Addr }

// MTU is the active MTU of the port.
func (a *adapter) MTU() int { return a.mtu }

// note keeps the first error that nobody else can be told; Close gives it.
func (a *adapter) note(err error) { a.notes.CompareAndSwap(nil, &err) }

// poll takes what a completion queue has, which the caller has made busy; negative is an
// error.
func (a *adapter) poll(c *completions) int {
	r, _, _ := purego.SyscallN(a.ops.poll, c.cq, pollBatch, uintptr(unsafe.Pointer(&c.wcs)))
	return int(int32(r))
}

// notify arms a completion queue: its next completion makes an event.
func (a *adapter) notify(c *completions) error {
	r, _, _ := purego.SyscallN(a.ops.notify, c.cq, 0)
	if r = uintptr(int32(r)); r != 0 {
		return &callError{"ibv_req_notify_cq", unix.Errno(r)}
	}
	return nil
}

// list are the completion queues.
func (a *adapter) list() []*completions {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cqs
}

// Look takes completions and wakes those whose they are.
func (a *adapter) Look() (found bool) {
	for _, c := range a.list() {
		if !c.busy.CompareAndSwap(false, true) {
			continue
		}
		n := a.poll(c)
		if n < 0 {
			a.failAll(errors.New("ibv_poll_cq fails"))
		}
		wake := a.sort(c.wcs[:max(0, n)])
		c.busy.Store(false)
		for _, q := range wake {
			q.cfg.Wake()
		}
		found = found || n > 0
	}
	return found
}

// sort gives completions to their queue pairs, and says whom to wake. Those of queue
// pairs that have ended are dropped.
func (a *adapter) sort(list []abiWC) (wake []*queue) {
	for len(list) > 0 {
		serial, n := uint32(list[0].id>>32), 1
		for n < len(list) && uint32(list[n].id>>32) == serial {
			n++
		}
		a.mu.Lock()
		q := a.queues[serial]
		a.mu.Unlock()
		if q != nil && q.arrive(list[:n]) {
			wake = append(wake, q)
		}
		list = list[n:]
	}
	return wake
}

// Wait arms the completion queues and waits for an event.
func (a *adapter) Wait() error {
	for _, c := range a.list() {
		if err := a.notify(c); err != nil {
			return err
		}
	}
	if a.Look() { // what came before they were armed makes no event
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(a.bell), Events: unix.POLLIN}, {Fd: int32(a.events), Events: unix.POLLIN}, {Fd: int32(a.async), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, -1); err != nil {
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return os.NewSyscallError("poll", err)
	}
	if fds[0].Revents != 0 {
		var count [8]byte
		if _, err := unix.Read(a.bell, count[:]); err != nil {
			return os.NewSyscallError("read of an eventfd", err)
		}
	}
	if fds[1].Revents != 0 {
		a.acknowledge()
	}
	if fds[2].Revents != 0 {
		a.happened()
	}
	return nil
}

// acknowledge takes the events of completion queues; all queues are looked at anyway.
func (a *adapter) acknowledge() {
	out := new([2]uintptr) // the queue, and its context
	for {
		r, _, _ := purego.SyscallN(a.lib.fns[fnGetCQEvent], a.channel, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
		if int32(r) != 0 {
			return
		}
		purego.SyscallN(a.lib.fns[fnAckCQEvents], out[0], 1)
	}
}

// happened takes the events of the device: those that end queue pairs or the device
// itself end links. A port that goes down does not: requests are repeated until it is up
// again, or the retries are over.
func (a *adapter) happened() {
	e := new(abiAsyncEvent)
	for {
		r, _, _ := purego.SyscallN(a.lib.fns[fnGetAsyncEvent], a.context, uintptr(unsafe.Pointer(e)))
		if int32(r) != 0 {
			return
		}
		err := fmt.Errorf("%s: %s", a.port.Device, a.lib.event(e.kind))
		element, kind := e.element, e.kind
		purego.SyscallN(a.lib.fns[fnAckAsyncEvent], uintptr(unsafe.Pointer(e)))
		switch kind {
		case eventQPFatal, eventQPRequest, eventQPAccess:
			a.mu.Lock()
			var q *queue
			for _, x := range a.queues {
				if x.qp == element {
					q = x
				}
			}
			a.mu.Unlock()
			if q != nil && q.fault(err) {
				q.cfg.Wake()
			}
		case eventCQ, eventDeviceFatal:
			a.failAll(err)
		}
	}
}

// failAll breaks every queue pair.
func (a *adapter) failAll(err error) {
	a.mu.Lock()
	all := make([]*queue, 0, len(a.queues))
	for _, q := range a.queues {
		all = append(all, q)
	}
	a.mu.Unlock()
	for _, q := range all {
		if q.fault(err) {
			q.cfg.Wake()
		}
	}
}

// Interrupt ends Wait, or the next one.
func (a *adapter) Interrupt() {
	if _, err := unix.Write(a.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		a.note(os.NewSyscallError("write to an eventfd", err))
	}
}

// reserve is a completion queue with room for n completions of a queue pair.
func (a *adapter) reserve(n int) (*completions, error) {
	a.mu.Lock()
	for _, c := range a.cqs {
		if c.room >= n {
			c.room -= n
			a.mu.Unlock()
			return c, nil
		}
	}
	a.mu.Unlock()
	depth := min(max(cqDepth, 2*n), int(a.limit.maxCQE))
	if depth < n {
		return nil, fmt.Errorf("%w: %d completions, and the device has completion queues of %d", kolo.ErrLimit, n, depth)
	}
	cq, err := a.lib.make(fnCreateCQ, a.context, uintptr(depth), 0, a.channel, 0)
	if err != nil {
		return nil, err
	}
	c := &completions{cq: cq, room: depth - depth/8 - n} // an eighth for what ended queue pairs leave
	a.mu.Lock()
	a.cqs = append(a.cqs[:len(a.cqs):len(a.cqs)], c)
	a.mu.Unlock()
	a.Interrupt() // so that it is armed
	return c, nil
}

// Close gives all back. The queue pairs have failed.
func (a *adapter) Close() error {
	var errs []error
	if p := a.notes.Load(); p != nil {
		errs = append(errs, *p)
	}
	a.cache.shrink(-1)
	for _, list := range a.arenas {
		for _, x := range list {
			errs = append(errs, a.lib.call(fnDeregMR, x.mr), unix.Munmap(x.memory))
		}
	}
	for _, c := range a.cqs {
		errs = append(errs, a.lib.call(fnDestroyCQ, c.cq))
	}
	for _, x := range []struct {
		f fn
		p uintptr
	}{{fnDestroyChannel, a.channel}, {fnDeallocPD, a.pd}, {fnCloseDevice, a.context}} {
		if x.p != 0 {
			errs = append(errs, a.lib.call(x.f, x.p))
		}
	}
	if a.bell >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(a.bell)))
	}
	a.context, a.pd, a.channel, a.bell, a.cqs, a.arenas = 0, 0, 0, -1, nil, nil
	return errors.Join(errs...)
}

// arena is memory for the messages of a queue pair. It is used again after that, and
// given back at Close.
type arena struct {
	memory []byte
	mr     uintptr
	lkey   uint32
}

// arena is one of n bytes.
func (a *adapter) arena(n int) (*arena, error) {
	size := 1 << bits.Len(uint(max(n, os.Getpagesize())-1))
	a.mu.Lock()
	if list := a.arenas[size]; len(list) > 0 {
		x := list[len(list)-1]
		a.arenas[size] = list[:len(list)-1]
		a.mu.Unlock()
		return x, nil
	}
	a.mu.Unlock()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	mr, err := a.lib.make(fnRegMR, a.pd, uintptr(unsafe.Pointer(&b[0])), uintptr(size), accessLocalWrite)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register %d bytes: %w", size, err), unix.Munmap(b))
	}
	return &arena{b, mr, view[abiMR](mr).lkey}, nil
}
