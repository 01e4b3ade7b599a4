package driver_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
	"github.com/kolo-ccl/kolo/npu/nputest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is the least that a driver can be: its devices are memory of the host, and one
// goroutine does everything in the order in which it may begin.
type plain struct {
	core  *driver.Core
	tasks chan *work
	ended sync.WaitGroup
	once  sync.Once
	start time.Time
	edges bool // whether the devices reach each other

	refuse error // what the hardware says to Alloc and NewStream
}

// work is a task.
type work struct {
	driver.Task
	do func() error
}

// place is a device.
type place struct {
	*driver.Device
	p     *plain
	arena *npu.Arena
}

// line is a stream.
type line struct{ *driver.Stream }

const plainMemory = 1 << 30

func newPlain(devices int) *plain {
	p := &plain{tasks: make(chan *work, 1<<16), start: time.Now(), edges: true}
	p.core = driver.New(driver.Config{Name: "plain", Devices: devices, Streams: 64, Handles: 512}, p)
	p.ended.Go(p.run) // ends with Close
	return p
}

func (p *plain) Name() string { return "plain" }

func (p *plain) Devices() int { return p.core.Devices() }

func (p *plain) Open(index int) (npu.Device, error) {
	d, err := p.core.Reserve(index)
	if err != nil {
		return nil, err
	}
	x := &place{d, p, npu.NewArena(1<<20, plainMemory)}
	if err := p.core.Admit(d, npu.Info{Memory: x.arena.Size()}, x); err != nil {
		return nil, err
	}
	return d, nil
}

func (p *plain) Close(ctx context.Context) error {
	err := p.core.Close(ctx)
	if err == nil {
		p.once.Do(func() { close(p.tasks) })
		p.ended.Wait()
	}
	return err
}

func (p *plain) run() {
	ended := false
	defer func() {
		if !ended { // a callback has ended the goroutine
			p.ended.Go(p.run) // ends with Close
		}
	}()
	for k := range p.tasks {
		switch {
		case k.Kind == npu.TaskCall && !k.Syncs():
			k.Call(func(err error) { p.end(k, err) })
		case k.do != nil:
			err := driver.Protect(k.do)
			if err != nil {
				err = k.Stream.Error(k.Op, err)
			}
			p.end(k, err)
		default:
			p.end(k, nil)
		}
	}
	ended = true
}

func (p *plain) end(k *work, err error) {
	if k.Own == nil { // no task: somebody was told of a loss
		return
	}
	p.core.Enter()
	defer p.core.Leave()
	if k.Kind == npu.TaskRecord && k.Mark.Latest(&k.Task.Task) {
		k.Event.Stamp = time.Since(p.start)
	}
	k.End(err)
}

func (p *plain) Enter() time.Duration { return time.Since(p.start) }

func (p *plain) Leave() {}

func (p *plain) NewTask() *driver.Task {
	k := &work{}
	k.Own = k
	return &k.Task
}

func (p *plain) Begin(t *driver.Task) { p.tasks <- t.Own.(*work) }

func (d *place) Alloc(size int64) (*npu.Block, error) {
	d.p.core.Lock()
	defer d.p.core.Unlock()
	if d.p.refuse != nil {
		return nil, d.p.refuse
	}
	addr, err := d.arena.Alloc(size)
	return &npu.Block{Addr: addr, Size: size, Data: make([]byte, size)}, err
}

func (d *place) Free(b *npu.Block) error {
	d.p.core.Lock()
	defer d.p.core.Unlock()
	return d.arena.Free(b.Addr)
}

func (d *place) NewStream(s *driver.Stream) (driver.StreamHooks, error) {
	return line{s}, d.p.refuse
}

func (d *place) Edge(to *driver.Device) (kolo.Edge, bool) {
	return kolo.Edge{}, to == nil || to == d.Device || d.p.edges
}

func (d *place) Since(earlier, later *driver.Event) func() (time.Duration, error) {
	return func() (time.Duration, error) { return later.Stamp - earlier.Stamp, nil }
}

func (d *place) CloseEvent(*driver.Event) {}

func (d *place) Cut(error) {}

func (d *place) Lose(error) {}

func (d *place) Tell(f func()) { d.p.tasks <- &work{do: func() error { f(); return nil }} }

func (d *place) Finish([]*driver.Stream, []*npu.Block) { d.p.core.Vacate(d.Device) }

func (d *place) Wait(context.Context) error { return nil }

func (line) Copy(t *driver.Task, dst, src driver.Place) error {
	to, from := dst.Bytes(), src.Bytes()
	t.Own.(*work).do = func() error {
		copy(to, from)
		return nil
	}
	return nil
}

func (line) Reduce(t *driver.Task, dst, src driver.Place, d kolo.DType, op kolo.ReduceOp) error {
	to, from := dst.Bytes(), src.Bytes()
	t.Own.(*work).do = func() error {
		kernel.OpOf(d, op, 1).Accumulate(to, from)
		return nil
	}
	return nil
}

func (line) Launch(t *driver.Task, k npu.Kernel, args []driver.Place) error {
	bytes := make([][]byte, len(args))
	for i := range args {
		bytes[i] = args[i].Bytes()
	}
	if k.Host != nil {
		t.Own.(*work).do = func() error { return k.Host(bytes) }
	}
	return nil
}

func (line) Abort(error) {}

func (line) Close() {}

// spread is an engine that does jobs at once.
type spread struct{ core *driver.Core }

func (e spread) Start(t channel.Turn, j *channel.Job, ended func()) {
	e.core.Lock()
	var err error
	for _, p := range j.Parts {
		var lists [2][][]byte
		for i, list := range [][]kolo.Memory{p.Dst, p.Src} {
			for _, m := range list {
				var at driver.Place
				if at, err = e.core.Locate(m); err != nil {
					break
				}
				lists[i] = append(lists[i], at.Bytes())
			}
		}
		if err == nil {
			j.Op.Spread(lists[0], lists[1])
		}
	}
	e.core.Unlock()
	if err != nil {
		err = fmt.Errorf("a move: %w", err)
	}
	j.Done(t, err)
	ended()
}

func (e spread) Close() {}

// A third driver passes the kit with what is above.
func TestThirdDriver(t *testing.T) {
	nputest.Run(t, func(testing.TB) npu.Driver { return newPlain(2) })
}

// opened is a plain driver with its devices open.
func opened(t *testing.T, devices int) (*plain, []npu.Device) {
	t.Helper()
	p := newPlain(devices)
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var list []npu.Device
	for i := range devices {
		d, err := p.Open(i)
		require.NoError(t, err)
		list = append(list, d)
	}
	return p, list
}

// late counts the jobs that reach a driver after its part of the engine was closed.
type late struct {
	closed atomic.Bool
	after  atomic.Int64
}

func (e *late) Start(t channel.Turn, j *channel.Job, ended func()) {
	if e.closed.Load() {
		e.after.Add(1)
	}
	j.Done(t, nil)
	ended()
}

func (e *late) Close() { e.closed.Store(true) }

// A job that comes while the engine is closed is done or refused; none comes to the
// driver after that.
func TestEngineClosedWhileJobsCome(t *testing.T) {
	p, _ := opened(t, 1)
	for range 500 {
		hooks := &late{}
		e := p.core.Engine(nil, hooks)
		var starters sync.WaitGroup
		for range 2 {
			starters.Go(func() {
				for refused := false; !refused; {
					j := &channel.Job{Done: func(_ channel.Turn, err error) {
						if refused = err != nil; refused && !errors.Is(err, kolo.ErrClosed) {
							t.Error(err)
						}
					}}
					part := j.Add()
					part.Dst = append(part.Dst, kolo.Memory{Space: 1 << 30, Size: 8})
					e.Start(nil, j)
				}
			})
		}
		runtime.Gosched()
		e.Close()
		starters.Wait()
		require.Zero(t, hooks.after.Load(), "jobs that came to the driver after its end")
	}
}
