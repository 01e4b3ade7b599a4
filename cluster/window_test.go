package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// The blocks of a cache that a process puts into another's: most go in one piece of an
// odd size, which has other bytes at each place and for each number.
const (
	cacheBlocks = 40
	cacheBlock  = 200_003
)

func cacheBytes(number, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + i>>16*3 + number*101 + 1)
	}
	return b
}

// store is memory of a process, of the host or of a device.
type store struct {
	m kolo.Memory
	s npu.Stream // nil for the host
}

func newStore(d npu.Device, n int) (*store, error) {
	if d == nil {
		return &store{m: kolo.HostMemory(make([]byte, n))}, nil
	}
	s, err := d.NewStream(npu.StreamConfig{})
	if err != nil {
		return nil, err
	}
	m, err := d.Alloc(int64(n))
	return &store{m.Slice(0, int64(n)), s}, err
}

// put writes b at off, get reads n bytes from there.
func (x *store) put(ctx context.Context, off int, b []byte) error {
	return x.move(ctx, x.m.Slice(int64(off), int64(len(b))), kolo.HostMemory(b))
}

func (x *store) get(ctx context.Context, off, n int) ([]byte, error) {
	b := make([]byte, n)
	return b, x.move(ctx, kolo.HostMemory(b), x.m.Slice(int64(off), int64(n)))
}

func (x *store) move(ctx context.Context, dst, src kolo.Memory) error {
	if x.s == nil {
		copy(dst.Host, src.Host)
		return nil
	}
	if err := x.s.Copy(dst, src); err != nil {
		return err
	}
	return x.s.Sync(ctx)
}

// windowRank is a process with a window: rank 1 keeps a cache and decodes, while rank 0
// puts blocks into it and gets others out.
func windowRank(ctx context.Context, w *rank.World, d npu.Device) error {
	win, err := w.NewWindow(rank.WindowConfig{Name: "kv"})
	if err != nil {
		return err
	}
	if w.Rank() == 0 {
		err = prefill(ctx, win, d)
	} else {
		err = decode(ctx, win, d)
	}
	if err == nil {
		err = rank.Barrier(ctx, w.Group())
	}
	if err != nil {
		return err
	}
	return win.Close(ctx)
}

// decode looks at each block when its notice has come, and at an older one, which must
// not have changed. The last block of its memory is its own, for the other to get.
func decode(ctx context.Context, win *rank.Window, d npu.Device) error {
	cache, err := newStore(d, (cacheBlocks+1)*cacheBlock)
	if err == nil {
		err = cache.put(ctx, cacheBlocks*cacheBlock, cacheBytes(1000, cacheBlock))
	}
	if err == nil {
		_, err = win.Register("cache", cache.m)
	}
	if err == nil {
		err = win.Listen()
	}
	if err != nil {
		return err
	}
	for i := range cacheBlocks {
		n, err := win.NextNotice(ctx)
		if err != nil {
			return err
		}
		number := int(binary.LittleEndian.Uint32(n.Message))
		if number != i {
			return fmt.Errorf("notice of block %d, want %d", number, i)
		}
		for _, k := range []int{number, number / 2} {
			b, err := cache.get(ctx, k*cacheBlock, cacheBlock)
			if err != nil {
				return err
			}
			if !bytes.Equal(b, cacheBytes(k, cacheBlock)) {
				return fmt.Errorf("block %d is not what was put, after notice %d", k, i)
			}
		}
	}
	fmt.Println("DECODED")
	return nil
}

// prefill puts the blocks, one after the other and without waiting, each in three pieces;
// and gets the other's own one meanwhile, and in the end what it has put.
func prefill(ctx context.Context, win *rank.Window, d npu.Device) error {
	target, err := win.Connect(ctx, 1)
	if err != nil {
		return err
	}
	cache, err := target.Region("cache")
	if err != nil {
		return err
	}
	mine, err := newStore(d, (cacheBlocks+1)*cacheBlock)
	if err != nil {
		return err
	}
	piece := func(off, n int) rank.TransferDesc {
		return rank.TransferDesc{Local: mine.m.Slice(int64(off), int64(n)), Region: cache.Key, Offset: int64(off)}
	}
	var transfers []*rank.Transfer
	for i := range cacheBlocks {
		at := i * cacheBlock
		if err := mine.put(ctx, at, cacheBytes(i, cacheBlock)); err != nil {
			return err
		}
		transfers = append(transfers, target.PutNotifyAsync([]rank.TransferDesc{piece(at+1000, cacheBlock-1000), piece(at, 7), piece(at+7, 993)},
			rank.Notice{Name: "block", Message: binary.LittleEndian.AppendUint32(nil, uint32(i))}))
		if i == cacheBlocks/2 {
			transfers = append(transfers, target.GetAsync([]rank.TransferDesc{piece(cacheBlocks*cacheBlock, cacheBlock)}))
		}
	}
	for _, x := range transfers {
		if err := x.Wait(ctx); err != nil {
			return err
		}
	}
	if b, err := mine.get(ctx, cacheBlocks*cacheBlock, cacheBlock); err != nil || !bytes.Equal(b, cacheBytes(1000, cacheBlock)) {
		return fmt.Errorf("what was got is not the target's (%v)", err)
	}
	if err := mine.put(ctx, 0, make([]byte, cacheBlocks*cacheBlock)); err != nil {
		return err
	}
	if err := target.Get(ctx, []rank.TransferDesc{piece(0, cacheBlocks*cacheBlock)}); err != nil {
		return err
	}
	for i := range cacheBlocks {
		if b, err := mine.get(ctx, i*cacheBlock, cacheBlock); err != nil || !bytes.Equal(b, cacheBytes(i, cacheBlock)) {
			return fmt.Errorf("block %d that was got back is another one (%v)", i, err)
		}
	}
	return nil
}

// Between two processes of the system, what is put and got comes whole, host memory and
// that of devices, while the target reads what it has already.
func TestWindowsBetweenProcesses(t *testing.T) {
	for _, memory := range []string{"host", "device"} {
		for _, transport := range []string{"shm", "tcp", "roce"} {
			t.Run(memory+" by "+transport, func(t *testing.T) {
				start := time.Now()
				env := []string{"KOLO_TEST_TRANSPORT=" + transport}
				if memory == "device" {
					env = append(env, "KOLO_TEST_DEVICES=1")
				}
				list := spawn(t, "window", 2, env...)
				for _, o := range list {
					o.wait(t, "DONE", patience)
				}
				list[1].wait(t, "DECODED", time.Second)
				t.Logf("%v", time.Since(start))
			})
		}
	}
}
