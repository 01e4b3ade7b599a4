//go:build linux && (amd64 || arm64) && !noacl

package pipeline_test

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// TestColumnsOfNPUs reduces a tensor in chunks of columns on devices that are not
// simulated: each row of a chunk is a copy there and back.
func TestColumnsOfNPUs(t *testing.T) {
	const ranks, rows, columns, chunks = 2, 5, 48, 3
	lib := standin.Open(t)
	v, err := ascend.New(ascend.Config{Library: lib.Path, DCMI: "none"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	defer func() { require.NoError(t, v.Close(ctx)) }()
	var devices []npu.Device
	for i := range ranks {
		d, err := v.Open(i)
		require.NoError(t, err)
		devices = append(devices, d)
	}
	got := make([][]byte, ranks)
	var mu sync.Mutex
	require.NoError(t, rank.Config{Devices: devices, Engine: func(host channel.Engine) channel.Engine { return v.Engine(host) }}.Run(ctx, ranks,
		func(ctx context.Context, w *rank.World) error {
			b, err := columnsOf(ctx, w, devices[w.Rank()], rows, columns, chunks)
			mu.Lock()
			defer mu.Unlock()
			got[w.Rank()] = b
			return err
		}))
	for r := range ranks {
		for i := range rows * columns {
			want := float32(0)
			for q := range ranks {
				want += element(q, i)
			}
			if x := math.Float32frombits(binary.NativeEndian.Uint32(got[r][4*i:])); x != want {
				t.Fatalf("rank %d: element %d is %v, not %v", r, i, x, want)
			}
		}
		require.Zero(t, devices[r].Health().Buffers, "the chunks' own memory")
	}
}

// element is element i of rank r.
func element(r, i int) float32 { return float32(1000*(r+1) + i) }

// columnsOf reduces a tensor of one rank and gives the bytes of the result.
func columnsOf(ctx context.Context, w *rank.World, d npu.Device, rows, columns int64, chunks int) ([]byte, error) {
	host := make([]byte, 4*rows*columns)
	for i := range int(rows * columns) {
		binary.NativeEndian.PutUint32(host[4*i:], math.Float32bits(element(int(w.Rank()), i)))
	}
	m, err := d.Alloc(int64(len(host)))
	if err != nil {
		return nil, err
	}
	s, err := d.NewStream(npu.StreamConfig{})
	if err != nil {
		return nil, err
	}
	a, err := pipeline.NewAllReduce(pipeline.Config{Group: w.Group(), Buffer: rank.Buffer{Memory: m, DType: kolo.Float32}, Op: kolo.Sum,
		Chunks: chunks, Shape: []int64{rows, columns}, Producer: s, Consumer: s})
	if err != nil {
		return nil, err
	}
	if err := s.Copy(m, kolo.HostMemory(host)); err != nil {
		return nil, err
	}
	step, err := a.Begin()
	if err != nil {
		return nil, err
	}
	for i := range a.Chunks() {
		if err := step.Ready(i); err != nil {
			return nil, err
		}
	}
	if _, err := step.Wait(ctx); err != nil {
		return nil, err
	}
	if err := s.Copy(kolo.HostMemory(host), m); err != nil {
		return nil, err
	}
	for _, f := range []func() error{func() error { return s.Sync(ctx) }, a.Close, func() error { return d.Free(m) }} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return host, nil
}
