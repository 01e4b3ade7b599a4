package schedule

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// some calls f for every algorithm and collective of a few groups, with sizes that differ.
func some(t *testing.T, f func(t *testing.T, programs []*plan.Program, topo *plan.Topology, c *kolo.Call)) {
	two, err := plan.Servers(3, 3)
	require.NoError(t, err)
	for _, topo := range []*plan.Topology{plan.OneServer(1), plan.OneServer(5), plan.OneServer(8), two} {
		for _, a := range plan.Algorithms() {
			for _, k := range kolo.Collectives() {
				if a.Name == "fabric" || k != k.Base() || a.Serves(k, topo) != nil {
					continue
				}
				c := &kolo.Call{Collective: k, DType: kolo.Float32, Op: kolo.Sum, Count: 10007}
				programs, err := plan.Programs(plan.KeyOf(c, a.Name), topo)
				require.NoError(t, err)
				t.Run(fmt.Sprintf("%s/%v/%d", a.Name, k, topo.Ranks()), func(t *testing.T) { f(t, programs, topo, c) })
			}
		}
	}
}

// bare is a schedule without what neither format holds.
func bare(s Schedule) Schedule {
	out := make(Schedule, len(s))
	for r := range s {
		out[r] = slices.Clone(s[r])
		for i := range out[r] {
			op := &out[r][i]
			op.Step = 0
			if op.Kind == Calc {
				op.Size = 0
			}
			op.After, op.Behind = append([]int{}, op.After...), append([]int{}, op.Behind...)
		}
	}
	return out
}

// parseGOAL reads what txt2bin of LogGOPSim reads.
func parseGOAL(t *testing.T, text string) (out Schedule) {
	rank, label := -1, map[string]int{}
	for at, line := range strings.Split(text, "\n") {
		w := strings.Fields(line)
		number := func(s string) int {
			k, err := strconv.Atoi(s)
			require.NoError(t, err, "line %d: %s", at+1, line)
			return k
		}
		switch {
		case len(w) == 0:
		case w[0] == "num_ranks":
			out = make(Schedule, number(w[1]))
		case w[0] == "rank":
			rank, label = number(w[1]), map[string]int{}
			require.Equal(t, "{", w[2])
		case w[0] == "}":
			rank = -1
		case w[1] == "requires", w[1] == "irequires":
			i, ok := label[w[0]]
			k, known := label[w[2]]
			require.True(t, ok && known && k < i, line)
			if op := &out[rank][i]; w[1] == "requires" {
				op.After = append(op.After, k)
			} else {
				op.Behind = append(op.Behind, k)
			}
		default:
			op := Op{After: []int{}, Behind: []int{}}
			switch w[1] {
			case "calc":
				require.Equal(t, []string{"cpu", "1"}, w[3:])
				op.Kind, op.Nanos = Calc, int64(number(w[2]))
			case "send", "recv":
				bytes, ok := strings.CutSuffix(w[2], "b")
				require.True(t, ok && w[3] == map[string]string{"send": "to", "recv": "from"}[w[1]] && w[5] == "tag", line)
				op.Size, op.Peer, op.Tag = int64(number(bytes)), kolo.Rank(number(w[4])), number(w[6])
				if w[1] == "recv" {
					op.Kind = Recv
				}
			default:
				t.Fatalf("line %d: %s", at+1, line)
			}
			name, ok := strings.CutSuffix(w[0], ":")
			require.True(t, ok, line)
			label[name] = len(out[rank])
			out[rank] = append(out[rank], op)
		}
	}
	return out
}

// field is a field of a message of protocol buffers.
type field struct {
	number int
	v      uint64
	bytes  []byte
}

func cutVarint(t *testing.T, b []byte) (uint64, []byte) {
	v := uint64(0)
	for i, x := range b {
		if v |= uint64(x&0x7f) << (7 * i); x < 0x80 {
			return v, b[i+1:]
		}
	}
	t.Fatal("a number without an end")
	return 0, nil
}

func fieldsOf(t *testing.T, b []byte) (out []field) {
	for len(b) > 0 {
		var f field
		var key uint64
		key, b = cutVarint(t, b)
		f.number = int(key >> 3)
		f.v, b = cutVarint(t, b)
		if key&7 == 2 {
			f.bytes, b = b[:f.v], b[f.v:]
		} else {
			require.Zero(t, key&7)
		}
		out = append(out, f)
	}
	return out
}

// parseChakra reads what Chakra's feeder reads.
func parseChakra(t *testing.T, b []byte, rank kolo.Rank) (ops []Op) {
	for first := true; len(b) > 0; first = false {
		var n uint64
		n, b = cutVarint(t, b)
		fields := fieldsOf(t, b[:n])
		b = b[n:]
		if first {
			require.Equal(t, []field{{1, 5, []byte("0.0.4")}}, fields)
			continue
		}
		op, attr := Op{After: []int{}, Behind: []int{}}, map[string]uint64{}
		for _, f := range fields {
			switch f.number {
			case 1:
				require.Equal(t, len(ops), int(f.v))
			case 3:
				op.Kind = map[uint64]Kind{5: Send, 6: Recv, 4: Calc}[f.v]
			case 4, 5:
				for list := f.bytes; len(list) > 0; {
					var v uint64
					if v, list = cutVarint(t, list); f.number == 5 {
						op.After = append(op.After, int(v))
					} else {
						op.Behind = append(op.Behind, int(v))
					}
				}
			case 7:
				op.Nanos = int64(1000 * f.v)
			case 10:
				a := fieldsOf(t, f.bytes)
				attr[string(a[0].bytes)] = a[1].v
			}
		}
		if op.Kind != Calc {
			me, peer := attr["comm_src"], attr["comm_dst"]
			if op.Kind == Recv {
				me, peer = peer, me
			}
			require.Equal(t, rank, kolo.Rank(me))
			op.Peer, op.Size, op.Tag = kolo.Rank(peer), int64(attr["comm_size"]), int(attr["comm_tag"])
		}
		ops = append(ops, op)
	}
	return ops
}

// What is written is read back as the same graph, and each step's dependencies are in it.
func TestFilesHoldTheGraph(t *testing.T) {
	some(t, func(t *testing.T, programs []*plan.Program, _ *plan.Topology, c *kolo.Call) {
		s, err := Of(programs, c, 8e9)
		require.NoError(t, err)
		want := bare(s)
		got := parseGOAL(t, string(s.GOAL()))
		for r := range want {
			require.Equal(t, want[r], append([]Op(nil), got[r]...), "rank %d", r)
			for i := range want[r] {
				want[r][i].Nanos = (want[r][i].Nanos + 999) / 1000 * 1000
			}
			require.Equal(t, want[r], parseChakra(t, s.Chakra(kolo.Rank(r)), kolo.Rank(r)), "rank %d", r)
			covers(t, programs[r], s[r])
		}
	})
}

// covers compares the ways between steps with those between their Ops.
func covers(t *testing.T, p *plan.Program, ops []Op) {
	last := map[int]int{} // by step: its last Op
	for i, op := range ops {
		last[op.Step] = i
	}
	for i := range p.Steps {
		want := map[int]bool{}
		for _, a := range p.Steps[i].After {
			want[int(a)] = true
		}
		got := map[int]bool{}
		for _, op := range ops {
			if op.Step != i {
				continue
			}
			for _, a := range op.After {
				if ops[a].Step != i {
					got[ops[a].Step] = true
				}
			}
		}
		require.Equal(t, want, got, "step %d", i)
	}
	require.Len(t, last, len(p.Steps))
}

// The LogGP model over a schedule: a message of s bytes leaves with an overhead o of the
// sender's processor, at least a gap g behind the one before, is under way for L+(s-1)G, and
// takes an overhead o of the receiver's processor once its receive has begun. Calcs have a
// processor of their own. A list without order of what happens next is all it needs.
type logGP struct {
	l, o, g, perByte time.Duration
	s                Schedule
	begun, ended     [][]time.Duration // -1: not yet
	arrived          map[[3]int]time.Duration
	cpu, unit, nic   []time.Duration
}

func (m *logGP) run(t *testing.T) (total time.Duration) {
	n := len(m.s)
	m.cpu, m.unit, m.nic = make([]time.Duration, n), make([]time.Duration, n), make([]time.Duration, n)
	m.arrived = map[[3]int]time.Duration{}
	left := 0
	for _, ops := range m.s {
		m.begun = append(m.begun, slices.Repeat([]time.Duration{-1}, len(ops)))
		m.ended = append(m.ended, slices.Repeat([]time.Duration{-1}, len(ops)))
		left += len(ops)
	}
	for left > 0 { // the earliest that can happen happens
		best, r, i := time.Duration(math.MaxInt64), -1, -1
		for q, ops := range m.s {
			for k := range ops {
				if at, ok := m.when(q, k); ok && at < best {
					best, r, i = at, q, k
				}
			}
		}
		require.GreaterOrEqual(t, r, 0, "nothing can go on")
		m.do(r, i, best)
		total = max(total, m.ended[r][i])
		left--
	}
	return total
}

// when is the earliest time for an Op to take its processor.
func (m *logGP) when(r, i int) (at time.Duration, ok bool) {
	op := &m.s[r][i]
	if m.ended[r][i] >= 0 {
		return 0, false
	}
	for _, a := range op.After {
		if m.ended[r][a] < 0 {
			return 0, false
		}
		at = max(at, m.ended[r][a])
	}
	for _, a := range op.Behind {
		if m.begun[r][a] < 0 {
			return 0, false
		}
		at = max(at, m.begun[r][a])
	}
	switch op.Kind {
	case Calc:
		return max(at, m.unit[r]), true
	case Send:
		return max(at, m.cpu[r], m.nic[r]), true
	}
	there, ok := m.arrived[[3]int{int(op.Peer), r, op.Tag}]
	return max(at, there, m.cpu[r]), ok
}

func (m *logGP) do(r, i int, at time.Duration) {
	op := &m.s[r][i]
	m.begun[r][i] = at
	switch op.Kind {
	case Calc:
		m.unit[r] = at + time.Duration(op.Nanos)
		m.ended[r][i] = m.unit[r]
	case Send:
		m.cpu[r], m.nic[r] = at+m.o, at+max(m.g, m.o)
		m.ended[r][i] = m.cpu[r]
		m.arrived[[3]int{r, int(op.Peer), op.Tag}] = at + m.o + m.l + time.Duration(op.Size-1)*m.perByte
	case Recv:
		m.cpu[r] = at + m.o
		m.ended[r][i] = m.cpu[r]
	}
}

// The times of a GOAL file in LogGP are those of SimulateOn with the same figures.
func TestGOALTakesWhatSimulateSays(t *testing.T) {
	compared, most := 0, 0.0
	some(t, func(t *testing.T, programs []*plan.Program, topo *plan.Topology, c *kolo.Call) {
		n := topo.Ranks()
		if n == 1 || c.Collective == kolo.Barrier { // no message without bytes there
			return
		}
		const reduce = 8e9
		s, err := Of(programs, c, reduce)
		require.NoError(t, err)
		net := &plan.Network{Model: plan.Uncontended, Dims: []plan.Dim{{Shape: plan.Mesh, Size: n, Wire: plan.Wire{Latency: 2500 - 6, Bandwidth: 1e9 / 6}}},
			Endpoint: plan.Endpoint{Send: 1500, Recv: 1500, Gap: 1000, Eager: math.MaxInt64}, Reduce: reduce}
		line, err := plan.SimulateOn(programs, net, c, 0)
		require.NoError(t, err)
		m := &logGP{l: 2500, o: 1500, g: 1000, perByte: 6, s: parseGOAL(t, string(s.GOAL()))}
		total := m.run(t)
		off := math.Abs(float64(total)/float64(line.Total) - 1)
		if compared, most = compared+1, max(most, off); off > 0.02 {
			t.Errorf("%v in LogGP, %v simulated", total, line.Total)
		}
	})
	t.Logf("%d compared, at most %.2f %% off", compared, 100*most)
}

func TestWhatIsNoSchedule(t *testing.T) {
	topo := plan.OneProcess(4)
	c := &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Sum, Count: 8}
	programs, err := plan.Programs(plan.KeyOf(c, "fabric"), topo)
	require.NoError(t, err)
	for _, list := range [][]*plan.Program{programs, nil, make([]*plan.Program, 4)} {
		_, err = Of(list, c, 0)
		require.ErrorIs(t, err, kolo.ErrUnsupported)
	}
	if programs, err = plan.Programs(plan.KeyOf(c, "ring"), topo); err != nil {
		t.Fatal(err)
	}
	_, err = Of(programs[:3], c, 0)
	require.Error(t, err)
}
