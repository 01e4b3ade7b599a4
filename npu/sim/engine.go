package sim

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// Engine makes an engine that moves and folds the memory of the cluster's devices. Jobs
// of host memory alone are given to host, which stays its maker's to close; with a nil
// host they are done at once, in no time.
//
// A part with one source, and an operation that leaves it as it is, is moved: over
// the link between two devices, or by a device's copy engine. Several sources are
// folded by the vector engine of the device that the destination is on, after what
// is elsewhere has come over its links. A part with destinations on several devices
// is divided between them, each folds its share and sends it to the others. The
// moves of a job that take the same way are one transfer. Done comes without the lock of
// anything.
func (c *Cluster) Engine(host channel.Engine) *driver.Engine {
	return c.core.Engine(host, engine{c})
}

// engine is how the cluster does jobs.
type engine struct{ c *Cluster }

// Start begins a job. Done comes at once if the job cannot be begun.
func (e engine) Start(t channel.Turn, j *channel.Job, ended func()) {
	c := e.c
	r := &run{c: c, job: j, ended: ended}
	c.core.Enter()
	err := r.locate()
	if err == nil {
		r.begin()
	} else {
		r.release()
	}
	c.core.Leave()
	if err != nil {
		j.Done(t, fmt.Errorf("a move between devices: %w", err))
		ended()
	}
}

// Close has nothing to give back.
func (e engine) Close() {}

// run is a job on its way.
type run struct {
	c       *Cluster
	job     *channel.Job
	ended   func()
	parts   []located
	devices []*device
	blocks  []*npu.Block
	moves   []way   // of parts that are not folded
	homes   []*home // where the others are
	chains  []*chain
	left    int // chains that are not over
	err     error
}

// located is a part with its bytes, and the devices that they are on.
type located struct {
	dst, src     [][]byte
	dstAt, srcAt []*device // nil for the host
}

// way is a number of bytes from one place to another.
type way struct {
	from, to *device
	size     int64
}

// home is what a device has to fold.
type home struct {
	at            *device
	pulls, pushes []way
	size          int64 // bytes that its vector engine reads and writes
}

// locate finds the memory of the job and holds it.
func (r *run) locate() error {
	find := func(list []kolo.Memory) (bytes [][]byte, at []*device, err error) {
		for _, m := range list {
			p, err := r.c.core.Locate(m)
			if err != nil {
				return nil, nil, err
			}
			d := own(p.Device)
			if d != nil && !slices.Contains(r.devices, d) {
				if err := d.Trouble(); err != nil {
					return nil, nil, err
				}
				r.devices = append(r.devices, d)
			}
			if p.Block != nil {
				p.Block.Hold("a collective")
				r.blocks = append(r.blocks, p.Block)
			}
			bytes, at = append(bytes, p.Bytes()), append(at, d)
		}
		return bytes, at, nil
	}
	for i := range r.job.Parts {
		p := &r.job.Parts[i]
		l := located{}
		var err error
		if l.src, l.srcAt, err = find(p.Src); err != nil {
			return err
		}
		if l.dst, l.dstAt, err = find(p.Dst); err != nil {
			return err
		}
		if at := distinct(slices.Concat(l.srcAt, l.dstAt)); r.c.cfg.NoPeer && len(at) > 1 {
			return fmt.Errorf("%w: npu%d has no peer access to npu%d", kolo.ErrUnsupported, at[0].slot.index, at[1].slot.index)
		}
		r.parts = append(r.parts, l)
		if n := p.Len(); n > 0 {
			r.route(&l, p, n)
		}
	}
	return nil
}

// route says which ways a part of n bytes takes.
func (r *run) route(l *located, p *channel.Part, n int64) {
	if r.job.Op.Copies(len(p.Src)) {
		for i, to := range l.dstAt {
			if p.Dst[i].Space != p.Src[0].Space || p.Dst[i].Addr != p.Src[0].Addr || to == nil {
				r.moves = add(r.moves, l.srcAt[0], to, n)
			}
		}
		return
	}
	at := distinct(l.dstAt)
	if len(at) == 0 {
		at = distinct(l.srcAt)
		at = at[:min(1, len(at))] // none where the part is the host's alone
	}
	for i, d := range at {
		share := n*int64(i+1)/int64(len(at)) - n*int64(i)/int64(len(at))
		h := r.home(d)
		h.size += share * int64(len(l.srcAt))
		for _, from := range l.srcAt {
			if from != d {
				h.pulls = add(h.pulls, from, d, share)
			}
		}
		for _, to := range l.dstAt {
			if to == d {
				h.size += share
			} else {
				h.pushes = add(h.pushes, d, to, share)
			}
		}
	}
}

// distinct are the devices of a list, each once, without the host.
func distinct(list []*device) (once []*device) {
	for _, d := range list {
		if d != nil && !slices.Contains(once, d) {
			once = append(once, d)
		}
	}
	return once
}

func add(list []way, from, to *device, n int64) []way {
	for i := range list {
		if list[i].from == from && list[i].to == to {
			list[i].size += n
			return list
		}
	}
	return append(list, way{from, to, n})
}

func (r *run) home(d *device) *home {
	for _, h := range r.homes {
		if h.at == d {
			return h
		}
	}
	h := &home{at: d}
	r.homes = append(r.homes, h)
	return h
}

// begin starts a chain for the moves and one for each home. c.mu is held.
func (r *run) begin() {
	c := r.c
	if len(r.moves) > 0 {
		r.chain(r.uses(r.moves))
	}
	for _, h := range r.homes {
		r.chain(r.uses(h.pulls), []*use{c.fold(h.at, h.size)}, r.uses(h.pushes))
	}
	for _, d := range r.devices {
		if err := d.slot.struck(); err != nil && r.err == nil {
			r.err = &npu.Error{Op: "move", Device: d.slot.index, Err: err} // told when all is over
		}
	}
	r.left = len(r.chains) + 1
	for _, w := range slices.Clone(r.chains) {
		w.done = r.chainDone
		c.start(w, c.clock.at)
	}
	r.chainDone(nil)
}

func (r *run) uses(ways []way) (list []*use) {
	for _, w := range ways {
		if u := r.c.move(w.from, w.to, w.size); u != nil {
			list = append(list, u)
		}
	}
	return list
}

func (r *run) chain(phases ...[]*use) {
	r.chains = append(r.chains, &chain{phases: phases, devices: r.devices, priority: r.job.Priority})
}

// chainDone counts the chains. The first error cuts the others.
func (r *run) chainDone(err error) {
	r.left--
	if err != nil && r.err == nil {
		r.err = err
	}
	if err != nil {
		for _, w := range r.chains {
			r.c.cancel(w, err)
		}
	}
	if r.left == 0 {
		r.finish(r.err)
	}
}

// finish computes the bytes and completes the job.
func (r *run) finish(err error) {
	c := r.c
	c.run(c.clock.at, func() error {
		if err != nil {
			return err
		}
		return r.compute()
	}, func(err error) {
		r.release()
		c.run(c.clock.at, func() error { r.job.Done(nil, err); return nil }, func(error) { r.ended() })
	})
}

func (r *run) compute() error {
	for _, p := range r.parts {
		r.job.Op.Spread(p.dst, p.src)
	}
	return nil
}

func (r *run) release() {
	for _, b := range r.blocks {
		b.Release()
	}
	r.blocks = nil
}
