package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// FusedConfig says what a Fused computes and reduces. All ranks give the same, but for
// the memory, the streams and the functions' data.
type FusedConfig struct {
	Group *rank.Group
	// Product is what Compute makes, row behind row, and the AllReduce folds, in place.
	Product rank.Buffer
	Rows    int64 // of Product, of equal lengths
	Op      kolo.ReduceOp
	// Tiles is into how many tiles of whole rows the product is cut. 0 means
	// DefaultChunks; more than there are rows means one for each.
	Tiles int
	// Compute makes the rows of a tile: at once, or with a Producer by asking that stream.
	Compute func(producer npu.Stream, rows Range) error
	// Epilogue does with the rows of a tile, which are reduced, what comes after: bias,
	// activation. At once, or with a Consumer by asking that stream. It may be nil.
	Epilogue func(consumer npu.Stream, rows Range) error
	// Producer and Consumer are streams of one device, whose memory the product is. Both
	// nil: the host computes, and does an epilogue as soon as it finds a tile reduced.
	Producer, Consumer npu.Stream
	// Now is the clock of the reports. nil means time.Now.
	Now func() time.Time
}

// Fused is a computation, an AllReduce of its result, and what is done with that, as
// one operator: tile by tile, so that a tile is on the wire while the next is computed
// and the one before it is finished. It is what a row-parallel layer of tensor
// parallelism is: MatMul, AllReduce, activation. (Flux, Chang et al. 2024; HCCL and
// CANN's MatMulAllReduce.) The result has the same bits as without tiles wherever the
// AllReduce has.
//
// Run and Close are for one goroutine at a time.
type Fused struct {
	cfg   FusedConfig
	line  *line
	tiles []Range
}

// NewFused makes a Fused. Close it before its World.
func NewFused(c FusedConfig) (*Fused, error) {
	n := c.Product.Count()
	switch {
	case c.Group == nil:
		return nil, errNoGroup
	case c.Compute == nil:
		return nil, fmt.Errorf("%w: pipeline: no Compute", kolo.ErrArgument)
	case c.Rows < 1 || n < 1 || n%c.Rows != 0:
		return nil, fmt.Errorf("%w: pipeline: a product of %d elements in %d equal rows", kolo.ErrArgument, n, c.Rows)
	case c.Tiles < 0 || c.Tiles > maxChunks:
		return nil, fmt.Errorf("%w: pipeline: Tiles is %d, and may be 0 to %d", kolo.ErrArgument, c.Tiles, maxChunks)
	case c.Tiles == 0:
		c.Tiles = DefaultChunks
	}
	if err := oneDevice(c.Producer, c.Consumer, c.Product); err != nil {
		return nil, err
	}
	f := &Fused{cfg: c, tiles: Split(c.Rows, c.Tiles)}
	row := c.Product.Memory.Len() / c.Rows
	var parts []part
	for _, r := range f.tiles {
		p := part{buffers: []rank.Buffer{{DType: c.Product.DType, Memory: c.Product.Memory.Slice(r.From*row, r.Len()*row)}}}
		if c.Epilogue != nil {
			p.unpack = func() error { return c.Epilogue(c.Consumer, r) }
		}
		parts = append(parts, p)
	}
	var err error
	f.line, err = newLine(&line{name: "fused operator of " + c.Group.Name(), group: c.Group, op: c.Op,
		producer: c.Producer, consumer: c.Consumer, now: c.Now}, parts)
	return f, err
}

// Tiles are the rows of each tile.
func (f *Fused) Tiles() []Range { return append([]Range(nil), f.tiles...) }

// Run does it once. It returns when every tile is finished, or with a Consumer when
// every tile is reduced: what is asked of that stream later sees the result. An error of
// Compute or Epilogue aborts the group, as the other ranks wait for the tile. The
// Report counts as computed what was before the AllReduce.
func (f *Fused) Run(ctx context.Context) (Report, error) {
	if err := f.line.begin(); err != nil {
		return Report{}, err
	}
	for i, r := range f.tiles {
		if err := f.tile(ctx, i, r); err != nil {
			_ = f.line.abort(err) // what it could not mark is marked
			break
		}
	}
	report, err := f.line.wait(ctx)
	if err != nil {
		f.cfg.Group.Abort(err) // the others must not wait for this rank's next tile
	}
	return report, err
}

// tile computes a tile and gives it to the runtime.
func (f *Fused) tile(ctx context.Context, i int, r Range) error {
	if err := f.cfg.Compute(f.cfg.Producer, r); err != nil {
		return fmt.Errorf("compute rows %d to %d: %w", r.From, r.To, err)
	}
	if err := f.line.mark(i); err != nil || f.cfg.Consumer != nil {
		return err
	}
	return f.line.takeEnded(ctx)
}

// Close ends the Fused. It may be called again.
func (f *Fused) Close() error { return f.line.close() }
