//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// patrol is how often streams that do not move are asked about, and the longest that
// the report thread stays in the library.
const patrol = 100 * time.Millisecond

// healthEvery is how often DCMI is asked about a device.
const healthEvery = time.Second

// push gives the device's thread something to do. v.mu is held.
func (d *device) push(f func()) {
	d.commands = append(d.commands, f)
	d.v.wake = append(d.v.wake, d)
}

// callOut has f called by the goroutine that calls users. v.mu is held.
func (d *device) callOut(f func()) {
	d.calls = append(d.calls, f)
	d.v.wake = append(d.v.wake, d)
}

func (d *device) kick() {
	for _, c := range []chan struct{}{d.work, d.serve} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// do has f called by the device's thread and waits. If it takes longer than the
// driver's patience, undo is called after it, if it succeeds then.
func (d *device) do(f func() error, undo func()) error {
	var state atomic.Int32
	var err error
	done := make(chan struct{})
	d.v.enter()
	if d.closed || d.ending {
		err = d.trouble()
		d.v.leave()
		return err
	}
	d.push(func() {
		result := f()
		if errors.Is(result, npu.ErrLost) {
			d.lose(result)
		}
		if !state.CompareAndSwap(0, 1) {
			if result == nil && undo != nil {
				undo()
			}
			return
		}
		err = result
		close(done)
	})
	d.v.leave()
	timer := time.NewTimer(d.v.patience)
	defer timer.Stop()
	select {
	case <-done:
		return err
	case <-timer.C:
	}
	if state.CompareAndSwap(0, 2) {
		return fmt.Errorf("%w: the library has not answered in %v; what the device does is not known", kolo.ErrDeadline, d.v.patience)
	}
	<-done // the answer is here
	return err
}

// begin starts the goroutines of a device that was reserved.
func (d *device) begin() error {
	v := d.v
	begun := make(chan error, 1)
	d.info = npu.Info{Driver: v.Name(), Index: d.index, Space: npu.NewSpace()}
	go d.run(begun) // ends with finish, or at once with an error
	err := <-begun
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err != nil:
		v.open[d.index] = nil
	case v.closed:
		d.closed, d.closing = true, true
		d.commands = append(d.commands, d.finish)
		d.kick()
		return kolo.ErrClosed
	default:
		v.spaces[d.info.Space] = d
	}
	return err
}

// run is the device's thread.
func (d *device) run(begun chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.start(); err != nil {
		begun <- err
		return
	}
	go d.callUsers() // ends when run does
	begun <- nil
	ticker := time.NewTicker(patrol)
	defer ticker.Stop()
	for !d.finishing {
		d.v.mu.Lock()
		list := d.commands
		d.commands = nil
		d.v.mu.Unlock()
		for _, f := range list {
			f()
		}
		if len(list) > 0 {
			continue
		}
		select {
		case <-d.work:
		case <-ticker.C:
			d.look()
		}
	}
	d.v.enter()
	d.v.open[d.index] = nil
	d.ending = true
	list := d.commands // of calls that came too late
	d.commands = nil
	d.v.wake = append(d.v.wake, d)
	d.v.leave()
	for _, f := range list {
		f()
	}
}

// start makes the device current on this thread and starts the report thread.
func (d *device) start() error {
	lib := d.v.lib
	if err := lib.call(fnSetDevice, uintptr(d.index)); err != nil {
		return err
	}
	var err error
	if d.context, err = lib.made(fnGetCurrentContext, 0, 0); err != nil {
		return d.backOut(err)
	}
	if d.service, err = lib.made(fnCreateStream, 0, 0); err != nil {
		return d.backOut(err)
	}
	d.info.Name = lib.socName()
	d.info.Memory, _ = lib.memory() // 0 is unknown
	d.canReach, d.links = make([]bool, d.v.count), make([]uint64, d.v.count)
	for i := range d.v.count {
		if i != d.index {
			d.canReach[i], _ = lib.reaches(d.index, i) // one that cannot be asked about is not reached
			d.links[i] = lib.topo(d.index, i)
		}
	}
	numbered, subscribed := make(chan uintptr), make(chan struct{})
	go d.report(numbered, subscribed) // ends with stopReports
	d.reporter = <-numbered
	err = lib.call(fnSubscribeReport, d.reporter, d.service)
	close(subscribed)
	if err != nil {
		d.stopReports()
		return d.backOut(err)
	}
	return nil
}

func (d *device) backOut(err error) error {
	if d.service != 0 {
		_ = d.v.lib.call(fnDestroyStream, d.service) // err is told
	}
	_ = d.v.lib.call(fnResetDevice, uintptr(d.index))
	return err
}

// report is the report thread: the library calls back from it.
func (d *device) report(numbered chan<- uintptr, subscribed <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(d.reported)
	lib := d.v.lib
	err := lib.call(fnSetCurrentContext, d.context)
	numbered <- lib.thread()
	<-subscribed
	for !d.stopping.Load() {
		if err == nil {
			err = lib.call(fnProcessReport, uintptr(patrol.Milliseconds()))
		}
		var e *Error
		switch {
		case err == nil || errors.As(err, &e) && ClassOf(e.Code) == Timeout:
		case errors.Is(err, npu.ErrLost):
			d.lose(err)
			<-d.stop // nothing more is to come
		default: // the patrol sees what does not move; this loop must not spin
			select {
			case <-d.stop:
			case <-time.After(patrol / 10):
			}
		}
		err = nil
	}
}

// stopReports ends the report thread, by a last callback: then nothing of the service
// stream is left behind.
func (d *device) stopReports() {
	close(d.stop)
	r := reports()
	if d.usable() {
		token := r.expect(func() { d.stopping.Store(true) })
		err := d.v.lib.call(fnLaunchCallback, r.entry, token, notBlocking, d.service)
		if err == nil {
			timer := time.NewTimer(grace)
			defer timer.Stop()
			select {
			case <-d.reported:
				return
			case <-timer.C:
			}
		}
		r.forget(token)
	}
	d.stopping.Store(true)
	<-d.reported
}

// usable says whether the library may still be asked about the device.
func (d *device) usable() bool {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	return d.lost == nil
}

// callUsers calls what users gave, one after the other.
func (d *device) callUsers() {
	for {
		d.v.mu.Lock()
		list := d.calls
		d.calls = nil
		ending := d.ending
		d.v.mu.Unlock()
		for _, f := range list {
			f()
		}
		if len(list) > 0 {
			continue
		}
		if ending {
			close(d.ended)
			return
		}
		<-d.serve
	}
}

// look asks about streams that have not moved since it last did, and about the
// device's health.
func (d *device) look() {
	v := d.v
	v.mu.Lock()
	var still []*stream
	for _, s := range d.streams {
		if len(s.flight) > 0 && s.reached == s.seen {
			still = append(still, s)
		}
		s.seen = s.reached
	}
	skip := d.lost != nil || d.closed
	v.mu.Unlock()
	if skip {
		return
	}
	for _, s := range still {
		if s.handle == 0 {
			continue
		}
		if _, err := v.lib.streamIdle(s.handle); err != nil {
			s.failed(err)
		}
	}
	if len(still) > 0 {
		if ok, err := v.lib.deviceNormal(d.index); err == nil && !ok {
			d.lose(errors.New("aclrtQueryDeviceStatus says that it is abnormal"))
		}
	}
	if v.dcmi != nil && time.Since(d.healthAt) >= healthEvery {
		d.healthAt = time.Now()
		if h, ok := v.dcmi.health(d.index); ok && h.Gone() {
			d.lose(fmt.Errorf("DCMI says that its health is %v", h))
		}
	}
}

// finish gives everything back. It is the last that the device's thread does.
func (d *device) finish() {
	lib := d.v.lib
	d.finishing = true
	if !d.usable() {
		d.stopReports()
		reset := fnResetDevice
		if lib.has(fnResetDeviceForce) {
			reset = fnResetDeviceForce
		}
		_ = lib.call(reset, uintptr(d.index)) // lost is lost
		return
	}
	d.v.mu.Lock()
	streams, raw, keys := d.streams, d.raw, d.keys
	d.streams, d.events, d.raw, d.keys, d.blocks, d.used = nil, nil, nil, nil, npu.Blocks{}, 0
	d.v.mu.Unlock()
	for _, s := range streams {
		s.destroy()
	}
	for e := range d.alive {
		_ = lib.call(fnDestroyEvent, e) // goes with the device
	}
	for _, k := range keys {
		_ = lib.call(fnIpcMemClose, uintptr(unsafe.Pointer(&k[0])))
	}
	for _, p := range raw {
		_ = lib.call(fnFree, p)
	}
	d.stopReports()
	_ = lib.call(fnUnSubscribeReport, d.reporter, d.service)
	_ = lib.call(fnDestroyStream, d.service)
	_ = lib.call(fnResetDevice, uintptr(d.index))
}
