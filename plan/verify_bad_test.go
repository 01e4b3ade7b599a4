package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// The Programs here are written by hand, so that what Verify says does not depend
// on the builder.

func one(b Buffer, off int) []Span    { return []Span{{b, int32(off), 1, 1}} }
func run(b Buffer, off, n int) []Span { return []Span{{b, int32(off), int32(n), 1}} }
func to(ranks ...kolo.Rank) []kolo.Rank {
	return ranks
}

// byHand is one Program per rank of a collective, with the buffers that it has.
func byHand(k Key, ranks, parts, scratch int, steps func(r kolo.Rank) []Step) []*Program {
	var out []*Program
	for r := range ranks {
		p := &Program{Collective: k.Collective.Base(), Rank: kolo.Rank(r), Ranks: ranks, Root: k.Root,
			InPlace: k.InPlace, Chunks: 1, Parts: parts}
		if chunked(p.Collective) {
			p.Chunks = ranks
		}
		p.Blocks[In], p.Blocks[Out] = p.Buffers()
		p.Blocks[Scratch] = scratch
		p.Steps = steps(kolo.Rank(r))
		out = append(out, p)
	}
	return out
}

var gatherKey = Key{Collective: kolo.AllGather}

// gatherTwo: two ranks copy their own part and swap it.
func gatherTwo() []*Program {
	return byHand(gatherKey, 2, 1, 1, func(r kolo.Rank) []Step {
		return []Step{
			{Op: Copy, Src: one(In, 0), Dst: one(Out, int(r))},
			{Op: Send, Peers: to(1 - r), Src: one(In, 0)},
			{Op: Recv, Peers: to(1 - r), Dst: one(Out, int(1-r))},
		}
	})
}

var reduceKey = Key{Collective: kolo.AllReduce}

// reduceThree: three ranks send all they have to each other, in two blocks, and
// fold in one pass.
func reduceThree() []*Program {
	return byHand(reduceKey, 3, 2, 2, func(r kolo.Rank) []Step {
		a, b := (r+1)%3, (r+2)%3
		return []Step{
			{Op: Send, Peers: to(a, b), Src: run(In, 0, 2)},
			{Op: RecvReduce, Final: true, Peers: to(b, a), Src: run(In, 0, 2), Dst: run(Out, 0, 2)},
		}
	})
}

// ringThree: part 0 goes around from rank 0 to 1 to 2 and back.
func ringThree() []*Program {
	return byHand(Key{Collective: kolo.AllReduce}, 3, 1, 1, func(r kolo.Rank) []Step {
		next, back := (r+1)%3, (r+2)%3
		switch r {
		case 0:
			return []Step{
				{Op: Send, Peers: to(next), Src: one(In, 0)},
				{Op: Recv, Peers: to(back), Dst: one(Out, 0)},
				{Op: Send, Peers: to(next), Src: one(Out, 0), After: []int32{1}},
			}
		case 1:
			return []Step{
				{Op: RecvReduce, Peers: to(back), Src: one(In, 0), Dst: one(Scratch, 0)},
				{Op: Send, Peers: to(next), Src: one(Scratch, 0), After: []int32{0}},
				{Op: Recv, Peers: to(back), Dst: one(Out, 0)},
			}
		}
		return []Step{
			{Op: RecvReduce, Final: true, Peers: to(back), Src: one(In, 0), Dst: one(Out, 0)},
			{Op: Send, Peers: to(next), Src: one(Out, 0), After: []int32{0}},
		}
	})
}

func TestVerifyAcceptsWhatIsRight(t *testing.T) {
	eager := func(depth int) []*Program { // both ranks first send, then receive
		k := Key{Collective: kolo.AllToAll}
		return byHand(k, 2, depth, 0, func(r kolo.Rank) []Step {
			var s []Step
			var sends []int32
			for i := range depth {
				s = append(s, Step{Op: Send, Peers: to(1 - r), Src: one(In, int(1-r)*depth+i)})
				sends = append(sends, int32(i))
			}
			for i := range depth {
				s = append(s, Step{Op: Recv, Peers: to(1 - r), Dst: one(Out, int(1-r)*depth+i), After: sends})
			}
			return append(s, Step{Op: Copy, Src: run(In, int(r)*depth, depth), Dst: run(Out, int(r)*depth, depth)})
		})
	}
	fabricOf := func(k Key) []*Program {
		return byHand(k, 3, 1, 0, func(kolo.Rank) []Step { return []Step{{Op: Fabric}} })
	}
	barrier := Key{Collective: kolo.Barrier}
	signals := byHand(barrier, 4, 4, 4, func(r kolo.Rank) []Step { // by distance 1, then 2
		return []Step{
			{Op: Send, Peers: to((r + 1) % 4), Src: one(In, 0)},
			{Op: Recv, Peers: to((r + 3) % 4), Dst: one(Out, 0)},
			{Op: Send, Peers: to((r + 2) % 4), Src: one(In, 0), After: []int32{1}},
			{Op: Recv, Peers: to((r + 2) % 4), Dst: one(Out, 0), After: []int32{1}},
		}
	})
	for _, row := range []struct {
		name     string
		key      Key
		programs []*Program
		want     Report
	}{
		{"swap", gatherKey, gatherTwo(), Report{Ranks: 2, Steps: 6, Messages: 2, SameBits: true, OnePass: true}},
		{"one pass", reduceKey, reduceThree(), Report{Ranks: 3, Steps: 6, Messages: 6, SameBits: true, OnePass: true}},
		{"several passes", reduceKey, ringThree(), Report{Ranks: 3, Steps: 8, Messages: 4, SameBits: true}},
		{"one credit", Key{Collective: kolo.AllToAll}, eager(1), Report{Ranks: 2, Steps: 6, Messages: 2, Credits: 1, SameBits: true, OnePass: true}},
		{"three credits", Key{Collective: kolo.AllToAll}, eager(3), Report{Ranks: 2, Steps: 14, Messages: 6, Credits: 3, SameBits: true, OnePass: true}},
		{"fabric", reduceKey, fabricOf(reduceKey), Report{Ranks: 3, Steps: 3, SameBits: true, OnePass: true}},
		{"barrier", barrier, signals, Report{Ranks: 4, Steps: 16, Messages: 8, SameBits: true, OnePass: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Verify(row.key, row.programs)
			require.NoError(t, err)
			require.Equal(t, row.want, got)
		})
	}
}

// bad is a row of the table of what Verify must find.
type bad struct {
	name     string
	key      Key
	programs []*Program
	spoil    func(p []*Program)
	check    Check
	text     string // part of the message
}

func (b bad) find(t *testing.T) {
	t.Run(b.check.String()+"/"+b.name, func(t *testing.T) {
		b.spoil(b.programs)
		_, err := Verify(b.key, b.programs)
		require.Error(t, err)
		var f *Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, b.check, f.Check, f.Text)
		require.Contains(t, f.Text, b.text)
	})
}

func TestVerifyFindsBadShapes(t *testing.T) {
	for _, b := range []bad{
		{"no program", gatherKey, nil, func([]*Program) {}, CheckShape, "0 programs with root 0"},
		{"no such root", Key{Collective: kolo.Gather, Root: 2}, gatherTwo(), func([]*Program) {}, CheckShape, "2 programs with root 2"},
		{"negative scratch", gatherKey, gatherTwo(), func(p []*Program) { p[1].Blocks[Scratch] = -1 }, CheckShape, "blocks of scratch -1"},
		{"missing program", gatherKey, gatherTwo(), func(p []*Program) { p[1] = nil }, CheckShape, "rank 1 has no program"},
		{"wrong rank", gatherKey, gatherTwo(), func(p []*Program) { p[1] = p[0] }, CheckShape, "program 1 says rank 0 instead of 1"},
		{"wrong group", gatherKey, gatherTwo(), func(p []*Program) { p[1].Ranks = 3 }, CheckShape, "number of ranks 3 instead of 2"},
		{"other collective", reduceKey, gatherTwo(), func([]*Program) {}, CheckShape, "collective AllGather instead of AllReduce"},
		{"other root", Key{Collective: kolo.Broadcast, Root: 1, InPlace: true},
			byHand(Key{Collective: kolo.Broadcast, InPlace: true}, 2, 1, 0, func(kolo.Rank) []Step { return nil }),
			func([]*Program) {}, CheckShape, "root 0 instead of 1"},
		{"in place", Key{Collective: kolo.AllGather, InPlace: true}, gatherTwo(), func([]*Program) {}, CheckShape, "in place false instead of true"},
		{"chunks", gatherKey, gatherTwo(), func(p []*Program) { p[0].Chunks = 1 }, CheckShape, "chunks 1 instead of 2"},
		{"parts", gatherKey, gatherTwo(), func(p []*Program) { p[1].Parts = 2 }, CheckShape, "parts 2 instead of 1"},
		{"blocks", gatherKey, gatherTwo(), func(p []*Program) { p[0].Blocks[Out] = 1 }, CheckShape, "blocks of in and out [1 1] instead of [1 2]"},
		{"after itself", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].After = []int32{1} }, CheckShape,
			"rank 0, step 1 (send in[0] to rank 1): it comes after step 1"},
		{"after nothing", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].After = []int32{-1} }, CheckShape, "after step -1"},
		{"no such rank", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].Peers = to(2) }, CheckShape, "there is no rank 2"},
		{"own peer", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].Peers = to(0) }, CheckShape, "cannot be its own peer"},
		{"peer twice", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Peers = to(0, 0) }, CheckShape, "it names rank 0 twice"},
		{"long span", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].Src[0].N = 2 }, CheckShape, "a span of 2 blocks in in, which has 1"},
		{"no such buffer", gatherKey, gatherTwo(), func(p []*Program) { p[0].Steps[1].Src[0].Buf = 7 }, CheckShape, "which has 0"},
		{"recv from two", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Op = Recv }, CheckShape, "do not suit the opcode"},
		{"unknown opcode", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps[1].Op = 99 }, CheckShape, "do not suit the opcode"},
		{"final recv", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps[2].Final = true }, CheckShape, "only a reduction can be final"},
		{"written input", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps[2].Dst = one(In, 0) }, CheckShape, "input may only be written in place"},
		{"written twice", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Dst[0].Stride = 2 }, CheckShape, "it writes out[0] twice"},
		{"crossed", reduceKey, reduceThree(), func(p []*Program) {
			p[1].Steps[1].Src, p[1].Steps[1].Dst = run(Out, 0, 2), []Span{{Out, 1, 2, 1}}
		}, CheckShape, "it reads out[0] for its block 0 and writes it as its block 1"},
		{"unequal size", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Dst = []Span{{Out, 1, 2, 1}} }, CheckShape,
			"in[0] of rank 1 and out[1] of rank 1 are of unequal size for some counts of AllReduce"},
		{"unequal number", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Dst[0].N = 1 }, CheckShape, "2 source blocks and 1 destination"},
		{"fabric and more", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1] = Step{Op: Fabric} }, CheckShape, "must be alone"},
	} {
		b.find(t)
	}
}

func TestVerifyFindsWhatDoesNotMatch(t *testing.T) {
	v := Key{Collective: kolo.AllGatherV}
	for _, b := range []bad{
		{"missing recv", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps = p[1].Steps[:2] }, CheckMatch,
			"rank 0, step 1 (send in[0] to rank 1): it has no partner: rank 0 sends 1 messages to rank 1 on lane 0, which takes 0"},
		{"missing send", gatherKey, gatherTwo(), func(p []*Program) {
			p[1].Steps[1].Op = Copy
			p[1].Steps[1] = Step{Op: Copy, Src: one(In, 0), Dst: one(Scratch, 0)}
		}, CheckMatch,
			"rank 0, step 2 (recv out[1] from rank 1): it has no partner"},
		{"other lane", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps[1].Lane = 3 }, CheckMatch, "rank 1 sends 0 messages to rank 0 on lane 0, which takes 1"},
		{"other peer", reduceKey, ringThree(), func(p []*Program) { p[2].Steps[1].Peers = to(1) }, CheckMatch, "it has no partner"},
		{"fewer blocks", reduceKey, reduceThree(), func(p []*Program) { p[0].Steps[0].Src[0].N = 1 }, CheckMatch,
			"1 blocks meet 2 of rank 1, step 1 (final recv-reduce in[0:2] and rank 0 and 2 into out[0:2])"},
		{"block of another size", reduceKey, reduceThree(), func(p []*Program) { p[0].Steps[0].Src[0].Off = 1 }, CheckMatch,
			"in[1] of rank 0 and out[0] of rank 1 are of unequal size for some counts of AllReduce"},
		{"chunk of another rank", v, gatherTwo(), func(p []*Program) { p[0].Steps[2].Dst, p[0].Steps[0].Dst = one(Out, 0), one(Out, 1) }, CheckShape,
			"in[0] of rank 0 and out[1] of rank 0 are of unequal size for some counts of AllGatherV"},
		{"absent from the fabric", reduceKey, byHand(reduceKey, 2, 1, 0, func(r kolo.Rank) []Step {
			return []Step{{Op: Fabric}}[:1-r]
		}), func([]*Program) {}, CheckMatch, "rank 1 has no fabric step"},
	} {
		b.find(t)
	}
}

func TestVerifyFindsDeadlocks(t *testing.T) {
	for _, b := range []bad{
		{"receive before send", gatherKey, gatherTwo(), func(p []*Program) {
			for _, q := range p {
				q.Steps[1], q.Steps[2] = q.Steps[2], q.Steps[1]
				q.Steps[2].After = []int32{1}
			}
		}, CheckDeadlock, "rank 0, step 1 (recv out[1] from rank 1) waits for rank 1, step 2 (send in[0] to rank 0) waits for " +
			"rank 1, step 1 (recv out[0] from rank 0) waits for rank 0, step 2 (send in[0] to rank 1) waits for the first"},
		{"order of a connection", Key{Collective: kolo.AllToAll}, byHand(Key{Collective: kolo.AllToAll}, 2, 2, 0, func(r kolo.Rank) []Step {
			if r == 0 { // the second message is what the peer's answer needs, but the first may go only after the answer
				return []Step{
					{Op: Recv, Peers: to(1), Dst: one(Out, 2)},
					{Op: Send, Peers: to(1), Src: one(In, 2), After: []int32{0}},
					{Op: Send, Peers: to(1), Src: one(In, 3)},
					{Op: Recv, Peers: to(1), Dst: one(Out, 3)},
				}
			}
			return []Step{
				{Op: Recv, Peers: to(0), Dst: one(Out, 0)},
				{Op: Recv, Peers: to(0), Dst: one(Out, 1)},
				{Op: Send, Peers: to(0), Src: one(In, 0), After: []int32{1}},
				{Op: Send, Peers: to(0), Src: one(In, 1)},
			}
		}), func([]*Program) {}, CheckDeadlock, "waits for the first"},
	} {
		b.find(t)
	}
}

func TestVerifyFindsRaces(t *testing.T) {
	for _, b := range []bad{
		{"forwarded too early", reduceKey, ringThree(), func(p []*Program) { p[0].Steps[2].After = nil }, CheckRace,
			"rank 0, step 2 (send out[0] to rank 1): it reads out[0], and nothing orders that with the write by step 1 (recv out[0] from rank 2)"},
		{"overwritten while sent", reduceKey, ringThree(), func(p []*Program) {
			p[1].Steps[1].Src, p[1].Steps[0].Dst, p[1].Steps[2].After = one(Out, 0), one(Out, 0), []int32{0}
		}, CheckRace, "rank 1, step 2 (recv out[0] from rank 0): it writes out[0], and nothing orders that with the read by step 1"},
		{"written twice", gatherKey, gatherTwo(), func(p []*Program) {
			p[0].Steps[0].Dst = one(Out, 1)
		}, CheckRace, "nothing orders that with the write by step 0 (copy in[0] to out[1])"},
	} {
		b.find(t)
	}
}

func TestVerifyFollowsOrderThroughOtherRanks(t *testing.T) {
	// The question goes out after step 0 and the answer comes after the question.
	k := Key{Collective: kolo.AllGather, InPlace: true}
	echo := func(last Step) []*Program {
		return byHand(k, 2, 1, 2, func(r kolo.Rank) []Step {
			if r == 0 {
				return []Step{
					{Op: Copy, Src: one(Out, 0), Dst: one(Scratch, 0)},
					{Op: Send, Peers: to(1), Src: one(Out, 0), After: []int32{0}},
					{Op: Recv, Peers: to(1), Dst: one(Out, 1)},
					last,
				}
			}
			return []Step{
				{Op: Recv, Peers: to(0), Dst: one(Out, 0)},
				{Op: Send, Peers: to(0), Src: one(Out, 1), After: []int32{0}},
			}
		})
	}
	_, err := Verify(k, echo(Step{Op: Copy, Src: one(Out, 1), Dst: one(Scratch, 0), After: []int32{2}}))
	require.NoError(t, err, "step 0 must have ended")
	_, err = Verify(k, echo(Step{Op: Copy, Src: one(Out, 1), Dst: one(Out, 0), After: []int32{2}}))
	require.ErrorContains(t, err, "nothing orders that with the read by step 1", "the send may be held although it has arrived")
	_, err = Verify(k, echo(Step{Op: Copy, Src: one(Out, 1), Dst: one(Out, 0), After: []int32{1, 2}}))
	require.ErrorContains(t, err, "holds block 1", "it is in order, but no use")
}

func TestVerifyFindsBadValues(t *testing.T) {
	scaled := Key{Collective: kolo.AllReduce, Scale: true}
	scale := func(r kolo.Rank, more ...Step) []Step {
		return append([]Step{
			{Op: Scale, Src: one(In, 0), Dst: one(Out, 0)},
			{Op: Send, Peers: to(1 - r), Src: one(Out, 0), After: []int32{0}},
			{Op: RecvReduce, Final: true, Peers: to(1 - r), Src: one(Out, 0), Dst: one(Scratch, 0), After: []int32{0}},
			{Op: Copy, Src: one(Scratch, 0), Dst: one(Out, 0), After: []int32{0, 1, 2}},
		}, more...)
	}
	scaledTwo := func() []*Program {
		return byHand(scaled, 2, 1, 1, func(r kolo.Rank) []Step { return scale(r) })
	}
	_, err := Verify(scaled, scaledTwo())
	require.NoError(t, err)
	scatter := Key{Collective: kolo.ReduceScatter}
	scatterTwo := func() []*Program {
		return byHand(scatter, 2, 1, 0, func(r kolo.Rank) []Step {
			return []Step{
				{Op: Send, Peers: to(1 - r), Src: one(In, int(1-r))},
				{Op: RecvReduce, Final: true, Peers: to(1 - r), Src: one(In, int(r)), Dst: one(Out, 0)},
			}
		})
	}
	for _, b := range []bad{
		{"read of nothing", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[1].Src[0].Buf = Scratch }, CheckValue,
			"rank 1, step 1 (final recv-reduce scratch[0:2] and rank 0 and 2 into out[0:2]): it reads scratch[0], its block 0, which nothing has written"},
		{"send of nothing", reduceKey, reduceThree(), func(p []*Program) { p[1].Steps[0].Src[0].Buf = Scratch }, CheckValue,
			"rank 1, step 0 (send scratch[0:2] to rank 2 and 0): it sends scratch[0], its block 0, which nothing has written"},
		{"added twice", reduceKey, ringThree(), func(p []*Program) {
			p[0].Steps[1] = Step{Op: RecvReduce, Peers: to(2), Src: one(In, 0), Dst: one(Out, 0)}
		}, CheckValue, "its block 0 has an operand that was final"},
		{"own part twice", reduceKey, ringThree(), func(p []*Program) {
			p[2].Steps[0].Final = false
			p[2].Steps[0].Op, p[2].Steps[0].Src = Recv, nil
			p[0].Steps[1] = Step{Op: RecvReduce, Final: true, Peers: to(2), Src: one(In, 0), Dst: one(Out, 0)}
		}, CheckValue, "its block 0 adds the part of rank 0 a second time"},
		{"mixed blocks", scatter, scatterTwo(), func(p []*Program) { p[0].Steps[0].Src = one(In, 0) }, CheckValue,
			"rank 1, step 1 (final recv-reduce in[1] and rank 0 into out[0]): its block 0 adds block 1 of the vector to block 0"},
		{"not final", reduceKey, reduceThree(), func(p []*Program) { p[2].Steps[1].Final = false }, CheckValue,
			"every rank's part is in out[0], but the step is not final"},
		{"final too early", reduceKey, ringThree(), func(p []*Program) { p[1].Steps[0].Final = true }, CheckValue,
			"it is final, but the part of rank 2 is not in scratch[0]"},
		{"reduction of nothing", gatherKey, gatherTwo(), func(p []*Program) {
			p[0].Steps[2] = Step{Op: RecvReduce, Peers: to(1), Src: one(In, 0), Dst: one(Out, 1)}
		}, CheckValue, "AllGather reduces nothing"},
		{"multiplied without need", reduceKey, scaledTwo(), func([]*Program) {}, CheckValue, "this call multiplies nothing"},
		{"multiplied by some", scaled, scaledTwo(), func(p []*Program) { p[0].Steps[0].Op = Copy }, CheckValue, "adds what was multiplied and what was not"},
		{"multiplied twice", scaled, byHand(scaled, 2, 1, 1, func(r kolo.Rank) []Step {
			return scale(r, Step{Op: Scale, Src: one(Out, 0), Dst: one(Out, 0), After: []int32{3}})
		}), func([]*Program) {}, CheckValue, "has been multiplied before"},
		{"sum multiplied", scaled, byHand(scaled, 2, 1, 1, func(r kolo.Rank) []Step {
			s := scale(r)
			s[0].Op, s[3].Op = Copy, Scale
			return s
		}), func([]*Program) {}, CheckValue, "is a sum already"},
	} {
		b.find(t)
	}
}

func TestVerifyFindsBadResults(t *testing.T) {
	inPlace := Key{Collective: kolo.ReduceScatter, InPlace: true}
	scaled := Key{Collective: kolo.AllReduce, Scale: true}
	three := func(k Key) []*Program {
		p := reduceThree()
		return byHand(k, 3, 2, 2, func(r kolo.Rank) []Step { return p[r].Steps })
	}
	for _, b := range []bad{
		{"never written", gatherKey, gatherTwo(), func(p []*Program) { p[1].Steps = p[1].Steps[1:] }, CheckResult, "out[1] of rank 1 is never written"},
		{"another block", gatherKey, gatherTwo(), func(p []*Program) {
			p[1].Steps[0].Dst, p[1].Steps[2].Dst = p[1].Steps[2].Dst, p[1].Steps[0].Dst
		}, CheckResult, "out[0] of rank 1 holds block 1 of the vector instead of 0"},
		{"lacks a part", reduceKey, ringThree(), func(p []*Program) {
			p[1].Steps[0].Op, p[1].Steps[0].Src = Recv, nil
			p[2].Steps[0].Final = false
		}, CheckResult, "out[0] of rank 0 lacks the part of rank 1"},
		{"not multiplied", scaled, three(scaled), func([]*Program) {}, CheckResult, "was not multiplied"},
		{"changed input", inPlace, byHand(inPlace, 2, 1, 0, func(r kolo.Rank) []Step {
			return []Step{
				{Op: Send, Peers: to(1 - r), Src: one(In, int(1-r))},
				{Op: RecvReduce, Final: true, Peers: to(1 - r), Src: one(In, int(r)), Dst: one(In, int(r))},
				{Op: Copy, Src: one(In, int(r)), Dst: one(In, int(1-r)), After: []int32{0, 1}},
			}
		}), func([]*Program) {}, CheckResult, "in[1] of rank 0 is not part of the result and has been changed"},
		{"early leave", Key{Collective: kolo.Barrier}, byHand(Key{Collective: kolo.Barrier}, 3, 3, 0, func(r kolo.Rank) []Step {
			return []Step{
				{Op: Send, Peers: to((r + 1) % 3), Src: one(In, 0)},
				{Op: Recv, Peers: to((r + 2) % 3), Dst: one(Out, 0)},
			}
		}), func([]*Program) {}, CheckResult, "rank 0 can leave the barrier before rank 1 has come"},
	} {
		b.find(t)
	}
}

// calls are Calls of every collective with counts that do not divide evenly.
func calls(c kolo.Collective, n int, seed int64) *kolo.Call {
	call := &kolo.Call{Collective: c, DType: kolo.Int16, Count: []int64{1, 7, 1000, 12345, 99999}[seed%5]}
	counts := func(k int) []int64 {
		list := make([]int64, k)
		for i := range list {
			list[i] = (int64(i)*7919 + seed*104729) % 5003 * (seed + int64(i)) % 3001
		}
		return list
	}
	switch c {
	case kolo.AllGatherV, kolo.ReduceScatterV, kolo.GatherV, kolo.ScatterV:
		call.Counts, call.Count = counts(n), 0
	case kolo.AllToAllVC:
		call.Counts, call.Count = counts(n*n), 0
	}
	return call
}

func TestSlotsOfOneSizeNumberHaveOneSize(t *testing.T) {
	for _, c := range kolo.Collectives() {
		for _, place := range []bool{false, true} {
			for _, n := range []int{1, 2, 3, 5} {
				for seed := range int64(6) {
					sameSizes(t, Key{Collective: c, InPlace: place || c == kolo.Broadcast}, n, 4, calls(c, n, seed))
				}
			}
		}
	}
}

// sameSizes checks size of a choreography against Layout: equal numbers, equal bytes.
func sameSizes(t *testing.T, k Key, n, parts int, call *kolo.Call) {
	t.Helper()
	programs := byHand(k, n, parts, 0, func(kolo.Rank) []Step { return nil })
	for _, p := range programs {
		p.Blocks[Scratch] = p.Chunks * p.Parts
	}
	c, err := assemble(k, programs)
	require.NoError(t, err)
	matrix := *call
	if k.Collective == kolo.AllToAllV || k.Collective == kolo.AllToAllVC {
		matrix.Counts = calls(kolo.AllToAllVC, n, call.Count).Counts
		if k.InPlace {
			for i := range n {
				for j := range i {
					matrix.Counts[i*n+j] = matrix.Counts[j*n+i]
				}
			}
		}
	}
	bytes := map[int64]int64{}
	for r, p := range programs {
		mine := matrix
		if k.Collective == kolo.AllToAllV {
			mine.Counts, mine.RecvCounts = matrix.Counts[r*n:(r+1)*n], nil
			for q := range n {
				mine.RecvCounts = append(mine.RecvCounts, matrix.Counts[q*n+r])
			}
		}
		l := LayoutOf(p, &mine, Displs{})
		for slot := range int32(c.base[r][Scratch] + p.Blocks[Scratch]) {
			at := c.place(r, slot)
			_, size := l.Range(at.buf, int(at.block))
			number := c.size(r, slot)
			if old, ok := bytes[number]; ok && old != size {
				t.Fatalf("%v in place %v of %d ranks, %v: %s of rank %d has %d bytes, another slot of size number %d has %d",
					k.Collective, k.InPlace, n, &mine, c.slotName(r, slot), r, size, number, old)
			}
			bytes[number] = size
		}
	}
}

// bytesSource hands out the bytes of a fuzzer's input, then zeros.
type bytesSource []byte

func (b *bytesSource) next(n int) int {
	if len(*b) == 0 {
		return 0
	}
	x := int((*b)[0])
	*b = (*b)[1:]
	return x % n
}

func (b *bytesSource) spans(empty bool) (out []Span) {
	if empty && b.next(3) == 0 {
		return nil
	}
	for range 1 + b.next(2) {
		out = append(out, Span{Buffer(b.next(4)), int32(b.next(5) - 1), int32(b.next(4)), int32(b.next(4) - 1)})
	}
	return out
}

// What Verify accepts has no collision, and nothing makes it panic.
func FuzzVerify(f *testing.F) {
	for _, seed := range []string{"", "\x05\x02\x01\x03abcdefghijklmnopqrstuvwxyz0123456789", "\x04\x01\x00\x00\x03\x01\x00\x01\x01\x02\x01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytesSource(input)
		all := kolo.Collectives()
		k := Key{Collective: all[b.next(len(all))], InPlace: b.next(2) == 1, Scale: b.next(2) == 1}
		ranks := 1 + b.next(3)
		programs := byHand(k, ranks, 1+b.next(3), b.next(3), func(kolo.Rank) (steps []Step) {
			for i := range b.next(6) {
				s := Step{Op: Opcode(b.next(6)), Lane: uint8(b.next(2)), Final: b.next(2) == 1}
				for range b.next(3) {
					s.Peers = append(s.Peers, kolo.Rank(b.next(4)))
				}
				s.Src, s.Dst = b.spans(true), b.spans(true)
				for range b.next(3) {
					s.After = append(s.After, int32(b.next(i+1)))
				}
				steps = append(steps, s)
			}
			return steps
		})
		report, err := Verify(k, programs)
		if err != nil || report.Messages == 0 {
			return
		}
		if why := collision(programs); why != "" {
			t.Fatalf("accepted, but %s", why)
		}
	})
}
