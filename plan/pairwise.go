package plan

import "github.com/kolo-ccl/kolo"

// Pairwise exchange: in round k rank r sends to r+k and receives from r-k, so that
// each rank has one peer each way at a time. P-1 rounds and no byte moved twice: for
// large blocks.
// HCCL's documents on Pairwise.
var pairwise = flat(Algorithm{
	Name:   "pairwise",
	Source: "HCCL, pairwise",
}, phases{
	kolo.AllToAll: {pairwiseAllToAll, ringAllGatherCost},
})

// pairwiseAllToAll lets round k begin when round k-1 has ended: nothing else would
// keep a rank from sending to all peers at a time. Sends wait for sends and receives
// for receives, so that no cycle arises without buffers either.
func pairwiseAllToAll(s *scope) {
	a := newAllToAll(s)
	for k := 1; k < s.n; k++ {
		if k > 1 {
			s.b.then(s.b.last() - 1)
		}
		a.send(k)
		if k > 1 {
			s.b.then(s.b.last() - 1)
		}
		a.recv(k)
	}
	a.end()
}

// allToAll moves chunks between In and Out of different ranks. In place, both are
// one memory, whose chunks must all be sent before they are overwritten: what
// arrives waits in scratch, and a copy ends the collective. (The V forms can be in
// place only where a rank sends as much to each other as it takes from it.)
type allToAll struct {
	s        *scope
	from, to Buffer // where chunks leave from and where they arrive
}

// newAllToAll brings this rank's chunk for itself home.
func newAllToAll(s *scope) allToAll {
	if s.b.p.InPlace {
		return allToAll{s, Out, Scratch}
	}
	a := allToAll{s, In, Out}
	s.b.copyPlaces([]place{a.chunk(In, 0)}, []place{a.chunk(Out, 0)})
	return a
}

// chunk is the place of the chunk that goes to, or comes from, position me+d.
func (a allToAll) chunk(buf Buffer, d int) place {
	return place{buf, int32(a.s.mod(a.s.me + d))}
}

// send gives position me+d its chunk, recv takes one from position me-d.
func (a allToAll) send(d int) {
	a.s.b.sendFrom(a.s.rank(a.s.me+d), []place{a.chunk(a.from, d)})
}

func (a allToAll) recv(d int) {
	a.s.b.recvInto(a.s.rank(a.s.me-d), []place{a.chunk(a.to, -d)})
}

func (a allToAll) end() {
	if a.to != Scratch {
		return
	}
	var src, dst []place
	for d := 1; d < a.s.n; d++ {
		src, dst = append(src, a.chunk(Scratch, d)), append(dst, a.chunk(Out, d))
	}
	a.s.b.copyPlaces(src, dst)
}
