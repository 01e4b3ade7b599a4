package cluster

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// anyRequest is what each of n ranks asks for in a call of any collective, element type,
// operation and size, with counts that differ. memory makes a rank's buffers.
func anyRequest(rng *rand.Rand, n int, memory func(r kolo.Rank, size int64) []byte) []rank.Request {
	k := kolo.Collectives()[rng.IntN(len(kolo.Collectives()))]
	dtype := kolo.DTypes()[rng.IntN(len(kolo.DTypes()))]
	op := []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg}[rng.IntN(5)]
	if dtype.Float() && rng.IntN(4) == 0 {
		op = kolo.PreMulSum(0.75)
	}
	if k.Reduces() && op.Check(dtype) != nil { // an element that is moved and not computed with
		dtype, op = kolo.BFloat16, kolo.Sum
	}
	root, most := kolo.Rank(rng.IntN(n)), 1<<rng.IntN(17)
	inPlace := rng.IntN(2) == 0
	matrix := make([]int64, n*n) // what each sends to each
	for i := range matrix {
		switch matrix[i] = int64(rng.IntN(most)); {
		case k.Base() == k:
			matrix[i] = matrix[0]
		case rng.IntN(4) == 0:
			matrix[i] = 0
		}
	}
	counts := matrix[:n]
	list := make([]rank.Request, n)
	for r := range list {
		me, q := kolo.Rank(r), &list[r]
		*q = rank.Request{Collective: k}
		if k.Reduces() {
			q.Op = op
		}
		if k.Rooted() {
			q.Root = root
		}
		buffer := func(counts ...int64) rank.Buffer {
			total := int64(0)
			for _, c := range counts {
				total += c
			}
			b := memory(me, total*int64(dtype.Size()))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return rank.Buffer{Memory: kolo.HostMemory(b), DType: dtype}
		}
		chunk := func(b rank.Buffer) rank.Buffer {
			at := int64(0)
			for _, c := range counts[:r] {
				at += c
			}
			size := int64(dtype.Size())
			return rank.Buffer{Memory: b.Memory.Slice(at*size, counts[r]*size), DType: dtype}
		}
		isRoot := !k.Rooted() || me == root
		row, column := matrix[r*n:(r+1)*n], make([]int64, n)
		for i := range column {
			column[i] = matrix[i*n+r]
		}
		switch k.Base() {
		case kolo.AllReduce, kolo.Reduce:
			if q.In = buffer(counts[0]); isRoot && inPlace {
				q.Out = q.In
			} else if isRoot {
				q.Out = buffer(counts[0])
			}
		case kolo.Broadcast:
			q.Out = buffer(counts[0])
		case kolo.AllGather, kolo.Gather:
			if k.Base() != k {
				q.Recv.Counts = counts
			}
			if isRoot {
				q.Out = buffer(counts...)
			}
			if q.In = buffer(counts[r]); isRoot && inPlace {
				q.In = chunk(q.Out)
			}
		case kolo.ReduceScatter, kolo.Scatter:
			if k.Base() != k {
				q.Send.Counts = counts
			}
			if isRoot {
				q.In = buffer(counts...)
			}
			if q.Out = buffer(counts[r]); isRoot && inPlace {
				q.Out = chunk(q.In)
			}
		case kolo.AllToAll:
			switch k {
			case kolo.AllToAllV:
				q.Send.Counts, q.Recv.Counts = row, column
			case kolo.AllToAllVC:
				q.Send.Counts = matrix
			}
			if q.In, q.Out = buffer(row...), buffer(column...); inPlace && k == kolo.AllToAll {
				q.Out = q.In
			}
		}
	}
	return list
}

// TestMediumBetweenProcessesIsThatOfOne compares random calls, bit by bit, with those of
// ranks that are in one process. Some ranks have their buffers in shared memory.
func TestMediumBetweenProcessesIsThatOfOne(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the shm driver is for linux")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i, sizes := range [][]int{{1, 1}, {2, 1, 1}, {2, 2}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			config := rank.Config{Timeout: 20 * time.Second, Reproducible: true}
			worlds := worldsOf(together(t, Config{Transport: "shm", Rank: config}, sizes...))
			near, err := rank.Open(len(worlds), config)
			require.NoError(t, err)
			const shared = 40 << 20
			arenas := make([][]byte, len(worlds))
			for r, w := range worlds {
				if (seed>>r)&1 != 0 {
					arenas[r], _, err = rank.AllocShared[byte](w, shared)
					require.NoError(t, err)
				}
			}
			for n := range 60 {
				used := make([]int64, len(worlds))
				there := anyRequest(rand.New(rand.NewPCG(seed, uint64(100*i+n))), len(worlds), func(r kolo.Rank, size int64) []byte {
					at := used[r] + 64
					if used[r] = at + size&^63 + 64; arenas[r] == nil || used[r] > shared {
						return make([]byte, size)
					}
					return arenas[r][at:][:size:size]
				})
				here := anyRequest(rand.New(rand.NewPCG(seed, uint64(100*i+n))), len(worlds), func(_ kolo.Rank, size int64) []byte { return make([]byte, size) })
				for r, err := range each(slices.Concat(worlds, near), func(w *rank.World) error {
					list := there
					if slices.Contains(near, w) {
						list = here
					}
					return rank.Do(t.Context(), w.Group(), list[w.Rank()])
				}) {
					require.NoError(t, err, "call %d, %v on rank %d", n, there[0].Collective, r)
				}
				for r := range worlds {
					if !bytes.Equal(there[r].Out.Memory.Host, here[r].Out.Memory.Host) || !bytes.Equal(there[r].In.Memory.Host, here[r].In.Memory.Host) {
						t.Errorf("call %d, %v of %v %v: rank %d has other bits", n, there[r].Collective, there[r].Out.DType, there[r].Op, r)
					}
				}
			}
			closeAll(t, worlds)
			closeAll(t, near)
		})
	}
}

// A Barrier has no data, and is over when the last rank has come to it.
func TestBarrierBetweenProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience}}, 1, 1, 1))
			for range 20 {
				var works []rank.Work
				for i, w := range worlds {
					for k, work := range works { // the others have had time to look
						sent := rank.SendAsync(w.Group(), []int32{1}, kolo.Rank(k), 0)
						require.NoError(t, rank.Recv(t.Context(), worlds[k].Group(), make([]int32, 1), kolo.Rank(i), 0))
						require.NoError(t, sent.Wait(t.Context()))
						select {
						case <-work.Done():
							t.Fatalf("rank %d has passed a barrier before rank %d came: %v", k, i, work.Wait(t.Context()))
						default:
						}
					}
					works = append(works, rank.BarrierAsync(w.Group()))
				}
				for _, work := range works {
					require.NoError(t, work.Wait(t.Context()))
				}
			}
			closeAll(t, worlds)
		})
	}
}

// Ranks whose earlier calls differed, of which nobody needed anything of the other, are told so in
// the next call that does: the error is one of all ranks, and says what differs.
func TestEarlierCallThatDiffered(t *testing.T) {
	worlds := worldsOf(together(t, Config{Transport: "shm", Rank: rank.Config{Timeout: patience}}, 1, 1, 1))
	errs := each(worlds, func(w *rank.World) error {
		g := w.Group()
		if err := rank.Broadcast(t.Context(), g, data(w.Rank(), 2), w.Rank()); err != nil { // each from itself
			return fmt.Errorf("the call that differs: %w", err)
		}
		return rank.AllReduce(t.Context(), g, data(w.Rank(), 2), kolo.Sum)
	})
	for r, err := range errs {
		t.Logf("rank %d: %v", r, err)
		require.ErrorIs(t, err, kolo.ErrMismatch, "rank %d", r)
	}
	closeAll(t, worlds)
}
