//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// engine moves and folds the memory of a driver's devices, and that of the host
// between them.
type engine struct {
	v *Driver

	mu    sync.Mutex
	lanes map[lanePlace][]*lane // that are free
}

// lanePlace is what lanes are alike in.
type lanePlace struct {
	d        *device
	priority int
}

// lane is a stream of a device with memory to fold in. It serves one job at a time.
type lane struct {
	lanePlace
	s       npu.Stream
	scratch kolo.Memory // of the device
	fold    [][]byte    // of the host: the operands, at first use
}

// laneScratch is the memory of a lane, on the device and for each operand on the host.
const laneScratch = 1 << 20

// Engine makes an engine of the driver's devices. Jobs of host memory alone are given
// to host, which stays its maker's to close; with a nil host they are done at once.
//
// A part with one source is copied, by a stream of the device that the destination is
// on. Several sources are folded by that device where the bits are those of the host:
// sums, maxima and minima of integers and sums of float32, left to right. Everything
// else is brought to the host, folded there as the host folds, and brought back. A
// part with destinations on several devices is divided between them. Done comes on the
// goroutine that a device has for calls, or at once if the job cannot be begun.
func (v *Driver) Engine(host channel.Engine) *driver.Engine {
	return v.core.Engine(host, &engine{v: v, lanes: map[lanePlace][]*lane{}})
}

// Close gives the streams back.
func (e *engine) Close() {
	e.mu.Lock()
	lanes := e.lanes
	e.lanes = map[lanePlace][]*lane{}
	e.mu.Unlock()
	for _, list := range lanes {
		for _, l := range list {
			l.close()
		}
	}
}

// close gives a lane back; a device that is closed or lost has it already. The callback
// that ended the lane's last job may not have returned: that is waited for.
func (l *lane) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.d.v.patience)
	defer cancel()
	_ = l.s.Sync(ctx) // Close tells
	_ = l.s.Close()
	_ = l.d.Device.Free(l.scratch)
}

// Start begins a job.
func (e *engine) Start(t channel.Turn, j *channel.Job, ended func()) {
	r := &run{e: e, job: j, over: ended, lanes: map[*device]*lane{}}
	r.left.Store(1)
	var err error
	for i := range j.Parts {
		if err = r.part(&j.Parts[i]); err != nil {
			break
		}
	}
	r.finish(t, err)
}

// run is a job on its way.
type run struct {
	e     *engine
	job   *channel.Job
	over  func()
	lanes map[*device]*lane
	left  atomic.Int32 // lanes and callbacks that have not ended, and Start
	err   atomic.Pointer[error]
}

// part gives a part to the devices that its destinations are on, a share each.
func (r *run) part(p *channel.Part) error {
	n := p.Len()
	if n == 0 {
		return nil
	}
	var at []*device
	for _, list := range [][]kolo.Memory{p.Dst, p.Src} {
		for _, m := range list {
			d, err := r.device(m)
			if err != nil {
				return err
			}
			if d != nil && !slices.Contains(at, d) {
				at = append(at, d)
			}
		}
		if len(at) > 0 {
			break
		}
	}
	if len(at) == 0 { // of the host, in a job that is not
		return driver.Spread(r.job, p)
	}
	if r.job.Op.Copies(len(p.Src)) {
		return r.moves(p)
	}
	for i, d := range at {
		from, to := share(n, i, len(at)), share(n, i+1, len(at))
		if from < to {
			if err := r.share(d, p, from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// share is where the i-th of k shares of n bytes begins, at a multiple of what a
// device copies at.
func share(n int64, i, k int) int64 {
	if i == k {
		return n
	}
	return n * int64(i) / int64(k) &^ (copyAlignment - 1)
}

// device is where memory is, nil for the host.
func (r *run) device(m kolo.Memory) (*device, error) {
	r.e.v.core.Lock()
	defer r.e.v.core.Unlock()
	p, err := r.e.v.core.Locate(m)
	return own(p.Device), err
}

// moves copies the source to each destination, by the destination's device.
func (r *run) moves(p *channel.Part) error {
	src := p.Src[0]
	from, err := r.device(src)
	if err != nil {
		return err
	}
	for _, dst := range p.Dst {
		to, err := r.device(dst)
		if err != nil {
			return err
		}
		switch {
		case to == nil && from == nil:
			copy(dst.Host, src.Host)
			continue
		case to == nil:
			to = from
		case dst.Space == src.Space && dst.Addr == src.Addr:
			continue
		}
		l, err := r.lane(to)
		if err != nil {
			return err
		}
		if err := l.s.Copy(dst, src); err != nil {
			return err
		}
	}
	return nil
}

// share folds the bytes from to of a part on a device.
func (r *run) share(d *device, p *channel.Part, from, to int64) error {
	l, err := r.lane(d)
	if err != nil {
		return err
	}
	op := r.reduceOp()
	device := exact(r.job.Op) && !slices.ContainsFunc(p.Src, func(m kolo.Memory) bool { return m.Space == kolo.HostSpace })
	for at := from; at < to; at += laneScratch {
		n := min(laneScratch, to-at)
		piece := func(m kolo.Memory) kolo.Memory { return m.Slice(at, n) }
		if device {
			err = l.foldThere(p, piece, r.job.Op.DType, op)
		} else {
			err = r.foldHere(l, p, piece)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) reduceOp() kolo.ReduceOp { return kolo.ReduceOp{Kind: r.job.Op.Kind} }

// exact says whether aclrtReduceAsync, two operands at a time, gives the bits of the
// host. float16 and bfloat16 would be rounded at each step, and what the device makes
// of NaN in a maximum is not known.
func exact(op kernel.Op) bool {
	if _, _, ok := reduction(op.DType, kolo.ReduceOp{Kind: op.Kind}); !ok {
		return false
	}
	switch op.DType {
	case kolo.Float32:
		return op.Kind == kolo.OpSum
	case kolo.Int8, kolo.Int16, kolo.Int32:
		return true
	}
	return false
}

// foldThere folds on the device. The accumulator is the first source if it is a
// destination here, or scratch memory.
func (l *lane) foldThere(p *channel.Part, piece func(kolo.Memory) kolo.Memory, t kolo.DType, op kolo.ReduceOp) error {
	acc := l.scratch.Slice(0, piece(p.Src[0]).Len())
	own := -1
	for i, m := range p.Dst {
		if m.Space == l.d.Info().Space && m.Space == p.Src[0].Space && m.Addr == p.Src[0].Addr {
			own, acc = i, piece(m)
		}
	}
	if own < 0 {
		if err := l.s.Copy(acc, piece(p.Src[0])); err != nil {
			return err
		}
	}
	for _, m := range p.Src[1:] {
		if err := l.s.Reduce(acc, piece(m), t, op); err != nil {
			return err
		}
	}
	for i, m := range p.Dst {
		if i != own {
			if err := l.s.Copy(piece(m), acc); err != nil {
				return err
			}
		}
	}
	return nil
}

// foldHere brings the sources to the host, folds there, and brings the result to all
// destinations.
func (r *run) foldHere(l *lane, p *channel.Part, piece func(kolo.Memory) kolo.Memory) error {
	n := piece(p.Src[0]).Len()
	for len(l.fold) < len(p.Src) {
		l.fold = append(l.fold, make([]byte, laneScratch))
	}
	var srcs [][]byte
	for i, m := range p.Src {
		b := l.fold[i][:n:n]
		srcs = append(srcs, b)
		if err := r.copy(l, kolo.HostMemory(b), piece(m)); err != nil {
			return err
		}
	}
	op := r.job.Op
	err := r.callback(l, func() { op.Spread(srcs[:1], srcs) })
	for _, m := range p.Dst {
		if err == nil {
			err = r.copy(l, piece(m), kolo.HostMemory(srcs[0]))
		}
	}
	return err
}

// copy moves between the host, where a buffer of the lane is, and memory of any device
// or of the host: that of a peer goes by way of the lane's device.
func (r *run) copy(l *lane, dst, src kolo.Memory) error {
	far := dst.Space
	if far == kolo.HostSpace {
		far = src.Space
	}
	switch far {
	case kolo.HostSpace:
		return r.callback(l, func() { copy(dst.Host, src.Host) })
	case l.d.Info().Space:
		return l.s.Copy(dst, src)
	}
	by := l.scratch.Slice(0, dst.Len())
	if err := l.s.Copy(by, src); err != nil {
		return err
	}
	return l.s.Copy(dst, by)
}

// callback has f called by the lane's stream, unless that has failed by then. The job is
// not done before: a device that is lost while f runs leaves the memory to f.
func (r *run) callback(l *lane, f func()) error {
	r.left.Add(1)
	err := l.s.Callback(func(err error) {
		defer r.ended(nil, nil, nil)
		if err == nil {
			f()
		}
	})
	if err != nil {
		r.left.Add(-1) // Start counts, and is not over
	}
	return err
}

// lane is the run's lane of a device: a free one, or one that is made.
func (r *run) lane(d *device) (*lane, error) {
	if l := r.lanes[d]; l != nil {
		return l, nil
	}
	at := lanePlace{d, r.job.Priority}
	l := r.e.take(at)
	if l == nil {
		l = &lane{lanePlace: at}
		var err error
		if l.scratch, err = d.Device.Alloc(laneScratch); err != nil {
			return nil, err
		}
		if l.s, err = d.Device.NewStream(npu.StreamConfig{Name: "collectives", Priority: at.priority}); err != nil {
			_ = d.Device.Free(l.scratch) // err is told
			return nil, err
		}
	}
	r.lanes[d] = l
	return l, nil
}

// take takes a free lane, nil if there is none. Where one has to be made, those of
// devices that were closed are forgotten: it may be a device that was opened again.
func (e *engine) take(at lanePlace) *lane {
	e.mu.Lock()
	defer e.mu.Unlock()
	if list := e.lanes[at]; len(list) > 0 {
		e.lanes[at] = list[:len(list)-1]
		return list[len(list)-1]
	}
	e.v.core.Lock()
	defer e.v.core.Unlock()
	maps.DeleteFunc(e.lanes, func(x lanePlace, _ []*lane) bool { return x.d.Closed() })
	return nil
}

// finish ends Start: each lane tells when it has come to its end, the last completes
// the job.
func (r *run) finish(t channel.Turn, err error) {
	for _, l := range r.lanes {
		r.left.Add(1)
		if err != nil {
			l.s.Abort(err)
		}
		if refused := l.s.Callback(func(why error) { r.ended(nil, l, why) }); refused != nil {
			r.ended(nil, l, refused)
		}
	}
	r.ended(t, nil, err)
}

// ended counts lanes. The first error is the job's.
func (r *run) ended(t channel.Turn, l *lane, err error) {
	if err != nil {
		r.err.CompareAndSwap(nil, &err)
	}
	if l != nil {
		r.e.putBack(l, err)
	}
	if r.left.Add(-1) > 0 {
		return
	}
	var cause error
	if p := r.err.Load(); p != nil {
		cause = fmt.Errorf("a move between devices: %w", *p)
	}
	defer r.over()
	r.job.Done(t, cause)
}

// putBack keeps a lane for the next job, made anew if it has failed.
func (e *engine) putBack(l *lane, err error) {
	if err != nil {
		l.s.Abort(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lanes[l.lanePlace] = append(e.lanes[l.lanePlace], l)
}
