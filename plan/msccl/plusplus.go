package msccl

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// ImportPlusPlus reads a plan of MSCCL++ (JSON) and proves it. MSCCL++ is one-sided: a
// rank writes to and reads from another's memory, and signals, waits and packets say when
// that may be. Here both ends take part, so the plan is played once by its own rules, and
// each transfer becomes a send and a receive at the place where it happened; the File is that as MSCCL. Two
// accesses to a chunk that the plan does not order are an error, as is a plan that gets
// stuck.
//
// What maps: copy, put, get, re, rre, rres, res, their packet forms, signal, wait, their
// relaxed forms and nop, over memory and port channels. What does not: switch channels
// (glres, gstore and the like), whose work a switch does; ops that a group of thread
// blocks shares (tbg_info); pipeline, barrier and semaphores.
func ImportPlusPlus(data []byte) (*Plan, error) {
	var d document
	if len(data) > maxSize {
		return nil, fmt.Errorf("%w: msccl: a file of %d bytes; at most %d", kolo.ErrArgument, len(data), maxSize)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("msccl: %w: %w", kolo.ErrArgument, err)
	}
	p, err := d.plan()
	if err != nil {
		return nil, fmt.Errorf("msccl: %w", err)
	}
	return p, nil
}

// document is the format; see docs/dsl and execution_plan.cc of microsoft/mscclpp.
type document struct {
	Name       string `json:"name"`
	Collective string `json:"collective"`
	Protocol   string `json:"protocol"`
	InPlace    bool   `json:"inplace"`
	Min        uint64 `json:"min_message_size"`
	Max        uint64 `json:"max_message_size"`
	GPUs       []struct {
		ID       int `json:"id"`
		In       int `json:"input_chunks"`
		Out      int `json:"output_chunks"`
		Scratch  int `json:"scratch_chunks"`
		Channels []struct {
			Type string `json:"channel_type"`
			To   []int  `json:"connected_to"`
		} `json:"channels"`
		Remote []struct {
			Rank int    `json:"rank"`
			Type string `json:"type"`
		} `json:"remote_buffers"`
		Blocks []struct {
			ID       int  `json:"id"`
			Ops      []op `json:"ops"`
			Channels []struct {
				Type string `json:"channel_type"`
				IDs  []int  `json:"channel_ids"`
			} `json:"channels"`
			Remote []struct {
				IDs []int `json:"remote_buffer_ids"`
			} `json:"remote_buffer_refs"`
		} `json:"threadblocks"`
	} `json:"gpus"`
}

type op struct {
	Name     string   `json:"name"`
	Src      []extent `json:"src_buff"`
	Dst      []extent `json:"dst_buff"`
	Channels []int    `json:"channel_ids"`
	Type     string   `json:"channel_type"`
	Group    any      `json:"tbg_info"` // the op is shared by a group of thread blocks
}

// extent is a run of chunks of this rank (type) or of another (buffer_id).
type extent struct {
	Type   string `json:"type"`
	Buffer *int   `json:"buffer_id"`
	Index  int    `json:"index"`
	Size   int    `json:"size"`
}

// chunkAt is a run of chunks of a rank.
type chunkAt struct {
	rank int
	span plan.Span
}

// shape is what an op does with its operands.
type shape struct{ packet, signals, waits, reduces bool }

var shapes = map[string]shape{
	"nop": {}, "copy": {}, "put": {}, "get": {}, "re": {reduces: true}, "rre": {reduces: true}, "rres": {reduces: true},
	"res": {reduces: true}, "signal": {signals: true}, "rlxsignal": {signals: true}, "wait": {waits: true}, "rlxwait": {waits: true},
	"pws": {signals: true}, "ppkt": {packet: true}, "rppkt": {packet: true}, "cpkt": {packet: true}, "upkt": {packet: true},
	"respkt": {packet: true, reduces: true}, "repkt": {packet: true, reduces: true},
	"recpkt": {packet: true, reduces: true}, "recspkt": {packet: true, reduces: true},
}

func (d *document) plan() (*Plan, error) {
	c, err := collectiveOf(d.Collective)
	if err != nil {
		return nil, err
	}
	n := len(d.GPUs)
	if n < 1 || n > 1<<12 {
		return nil, bad("%d gpus", n)
	}
	f := &File{Name: d.Name, Protocol: d.Protocol, Collective: c, Channels: 1, InPlace: d.InPlace, OutOfPlace: !d.InPlace,
		MinBytes: int64(min(d.Min, 1<<62)), GPUs: make([]GPU, n)}
	if d.Max < 1<<62 {
		f.MaxBytes = int64(d.Max)
	}
	if f.MaxBytes > 0 && f.MinBytes > f.MaxBytes {
		return nil, bad("min_message_size %d is more than max_message_size %d", f.MinBytes, f.MaxBytes)
	}
	slots, blocks := 0, 0
	for i, g := range d.GPUs {
		if g.ID != i || g.In < 0 || g.Out < 0 || g.Scratch < 0 || max(g.In, g.Out, g.Scratch) > maxChunks {
			return nil, bad("gpu %d at place %d with %d, %d and %d chunks", g.ID, i, g.In, g.Out, g.Scratch)
		}
		f.Chunks = max(f.Chunks, g.In, g.Out)
		f.GPUs[i] = GPU{In: g.In, Out: g.Out, Scratch: g.Scratch}
		slots += g.In + g.Out + g.Scratch
		blocks += len(g.Blocks)
	}
	if f.Chunks < 1 || slots > maxSlots || blocks > 1<<12 {
		return nil, bad("%d chunks, %d in all buffers, %d tbs", f.Chunks, slots, blocks)
	}
	key := plan.Key{Algorithm: f.Name, Collective: c, InPlace: f.InPlace || c == kolo.Broadcast}
	s := &stage{d: d, signals: map[[3]int][]clock{}, uses: map[chunkOf]*use{}}
	for g := range n {
		t, err := newTranslation(f, key, g)
		if err != nil {
			return nil, err
		}
		s.ranks = append(s.ranks, &actorOf{t: t, last: map[int]int32{}, readers: map[int][]int32{}})
		for b := range d.GPUs[g].Blocks {
			s.blocks = append(s.blocks, worker{gpu: g, block: b})
		}
	}
	if err := s.play(); err != nil {
		return nil, err
	}
	p := &Plan{File: f, Key: key}
	for _, r := range s.ranks {
		p.Programs = append(p.Programs, r.t.p)
	}
	if p.Report, err = plan.Complete(key, p.Programs); err != nil {
		return nil, err
	}
	x, err := Export(key, p.Programs)
	if err != nil {
		return nil, err
	}
	f.Channels, f.GPUs = x.Channels, x.GPUs
	return p, nil
}

// clock is how far each thread block had come, for a point of one.
type clock []int32

// stage plays a plan.
type stage struct {
	d       *document
	ranks   []*actorOf
	blocks  []worker
	signals map[[3]int][]clock // from, to, which channel of the pair: signals not yet waited for
	uses    map[chunkOf]*use
	moved   int
}

// worker is a thread block and how far it has come.
type worker struct {
	gpu, block, at int
	clock          clock
}

// chunkOf is one chunk of a rank.
type chunkOf struct {
	rank int
	buf  plan.Buffer
	at   int32
}

// use is who touched a chunk last: a worker and its clock there.
type use struct {
	writer, wrote int
	packets       clock // of the packet in it; nil: none
	readers       map[int]int
}

// actorOf is the Program of a rank as it grows.
type actorOf struct {
	t       *translation
	last    map[int]int32 // by chunk: the step that wrote it
	readers map[int][]int32
}

// play lets each worker go on as far as it can, until all have ended.
func (s *stage) play() error {
	for w := range s.blocks {
		s.blocks[w].clock = make(clock, len(s.blocks))
	}
	for again := true; again; {
		again = false
		for w := range s.blocks {
			for {
				ok, err := s.step(w)
				if err != nil {
					x := &s.blocks[w]
					return fmt.Errorf("gpu %d, tb %d, op %d (%s): %w", x.gpu, x.block, x.at, s.d.GPUs[x.gpu].Blocks[x.block].Ops[x.at].Name, err)
				}
				if !ok {
					break
				}
				again = true
			}
		}
	}
	for _, x := range s.blocks {
		if ops := s.d.GPUs[x.gpu].Blocks[x.block].Ops; x.at < len(ops) {
			return bad("gpu %d, tb %d, op %d (%s) waits for ever", x.gpu, x.block, x.at, ops[x.at].Name)
		}
	}
	return nil
}

// step does the next op of a worker, if it may.
func (s *stage) step(w int) (bool, error) {
	x := &s.blocks[w]
	ops := s.d.GPUs[x.gpu].Blocks[x.block].Ops
	if x.at == len(ops) {
		return false, nil
	}
	o := &ops[x.at]
	is, ok := shapes[o.Name]
	if !ok || o.Type == "switch" || o.Group != nil {
		return false, fmt.Errorf("%w: it has no counterpart here", kolo.ErrUnsupported)
	}
	var src, dst []chunkAt
	for _, e := range o.Src {
		c, err := s.resolve(x, e)
		if err != nil {
			return false, err
		}
		src = append(src, c)
	}
	for _, e := range o.Dst {
		c, err := s.resolve(x, e)
		if err != nil {
			return false, err
		}
		dst = append(dst, c)
	}
	if is.waits || is.packet {
		if ready, err := s.ready(x, o, is, src); !ready || err != nil {
			return false, err
		}
	}
	x.clock[w]++
	if err := s.touch(w, is, src, dst); err != nil {
		return false, err
	}
	if err := s.emit(x, o, is, src, dst); err != nil {
		return false, err
	}
	if is.signals {
		for _, id := range o.Channels {
			k, err := s.channel(x, o, id)
			if err != nil {
				return false, err
			}
			s.signals[k] = append(s.signals[k], slices.Clone(x.clock))
		}
	}
	x.at++
	return true, nil
}

// ready says whether what an op waits for has come, and takes note of what the worker
// then knows.
func (s *stage) ready(x *worker, o *op, is shape, src []chunkAt) (bool, error) {
	var known []clock
	if is.waits {
		var keys [][3]int
		for _, id := range o.Channels {
			k, err := s.channel(x, o, id)
			if err != nil {
				return false, err
			}
			k[0], k[1] = k[1], k[0]
			if len(s.signals[k]) == 0 {
				return false, nil
			}
			keys = append(keys, k)
		}
		for _, k := range keys {
			if len(s.signals[k]) == 0 {
				return false, bad("it waits twice on one channel")
			}
			known = append(known, s.signals[k][0])
			s.signals[k] = s.signals[k][1:]
		}
	}
	if is.packet {
		for _, c := range src {
			if c.span.Buf != plan.Scratch {
				continue
			}
			for i := range c.span.N {
				u := s.uses[chunkOf{c.rank, c.span.Buf, c.span.Off + i}]
				if u == nil || u.packets == nil {
					return false, nil
				}
				known = append(known, u.packets)
			}
		}
	}
	for _, k := range known {
		for i, v := range k {
			x.clock[i] = max(x.clock[i], v)
		}
	}
	return true, nil
}

// touch checks that what the op reads and writes is ordered with the uses before.
func (s *stage) touch(w int, is shape, src, dst []chunkAt) error {
	clock := s.blocks[w].clock
	knows := func(by, at int) bool { return by == w || int(clock[by]) >= at }
	each := func(c chunkAt, f func(k chunkOf, u *use) error) error {
		if s.moved += int(c.span.N); s.moved > maxMoved {
			return bad("all ops together move more than %d chunks", maxMoved)
		}
		for i := range c.span.N {
			k := chunkOf{c.rank, c.span.Buf, c.span.Off + i}
			u := s.uses[k]
			if u == nil {
				u = &use{writer: -1, readers: map[int]int{}}
				s.uses[k] = u
			}
			if u.writer >= 0 && !knows(u.writer, u.wrote) {
				return bad("nothing orders it with the write of chunk %d of %v of gpu %d before", k.at, k.buf, k.rank)
			}
			if err := f(k, u); err != nil {
				return err
			}
		}
		return nil
	}
	for _, c := range src {
		if err := each(c, func(_ chunkOf, u *use) error {
			u.readers[w] = int(clock[w])
			return nil
		}); err != nil {
			return err
		}
	}
	for _, c := range dst {
		if err := each(c, func(k chunkOf, u *use) error {
			for by, at := range u.readers {
				if !knows(by, at) {
					return bad("nothing orders it with the read of chunk %d of %v of gpu %d before", k.at, k.buf, k.rank)
				}
			}
			u.writer, u.wrote, u.packets = w, int(clock[w]), nil
			clear(u.readers)
			if is.packet && k.buf == plan.Scratch {
				u.packets = slices.Clone(clock)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// resolve is the chunks of an operand.
func (s *stage) resolve(x *worker, e extent) (chunkAt, error) {
	rank, name := x.gpu, e.Type
	if e.Buffer != nil {
		var ids []int
		for _, r := range s.d.GPUs[x.gpu].Blocks[x.block].Remote {
			ids = append(ids, r.IDs...)
		}
		all := s.d.GPUs[x.gpu].Remote
		if *e.Buffer < 0 || *e.Buffer >= len(ids) || ids[*e.Buffer] < 0 || ids[*e.Buffer] >= len(all) {
			return chunkAt{}, bad("no remote buffer %d", *e.Buffer)
		}
		r := all[ids[*e.Buffer]]
		if rank, name = r.Rank, r.Type; rank < 0 || rank >= len(s.ranks) || rank == x.gpu {
			return chunkAt{}, bad("a remote buffer of gpu %d", rank)
		}
	}
	buf, ok := map[string]plan.Buffer{"i": plan.In, "o": plan.Out, "s": plan.Scratch}[name]
	if !ok {
		return chunkAt{}, fmt.Errorf("%w: buffer %q", kolo.ErrUnsupported, name)
	}
	if e.Size < 1 || e.Index < 0 || e.Size > maxChunks || e.Index > maxChunks {
		return chunkAt{}, bad("%d chunks from %d", e.Size, e.Index)
	}
	spans, err := s.ranks[rank].t.span(Place{buf, e.Index}, e.Size)
	if err != nil {
		return chunkAt{}, err
	}
	return chunkAt{rank, spans[0]}, nil
}

// channel names the pair of ranks of a thread block's channel, and which of those
// between them it is.
func (s *stage) channel(x *worker, o *op, id int) ([3]int, error) {
	g := &s.d.GPUs[x.gpu]
	var ids, to []int
	for _, c := range g.Blocks[x.block].Channels {
		if c.Type == o.Type {
			ids = append(ids, c.IDs...)
		}
	}
	for _, c := range g.Channels {
		if c.Type == o.Type {
			to = append(to, c.To...)
		}
	}
	if id < 0 || id >= len(ids) || ids[id] < 0 || ids[id] >= len(to) {
		return [3]int{}, bad("no %s channel %d", o.Type, id)
	}
	peer, k := to[ids[id]], 0
	for _, p := range to[:ids[id]] {
		if p == peer {
			k++
		}
	}
	if peer < 0 || peer >= len(s.ranks) {
		return [3]int{}, bad("a channel to gpu %d", peer)
	}
	return [3]int{x.gpu, peer, k}, nil
}

var errOperands = errors.New("its operands do not suit it")

// emit appends what an op does to the Programs of those that take part.
func (s *stage) emit(x *worker, o *op, is shape, src, dst []chunkAt) error {
	if len(src) == 0 && len(dst) == 0 {
		return nil
	}
	if len(src) == 0 || len(dst) == 0 {
		return fmt.Errorf("%w: %w", kolo.ErrArgument, errOperands)
	}
	for _, c := range slices.Concat(src, dst) {
		if c.span.N != src[0].span.N {
			return fmt.Errorf("%w: %w", kolo.ErrArgument, errOperands)
		}
	}
	if !is.reduces {
		if len(src) != len(dst) && len(src) > 1 {
			return fmt.Errorf("%w: %w", kolo.ErrArgument, errOperands)
		}
		for i, to := range dst {
			s.move(src[min(i, len(src)-1)], to)
		}
		return nil
	}
	at := dst[0]
	if at.rank != x.gpu || src[0].rank != x.gpu || len(src) < 2 {
		return fmt.Errorf("%w: a sum that is not made and kept here", kolo.ErrUnsupported)
	}
	if src[0] != at {
		s.move(src[0], at)
	}
	for _, from := range src[1:] {
		s.fold(from, at)
	}
	for _, to := range dst[1:] {
		s.move(at, to)
	}
	return nil
}

// move copies chunks, within a rank or from one to another.
func (s *stage) move(from, to chunkAt) {
	if from.rank == to.rank {
		s.add(from.rank, plan.Step{Op: plan.Copy, Src: []plan.Span{from.span}, Dst: []plan.Span{to.span}})
		return
	}
	s.add(from.rank, plan.Step{Op: plan.Send, Peers: []kolo.Rank{kolo.Rank(to.rank)}, Src: []plan.Span{from.span}})
	s.add(to.rank, plan.Step{Op: plan.Recv, Peers: []kolo.Rank{kolo.Rank(from.rank)}, Dst: []plan.Span{to.span}})
}

// fold adds chunks to those of a rank.
func (s *stage) fold(from, to chunkAt) {
	if from.rank == to.rank {
		s.add(from.rank, plan.Step{Op: plan.Reduce, Src: []plan.Span{from.span}, Dst: []plan.Span{to.span}})
		return
	}
	s.add(from.rank, plan.Step{Op: plan.Send, Peers: []kolo.Rank{kolo.Rank(to.rank)}, Src: []plan.Span{from.span}})
	s.add(to.rank, plan.Step{Op: plan.RecvReduce, Peers: []kolo.Rank{kolo.Rank(from.rank)}, Src: []plan.Span{to.span}, Dst: []plan.Span{to.span}})
}

// add appends a step, after those whose chunks it reads or overwrites.
func (s *stage) add(rank int, x plan.Step) {
	r := s.ranks[rank]
	p, at := r.t.p, int32(len(r.t.p.Steps))
	slots := func(spans []plan.Span, f func(k int)) {
		for _, c := range spans {
			base := 0
			for b := range c.Buf {
				base += p.Blocks[b]
			}
			p.At(c, func(i int) { f(base + i) })
		}
	}
	after := map[int32]bool{}
	slots(x.Src, func(k int) {
		if w, ok := r.last[k]; ok {
			after[w] = true
		}
		r.readers[k] = append(r.readers[k], at)
	})
	slots(x.Dst, func(k int) {
		if w, ok := r.last[k]; ok {
			after[w] = true
		}
		for _, q := range r.readers[k] {
			after[q] = true
		}
		r.last[k], r.readers[k] = at, nil
	})
	delete(after, at)
	for a := range after {
		x.After = append(x.After, a)
	}
	slices.Sort(x.After)
	p.Steps = append(p.Steps, x)
}
