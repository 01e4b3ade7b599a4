package plan

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// String writes the Program as text: a line with what it is for, then one per step:
//
//	nhr AllReduce, rank 1 of 6: 1 chunk in 6 parts; 6 blocks in, 6 out
//	  0 send         to 0      in[0-2*3]
//	  1 recv-reduce  from 2    in[1-2*3] -> out[1-2*3]
//	  2 send         to 5      out[5]                     after 1
//
// A span is its block, a range first:end, or first+stride*n (modulo the buffer's
// blocks). Peers and blocks are those of the Program's rank, also where its steps are
// shared.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v, rank %d of %d", p.Algorithm, p.Collective, int(p.Rank), p.Ranks)
	if p.Collective.Rooted() {
		fmt.Fprintf(&b, ", root %d", int(p.Root))
	}
	if p.InPlace {
		b.WriteString(", in place")
	}
	fmt.Fprintf(&b, ": %s in %s; %d blocks in, %d out", plural(p.Chunks, "chunk"), plural(p.Parts, "part"), p.Blocks[In], p.Blocks[Out])
	if p.UsesScratch {
		fmt.Fprintf(&b, ", %d scratch", p.Blocks[Scratch])
	}
	b.WriteByte('\n')
	for i := range p.Steps {
		line := p.stepText(i)
		b.WriteString(strings.TrimRight(line, " "))
		b.WriteByte('\n')
	}
	return b.String()
}

func (p *Program) stepText(i int) string {
	s := &p.Steps[i]
	var peers, after string
	switch s.Op {
	case Send:
		peers = "to " + p.peerText(s.Peers)
	case Recv, RecvReduce:
		peers = "from " + p.peerText(s.Peers)
	}
	if s.Lane > 0 {
		peers += fmt.Sprintf(" lane %d", s.Lane)
	}
	moved := p.spanText(s.Src)
	if len(s.Dst) > 0 {
		moved = strings.TrimLeft(moved+" -> ", " ") + p.spanText(s.Dst)
	}
	if s.Final {
		moved += " final"
	}
	if len(s.After) > 0 {
		after = "after " + strings.Trim(fmt.Sprint(s.After), "[]")
	}
	return fmt.Sprintf("%4d %-11v  %-16s  %-40s  %s", i, s.Op, peers, moved, after)
}

func (p *Program) peerText(peers []kolo.Rank) string {
	var b strings.Builder
	for i, r := range peers {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d", int(p.Peer(r)))
	}
	return b.String()
}

func (p *Program) spanText(spans []Span) string {
	var b strings.Builder
	for i, s := range spans {
		if i > 0 {
			b.WriteByte(' ')
		}
		s = p.Span(s)
		switch end := s.Off + s.N; {
		case s.N == 1:
			fmt.Fprintf(&b, "%v[%d]", s.Buf, s.Off)
		case s.Stride == 1 && int(end) <= p.Blocks[s.Buf]:
			fmt.Fprintf(&b, "%v[%d:%d]", s.Buf, s.Off, end)
		default:
			fmt.Fprintf(&b, "%v[%d%+d*%d]", s.Buf, s.Off, s.Stride, s.N)
		}
	}
	return b.String()
}
