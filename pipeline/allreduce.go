package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// DefaultChunks is the number of chunks of an AllReduce: 16 reach 94 % of the least
// time if computing and reducing take equally long and a chunk costs nothing itself.
const DefaultChunks = 16

// maxChunks is the most chunks or buckets of a step: ranks may be so many calls apart.
const maxChunks = 4096

// Config says what an AllReduce reduces. All ranks give the same, but for the memory
// and the streams.
type Config struct {
	Group  *rank.Group
	Buffer rank.Buffer // reduced in place
	Op     kolo.ReduceOp
	// Chunks is into how many chunks the buffer is cut. 0 means DefaultChunks; more than
	// there is to cut means as many as there are.
	Chunks int
	// Shape are the dimensions of the buffer, if it is to be cut along the last one:
	// chunk i is then some columns, which are brought together in memory of their own
	// for the call, unless they lie together anyway. nil: it is cut flat.
	Shape []int64
	// Producer computes the buffer and Consumer uses it, both of one device, whose
	// memory the buffer is. Both nil: the host does.
	Producer, Consumer npu.Stream
	// Now is the clock of the reports. nil means time.Now.
	Now func() time.Time
}

// AllReduce reduces a buffer in chunks, again and again. Begin, Wait and Close are for
// one goroutine at a time; Ready is for any.
type AllReduce struct {
	line   *line
	ranges []Range
	buffer rank.Buffer
	grid   *grid
	device npu.Device
	staged kolo.Memory // chunk behind chunk
}

// NewAllReduce makes an AllReduce. Close it before its World.
func NewAllReduce(c Config) (*AllReduce, error) {
	n := c.Buffer.Count()
	switch {
	case c.Group == nil:
		return nil, errNoGroup
	case n == 0:
		return nil, fmt.Errorf("%w: pipeline: the buffer is empty", kolo.ErrArgument)
	case c.Chunks < 0 || c.Chunks > maxChunks:
		return nil, fmt.Errorf("%w: pipeline: Chunks is %d, and may be 0 to %d", kolo.ErrArgument, c.Chunks, maxChunks)
	case c.Chunks == 0:
		c.Chunks = DefaultChunks
	}
	if err := oneDevice(c.Producer, c.Consumer, c.Buffer); err != nil {
		return nil, err
	}
	a := &AllReduce{buffer: c.Buffer}
	if c.Producer != nil {
		a.device = c.Producer.Device()
	}
	if len(c.Shape) > 0 {
		g, err := gridOf(c.Shape, n)
		if err != nil {
			return nil, err
		}
		if n = g.columns; g.rows > 1 {
			a.grid = &g
		}
	}
	a.ranges = Split(n, c.Chunks)
	parts, err := a.parts(&c)
	if err == nil {
		a.line, err = newLine(&line{name: "all-reduce of " + c.Group.Name(), group: c.Group, op: c.Op,
			producer: c.Producer, consumer: c.Consumer, now: c.Now}, parts)
	}
	if err != nil {
		_, _ = release(a.device, a.staged) // nobody has used it
		return nil, err
	}
	return a, nil
}

// parts says what memory the chunks are.
func (a *AllReduce) parts(c *Config) ([]part, error) {
	size, m := int64(a.buffer.DType.Size()), a.buffer.Memory
	var err error
	if a.grid != nil {
		if a.staged, err = allocate(a.device, m.Space, m.Len()); err != nil {
			return nil, err
		}
	}
	list := make([]part, len(a.ranges))
	for i, r := range a.ranges {
		p := &list[i]
		if a.grid == nil {
			p.buffers = []rank.Buffer{{DType: a.buffer.DType, Memory: m.Slice(r.From*size, r.Len()*size)}}
			continue
		}
		packed := a.staged.Slice(a.grid.rows*r.From*size, a.grid.rows*r.Len()*size)
		p.buffers = []rank.Buffer{{DType: a.buffer.DType, Memory: packed}}
		p.pack = func() error { return a.move(c.Producer, "pack", packed, r, a.grid.pack) }
		p.unpack = func() error {
			return a.move(c.Consumer, "unpack", packed, r, func(staged, tensor []byte, r Range, size int64) { a.grid.unpack(tensor, staged, r, size) })
		}
	}
	return list, nil
}

// move packs or unpacks a chunk: on the host at once; on a simulated device by one
// kernel; on another by a copy for each row.
func (a *AllReduce) move(s npu.Stream, what string, packed kolo.Memory, r Range, f func(staged, tensor []byte, r Range, size int64)) error {
	size, m := int64(a.buffer.DType.Size()), a.buffer.Memory
	if s == nil {
		f(packed.Host, m.Host, r, size)
		return nil
	}
	if a.device.Info().Simulated {
		return s.Launch(npu.Kernel{Name: what, Args: []kolo.Memory{packed, m}, Bytes: 2 * packed.Len(),
			Host: func(args [][]byte) error {
				f(args[0], args[1], r, size)
				return nil
			}})
	}
	var err error
	a.grid.each(r, size, func(at, spread, n int64) {
		dst, src := packed.Slice(at, n), m.Slice(spread, n)
		if what == "unpack" {
			dst, src = src, dst
		}
		if err == nil {
			err = s.Copy(dst, src)
		}
	})
	return err
}

// errNoGroup refuses a configuration without a group.
var errNoGroup = fmt.Errorf("%w: pipeline: no Group", kolo.ErrArgument)

// errNoStreams refuses device memory that no stream is named for.
var errNoStreams = fmt.Errorf("%w: pipeline: device memory needs a Producer and a Consumer", kolo.ErrArgument)

// allocate makes memory of a space: the host's, or the device's.
func allocate(d npu.Device, s kolo.Space, size int64) (kolo.Memory, error) {
	if s == kolo.HostSpace {
		return kolo.HostMemory(make([]byte, size)), nil
	}
	if d == nil {
		return kolo.Memory{}, errNoStreams
	}
	return d.Alloc(size)
}

// release frees device memory, and says what is left because it is in use.
func release(d npu.Device, list ...kolo.Memory) (left []kolo.Memory, first error) {
	for _, m := range list {
		if m.Space == kolo.HostSpace || m.Len() == 0 {
			continue
		}
		if err := d.Free(m); err != nil {
			left = append(left, m)
			if first == nil {
				first = err
			}
		}
	}
	return left, first
}

// Chunks is the number of chunks.
func (a *AllReduce) Chunks() int { return len(a.ranges) }

// Chunk is what chunk i is: elements of the buffer, or columns if it has a Shape.
func (a *AllReduce) Chunk(i int) Range { return a.ranges[i] }

// Begin opens a step: on the Producer, it begins with what is asked of it next;
// a Producer that has failed fails the group.
func (a *AllReduce) Begin() (*Step, error) {
	if err := a.line.begin(); err != nil {
		return nil, err
	}
	return &Step{line: a.line}, nil
}

// Close frees what the AllReduce has made. A step that was begun must have been waited
// for, and with a Shape the Consumer must have passed it, or Close has to
// be called again.
func (a *AllReduce) Close() error {
	if err := a.line.close(); err != nil {
		return err
	}
	if _, err := release(a.device, a.staged); err != nil {
		return err
	}
	a.staged = kolo.Memory{}
	return nil
}

// Step is one pass over the chunks.
type Step struct{ line *line }

// Ready says that chunk i is computed, or with a Producer that it will be when all has
// ended that was asked of it so far. It returns at once. The chunk belongs to the
// runtime until Wait has returned.
func (s *Step) Ready(i int) error { return s.line.mark(i) }

// Abort ends the step, and the group on all ranks, with a cause. The step is still to
// be waited for.
func (s *Step) Abort(cause error) error { return s.line.abort(cause) }

// Wait returns when every chunk is reduced, with the numbers of the step. All must be
// ready. If ctx ends first the group is aborted.
func (s *Step) Wait(ctx context.Context) (Report, error) { return s.line.wait(ctx) }
