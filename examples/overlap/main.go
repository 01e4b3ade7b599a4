// Command overlap hides communication behind computation on two simulated NPUs: a
// gradient is cut along its last dimension, and each chunk is reduced while the next
// is computed. The devices keep real time, and their link is a slow one, so that what
// is printed can be watched. With the name of a directory it also writes what the
// engines and links did when: overlap.json for a browser's trace viewer, and overlap.svg.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/trace"
)

const (
	devices  = 2
	rows     = 64
	columns  = 4096
	link     = 62.5e6                // bytes per second, one way
	backward = 16 * time.Millisecond // what computing the whole gradient takes
)

func main() {
	dir := ""
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(context.Background(), os.Stdout, dir); err != nil {
		slog.Error("overlap", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, dir string) error {
	cluster, err := sim.New(sim.Config{Devices: devices, HCCS: sim.Line{Bandwidth: link}})
	if err != nil {
		return err
	}
	defer cluster.Close(context.WithoutCancel(ctx))
	cfg := rank.Config{Algorithm: "fabric", Engine: func(host channel.Engine) channel.Engine { return cluster.Engine(host) }}
	err = cfg.Run(ctx, devices, func(ctx context.Context, w *rank.World) error {
		d, err := cluster.Open(int(w.Rank()))
		if err != nil {
			return err
		}
		control, err := npu.Spawn(w.NewShard("device"), d, nil)
		if err != nil {
			return err
		}
		for _, chunks := range []int{1, 4, 16} {
			report, err := reduce(ctx, w.Group(), control, chunks)
			if err != nil {
				return err
			}
			if w.Rank() == 0 {
				fmt.Fprintf(out, "\n%d chunks: at the least %v\n", chunks, pipeline.Bound(report.Compute, report.Comm, chunks))
				if err := report.Print(out); err != nil {
					return err
				}
			}
		}
		left, err := control.Close(ctx)
		if err == nil && left != (npu.Left{}) {
			err = fmt.Errorf("not given back: %+v", left)
		}
		return err
	})
	if err != nil || dir == "" {
		return err
	}
	spans, _ := cluster.Timeline()
	if err := write(filepath.Join(dir, "overlap.json"), spans, trace.WriteTrace); err != nil {
		return err
	}
	return write(filepath.Join(dir, "overlap.svg"), spans, trace.WriteSVG)
}

func write(name string, spans []trace.Span, as func(io.Writer, []trace.Span) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(as(f, spans), f.Close())
}

// reduce computes a gradient on one stream and, chunk by chunk, sums it over the
// ranks; another stream has the sum. What it needs of the device it asks the device's
// actor for, and gives back.
func reduce(ctx context.Context, g *rank.Group, control *npu.Actor, chunks int) (pipeline.Report, error) {
	none := pipeline.Report{}
	compute, err := control.Stream(ctx, npu.StreamConfig{Name: "compute"})
	if err != nil {
		return none, err
	}
	update, err := control.Stream(ctx, npu.StreamConfig{Name: "update"})
	if err != nil {
		return none, err
	}
	memory, err := control.Alloc(ctx, 4*rows*columns)
	if err != nil {
		return none, err
	}
	a, err := pipeline.NewAllReduce(pipeline.Config{
		Group: g, Op: kolo.Sum, Buffer: rank.Buffer{Memory: memory, DType: kolo.Float32},
		Chunks: chunks, Shape: []int64{rows, columns}, Producer: compute, Consumer: update,
	})
	if err != nil {
		return none, err
	}
	if err := rank.Barrier(ctx, g); err != nil { // all ranks begin together
		return none, err
	}
	step, err := a.Begin()
	if err != nil {
		return none, err
	}
	for i := range a.Chunks() {
		if err := compute.Launch(kernel(memory, a.Chunk(i), g.Rank())); err != nil {
			return none, err
		}
		if err := step.Ready(i); err != nil { // returns at once
			return none, err
		}
	}
	sum := make([]byte, memory.Len())
	if err := update.Copy(kolo.HostMemory(sum), memory); err != nil { // comes after every chunk
		return none, err
	}
	report, err := step.Wait(ctx)
	if err != nil {
		return none, err
	}
	if err := update.Sync(ctx); err != nil {
		return none, err
	}
	if err := check(sum); err != nil {
		return none, err
	}
	if err := a.Close(); err != nil {
		return none, err
	}
	return report, errors.Join(control.Free(ctx, memory),
		control.Ask(ctx, &npu.CloseHandle{Handle: compute}), control.Ask(ctx, &npu.CloseHandle{Handle: update}))
}

// kernel computes some columns of a rank's gradient.
func kernel(memory kolo.Memory, r pipeline.Range, me kolo.Rank) npu.Kernel {
	return npu.Kernel{Name: "backward", Time: backward * time.Duration(r.Len()) / columns, Args: []kolo.Memory{memory},
		Host: func(args [][]byte) error {
			for row := range int64(rows) {
				for i := row*columns + r.From; i < row*columns+r.To; i++ {
					binary.NativeEndian.PutUint32(args[0][4*i:], math.Float32bits(float32(me+1)*float32(i%1000)))
				}
			}
			return nil
		}}
}

func check(sum []byte) error {
	for i := range rows * columns {
		got, want := math.Float32frombits(binary.NativeEndian.Uint32(sum[4*i:])), float32(devices*(devices+1)/2*(i%1000))
		if got != want {
			return fmt.Errorf("element %d: %v, want %v", i, got, want)
		}
	}
	return nil
}
