package msccl

import (
	"fmt"
	"math/rand/v2"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// play runs a file as a runtime of thread blocks would, one chunk a number, with room for
// credits messages on each connection, and draws what happens next from rng. It shares
// nothing with Import. The error is a wrong result, a deadlock or a step outside of a buffer.
func play(f *File, credits int, rng *rand.Rand) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	g := &game{f: f, rng: rng, wires: map[wire][][]int64{}}
	n, parts := len(f.GPUs), f.Chunks/len(f.GPUs)
	for r := range n {
		in, out := make([]int64, f.Chunks), make([]int64, f.Chunks)
		for i := range in {
			in[i], out[i] = rng.Int64N(1<<30), -rng.Int64N(1<<40)
		}
		g.given = append(g.given, append([]int64(nil), in...))
		mem := [3][]int64{in, out, make([]int64, f.GPUs[r].Scratch)}
		switch {
		case f.InPlace && f.Collective == kolo.AllGather:
			copy(out[r*parts:(r+1)*parts], in)
			mem[plan.In] = out[r*parts : (r+1)*parts]
		case f.InPlace && f.Collective == kolo.ReduceScatter:
			mem[plan.Out] = in[r*parts : (r+1)*parts]
		case f.InPlace:
			mem[plan.Out] = in
		}
		g.memory = append(g.memory, mem)
		g.at = append(g.at, make([]int, len(f.GPUs[r].Blocks)))
	}
	for again := true; again; {
		again = false
		for _, k := range rng.Perm(n) {
			for _, b := range rng.Perm(len(f.GPUs[k].Blocks)) {
				for range 1 + rng.IntN(3) {
					again = g.step(k, b, credits) || again
				}
			}
		}
	}
	return g.result(parts)
}

// game is a run of a file. Sends are copies, so that it needs credits; what a fused step
// passes on counts none.
type game struct {
	f      *File
	rng    *rand.Rand
	given  [][]int64
	memory [][3][]int64
	at     [][]int
	wires  map[wire][][]int64
}

type wire struct{ from, to, channel int }

// step does the next step of a block if it may.
func (g *game) step(k, b, credits int) bool {
	block := &g.f.GPUs[k].Blocks[b]
	if g.at[k][b] == len(block.Steps) {
		return false
	}
	s := &block.Steps[g.at[k][b]]
	if s.DepBlock >= 0 && g.at[k][s.DepBlock] <= s.DepStep {
		return false
	}
	in, out := wire{int(block.Recv), k, block.Channel}, wire{k, int(block.Send), block.Channel}
	if s.Op.receives() && len(g.wires[in]) == 0 || s.Op == Send && len(g.wires[out]) >= credits {
		return false
	}
	var src, dst, value []int64
	if s.Op.reads() {
		src = g.memory[k][s.Src.Buffer][s.Src.Offset:][:s.Count]
	}
	if s.Op.writes() {
		dst = g.memory[k][s.Dst.Buffer][s.Dst.Offset:][:s.Count]
	}
	value = append(value, src...)
	if s.Op.receives() {
		got := g.wires[in][0]
		g.wires[in] = g.wires[in][1:]
		if len(got) != s.Count {
			panic("a message of another length")
		}
		value = got
	}
	for i := range value {
		switch s.Op {
		case RecvReduceCopy, RecvReduceCopySend, RecvReduceSend:
			value[i] += src[i]
		case Reduce:
			value[i] += dst[i]
		}
		if dst != nil {
			dst[i] = value[i]
		}
	}
	if s.Op.sends() {
		g.wires[out] = append(g.wires[out], append([]int64(nil), value...))
	}
	g.at[k][b]++
	return true
}

func (g *game) result(parts int) error {
	f := g.f
	for k := range f.GPUs {
		for b, i := range g.at[k] {
			if i < len(f.GPUs[k].Blocks[b].Steps) {
				return fmt.Errorf("deadlock at %s", f.name(k, b, i))
			}
		}
		for i := range f.Chunks {
			var want int64
			from := g.memory[k][plan.Out]
			switch f.Collective {
			case kolo.AllGather:
				want = g.given[i/parts][i%parts]
			case kolo.AllToAll:
				want = g.given[i/parts][k*parts+i%parts]
			default:
				for r := range f.GPUs {
					want += g.given[r][i]
				}
			}
			if f.Collective == kolo.ReduceScatter {
				if i/parts != k {
					continue
				}
				from = from[:parts]
				if from[i%parts] != want {
					return fmt.Errorf("chunk %d of rank %d is wrong", i, k)
				}
				continue
			}
			if from[i] != want {
				return fmt.Errorf("chunk %d of rank %d is wrong", i, k)
			}
		}
	}
	return nil
}
