//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// patrol is how often streams that do not move are asked about, and the longest that
// the report thread stays in the library.
const patrol = 100 * time.Millisecond

// healthEvery is how often DCMI is asked about a device.
const healthEvery = time.Second

// push gives the device's thread something to do. The lock is held.
func (d *device) push(f func()) {
	d.commands = append(d.commands, f)
	wake(d.work)
}

// callOut has f called by the goroutine that calls users. The lock is held.
func (d *device) callOut(f func()) {
	d.calls = append(d.calls, f)
	wake(d.serve)
}

// wake tells a goroutine that there is something to do. It does not wait.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// do has f called by the device's thread and waits. If it takes longer than the
// driver's patience, undo is called after it, if it succeeds then.
func (d *device) do(f func() error, undo func()) error {
	var state atomic.Int32
	var err error
	done := make(chan struct{})
	d.v.core.Lock()
	if d.Closed() || d.ending {
		err = d.Trouble()
		d.v.core.Unlock()
		return err
	}
	d.push(func() {
		result := f()
		d.loses(result)
		if !state.CompareAndSwap(0, 1) {
			if result == nil && undo != nil {
				undo()
			}
			return
		}
		err = result
		close(done)
	})
	d.v.core.Unlock()
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

// begin starts the goroutines of a device that was reserved, and lets users have it.
func (d *device) begin() error {
	v := d.v
	begun := make(chan error, 1)
	go d.run(begun) // ends with finish, or at once with an error
	if err := <-begun; err != nil {
		v.core.Lock()
		defer v.core.Unlock()
		v.core.Vacate(d.Device)
		return d.Error("open", err)
	}
	err := v.core.Admit(d.Device, npu.Info{Name: d.name, Memory: d.memory}, d)
	if err != nil { // the driver was closed meanwhile: nobody else waits for the goroutines
		v.core.Lock()
		d.Finish(nil, nil)
		v.core.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), v.patience)
		defer cancel()
		err = errors.Join(err, d.Wait(ctx))
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
		d.v.core.Lock()
		list := d.commands
		d.commands = nil
		d.v.core.Unlock()
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
	d.v.core.Lock()
	d.v.core.Vacate(d.Device)
	d.ending = true
	list := d.commands // of calls that came too late
	d.commands = nil
	wake(d.serve)
	d.v.core.Unlock()
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
	d.name = lib.socName()
	d.memory, _ = lib.memory() // 0 is unknown
	d.canReach, d.links = make([]bool, d.v.core.Devices()), make([]kolo.Link, d.v.core.Devices())
	for i := range d.v.core.Devices() {
		if i != d.index {
			d.canReach[i], _ = lib.reaches(d.index, i) // one that cannot be asked about is not reached
			d.links[i] = d.v.link(d.index, i)
		}
	}
	numbered, subscribed := make(chan uintptr), make(chan struct{})
	go d.report(numbered, subscribed) // ends with stopReports
	d.reporter = <-numbered
	err = lib.call(fnSubscribeReport, d.reporter, d.service)
	close(subscribed)
	if err != nil {
		d.stopping.Store(true) // no callback comes from a stream that nobody has subscribed
		close(d.stop)
		<-d.reported
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
		case d.loses(err):
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

// callUsers calls what users gave, one after the other.
func (d *device) callUsers() {
	ended := false
	defer func() {
		if !ended { // one of them has ended the goroutine
			go d.callUsers() // ends when run does
		}
	}()
	for {
		d.v.core.Lock()
		var f func()
		if len(d.calls) > 0 {
			f = d.calls[0]
			d.calls[0] = nil
			d.calls = d.calls[1:]
		}
		ended = f == nil && d.ending
		d.v.core.Unlock()
		switch {
		case f != nil:
			f()
		case ended:
			close(d.ended)
			return
		default:
			<-d.serve
		}
	}
}

// look asks about streams that have not moved since it last did, and about the
// device's health.
func (d *device) look() {
	v := d.v
	v.core.Lock()
	var still []*stream
	for _, x := range d.Streams() {
		s := streamOf(x)
		if len(s.flight) > 0 && s.reached == s.seen {
			still = append(still, s)
		}
		s.seen = s.reached
	}
	skip := d.Lost() != nil || d.Closed()
	v.core.Unlock()
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
func (d *device) finish(streams []*driver.Stream, blocks []*npu.Block) {
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
	for _, s := range streams {
		streamOf(s).destroy()
	}
	for e := range d.alive {
		_ = lib.call(fnDestroyEvent, e) // goes with the device
	}
	for _, b := range blocks {
		if a := b.Own.(allocation); b.Imported {
			_ = lib.call(fnIpcMemClose, uintptr(unsafe.Pointer(&a.key[0])))
		} else {
			_ = lib.call(fnFree, a.raw)
		}
	}
	d.stopReports()
	_ = lib.call(fnUnSubscribeReport, d.reporter, d.service)
	_ = lib.call(fnDestroyStream, d.service)
	_ = lib.call(fnResetDevice, uintptr(d.index))
}
