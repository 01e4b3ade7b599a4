// Command kvcache separates prefill from decode: a prefill rank computes the blocks of a
// KV cache and puts each into the memory of a decode rank while it computes the next one;
// the decode rank makes no call for it, and reads every block as soon as its notice has
// come. Then it compares a put with the calls that could hand over the same bytes.
//
//	go run ./examples/kvcache                              two ranks of one process
//	kolo run -n 2 -- go run ./examples/kvcache -driver shm   two processes
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	_ "github.com/kolo-ccl/kolo/channel/roce" // linked in, for -driver
	_ "github.com/kolo-ccl/kolo/channel/shm"  // linked in
	_ "github.com/kolo-ccl/kolo/channel/tcp"  // linked in
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	prefill kolo.Rank = 0
	decode  kolo.Rank = 1
)

// size is how much is done.
type size struct {
	layers, block int // blocks of a sequence, and bytes of each
	sequences     int
	compare       []int // bytes that a put is compared for
	times         int
}

func main() {
	driver := flag.String("driver", "", "how the ranks are joined: hccs (within a process), shm, tcp, roce; chosen by what is there if empty")
	flag.Parse()
	s := size{layers: 32, block: 1 << 20, sequences: 4, compare: []int{2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20}, times: 15}
	does := run
	if os.Getenv("WORLD_SIZE") != "" {
		does = join
	}
	if err := does(context.Background(), os.Stdout, *driver, s); err != nil {
		slog.Error("kvcache", "error", err)
		os.Exit(1)
	}
}

// run does it with two ranks of this process.
func run(ctx context.Context, out io.Writer, driver string, s size) error {
	c := rank.Config{Driver: driver}
	if driver != "" && driver != "hccs" {
		c.Algorithm = "ring" // else the collective is done by the process's memory, without the driver
	}
	return c.Run(ctx, 2, func(ctx context.Context, w *rank.World) error { return one(ctx, out, w, s) })
}

// join does it as one of two processes, which meet by what kolo run, torchrun or Slurm has
// put in their environment.
func join(ctx context.Context, out io.Writer, driver string, s size) (err error) {
	w, err := cluster.Join(ctx, cluster.Config{Transport: driver})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	if w.Size() != 2 {
		return fmt.Errorf("%w: want 2 processes, one for prefill and one for decode; got %d", kolo.ErrArgument, w.Size())
	}
	return one(ctx, out, w, s)
}

// one is one of the two ranks.
func one(ctx context.Context, out io.Writer, w *rank.World, s size) error {
	win, err := w.NewWindow(rank.WindowConfig{Name: "kv"})
	if err != nil {
		return err
	}
	if w.Rank() == decode {
		err = decodeRank(ctx, out, w, win, s)
	} else {
		err = prefillRank(ctx, out, w, win, s)
	}
	if err != nil {
		return err
	}
	return win.Close(ctx)
}

// cacheSize is the bytes of the decode rank's memory.
func (s size) cacheSize() int { return max(s.layers*s.block*s.sequences, slices.Max(s.compare)) }

// decodeRank opens its cache to the prefill rank, and decodes while blocks come.
func decodeRank(ctx context.Context, out io.Writer, w *rank.World, win *rank.Window, s size) error {
	cache := rank.Alloc[byte](s.cacheSize())
	if _, err := win.Register("cache", kolo.HostMemory(cache)); err != nil {
		return err
	}
	if err := win.Listen(); err != nil {
		return err
	}
	var ready []int // blocks that have come
	reads := 0
	for range s.layers * s.sequences {
		n, err := win.NextNotice(ctx)
		if err != nil {
			return err
		}
		ready = append(ready, int(binary.LittleEndian.Uint32(n.Message)))
		// A step of decoding reads the new block and one of the older ones.
		for _, b := range []int{ready[len(ready)-1], ready[reads%len(ready)]} {
			if at := wrong(cache[b*s.block:(b+1)*s.block], b); at >= 0 {
				return fmt.Errorf("byte %d of block %d is not what was computed", at, b)
			}
			reads++
		}
	}
	for b := range ready { // nothing that came later has touched them
		if at := wrong(cache[b*s.block:(b+1)*s.block], b); at >= 0 {
			return fmt.Errorf("byte %d of block %d has changed", at, b)
		}
	}
	fmt.Fprintf(out, "decode rank: %d blocks of %d KiB intact, %d reads while others came\n", len(ready), s.block>>10, reads)
	if err := rank.Barrier(ctx, w.Group()); err != nil {
		return err
	}
	return compareDecode(ctx, w, s, cache)
}

// prefillRank computes and puts.
func prefillRank(ctx context.Context, out io.Writer, w *rank.World, win *rank.Window, s size) error {
	target, err := win.Connect(ctx, decode)
	if err != nil {
		return err
	}
	cache, err := target.Region("cache")
	if err != nil {
		return err
	}
	start := time.Now()
	var computing time.Duration
	var puts []*rank.Transfer
	for b := range s.layers * s.sequences {
		begun := time.Now()
		kv := compute(b, s.block)
		computing += time.Since(begun)
		list := []rank.TransferDesc{{Local: kolo.HostMemory(kv), Region: cache.Key, Offset: int64(b * s.block)}}
		puts = append(puts, target.PutNotifyAsync(list, rank.Notice{Name: "block", Message: binary.LittleEndian.AppendUint32(nil, uint32(b))}))
	}
	for _, p := range puts {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	all := time.Since(start)
	if err := rank.Barrier(ctx, w.Group()); err != nil {
		return err
	}
	fmt.Fprintf(out, "prefill rank: computed for %v, all blocks delivered after %v: %.0f %% of that was not computation\n",
		computing.Round(time.Microsecond), all.Round(time.Microsecond), 100*(all-computing).Seconds()/all.Seconds())
	return comparePrefill(ctx, out, w, s, target, cache)
}

// value is byte i of a block: different for every block and index.
func value(block, i int) byte { return byte(i*31 + i>>8*7 + block*53 + 1) }

// compute makes a block.
func compute(block, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = value(block, i)
	}
	return b
}

// wrong is the first byte of a block that is not what was computed, or -1.
func wrong(b []byte, block int) int {
	for i := range b {
		if b[i] != value(block, i) {
			return i
		}
	}
	return -1
}

// comparePrefill times a put of n bytes, a message of n bytes, and an AllGather to which
// each of the two ranks gives n bytes, which is how the bytes get across by a collective.
func comparePrefill(ctx context.Context, out io.Writer, w *rank.World, s size, target *rank.Target, cache rank.Region) error {
	g := w.Group()
	fmt.Fprintf(out, "%10s  %12s  %12s  %12s  %s\n", "bytes", "put", "send", "AllGather", "AllGather/put")
	for _, n := range s.compare {
		kv, all := rank.Alloc[byte](n), rank.Alloc[byte](2*n)
		copy(kv, compute(n, n))
		list := []rank.TransferDesc{{Local: kolo.HostMemory(kv), Region: cache.Key}}
		put, err := median(ctx, g, s.times, func() error { return target.Put(ctx, list) })
		if err != nil {
			return err
		}
		send, err := median(ctx, g, s.times, func() error { return rank.Send(ctx, g, kv, decode, 1) })
		if err != nil {
			return err
		}
		gather, err := median(ctx, g, s.times, func() error { return rank.AllGather(ctx, g, all, kv) })
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%10d  %12v  %12v  %12v  %.2f\n", n, put.Round(100*time.Nanosecond), send.Round(100*time.Nanosecond), gather.Round(100*time.Nanosecond), gather.Seconds()/put.Seconds())
	}
	return nil
}

// compareDecode is the other end: of a put there is none.
func compareDecode(ctx context.Context, w *rank.World, s size, cache []byte) error {
	g := w.Group()
	for _, n := range s.compare {
		kv, all := rank.Alloc[byte](n), rank.Alloc[byte](2*n)
		if _, err := median(ctx, g, s.times, func() error { return nil }); err != nil {
			return err
		}
		if at := wrong(cache[:n], n); at >= 0 {
			return fmt.Errorf("byte %d of a put of %d bytes is not what was computed", at, n)
		}
		if _, err := median(ctx, g, s.times, func() error { return rank.Recv(ctx, g, kv, prefill, 1) }); err != nil {
			return err
		}
		if _, err := median(ctx, g, s.times, func() error { return rank.AllGather(ctx, g, all, kv) }); err != nil {
			return err
		}
		if at := wrong(all[:n], n); at >= 0 {
			return fmt.Errorf("byte %d of an AllGather of %d bytes is not what was computed", at, n)
		}
	}
	return nil
}

// median is the median time of f after a barrier, of some times after one that does not
// count.
func median(ctx context.Context, g *rank.Group, times int, f func() error) (time.Duration, error) {
	var list []time.Duration
	for i := range times + 1 {
		if err := rank.Barrier(ctx, g); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		if i > 0 {
			list = append(list, time.Since(start))
		}
	}
	slices.Sort(list)
	return list[len(list)/2], rank.Barrier(ctx, g)
}
