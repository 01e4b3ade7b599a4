package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

const ns = time.Nanosecond

// astra is a network with the units of ASTRA-sim: GB/s of 2^30 bytes, whole ns.
func astra(model Transfer, dims ...Dim) *Network {
	for i := range dims {
		dims[i].Wire.Bandwidth *= 1 << 30
	}
	return &Network{Model: model, Whole: true, Dims: dims}
}

func dim(s Shape, size int, latency time.Duration, bandwidth float64) Dim {
	return Dim{s, size, Wire{latency, bandwidth}}
}

// oneMessage is a program for a message of the whole vector from a rank to another.
func oneMessage(n int, from, to kolo.Rank) []*Program {
	return byHand(Key{Collective: kolo.Broadcast, InPlace: true, Root: from}, n, 1, 0, func(r kolo.Rank) []Step {
		switch r {
		case from:
			return []Step{{Op: Send, Peers: []kolo.Rank{to}, Src: one(Out, 0)}}
		case to:
			return []Step{{Op: Recv, Peers: []kolo.Rank{from}, Dst: one(Out, 0)}}
		}
		return nil
	})
}

func simulatedOn(t *testing.T, programs []*Program, n *Network, c *kolo.Call, keep int) Timeline {
	t.Helper()
	line, err := SimulateOn(programs, n, c, keep)
	require.NoError(t, err)
	return line
}

// The times are those that the unit tests of ASTRA-sim's analytical network expect.
func TestNetworkGivesASTRASimsTimes(t *testing.T) {
	threeDims := func() *Network {
		return astra(Uncontended, dim(Ring, 2, 50, 200), dim(Mesh, 8, 500, 100), dim(Switch, 4, 2000, 50))
	}
	for _, row := range []struct {
		name     string
		net      *Network
		from, to kolo.Rank
		want     time.Duration
	}{
		{"ring, 3 hops", astra(StoreAndForward, dim(Ring, 16, 500, 50)), 1, 4, 60093},
		{"mesh", astra(StoreAndForward, dim(Mesh, 16, 500, 50)), 1, 4, 20031},
		{"switch", astra(StoreAndForward, dim(Switch, 16, 500, 50)), 1, 4, 40062},
		{"ring, uncontended", astra(Uncontended, dim(Ring, 16, 500, 50)), 1, 4, 21031},
		{"switch, uncontended", astra(Uncontended, dim(Switch, 16, 500, 50)), 1, 4, 20531},
		{"mesh, uncontended", astra(Uncontended, dim(Mesh, 16, 500, 50)), 1, 4, 20031},
		{"first of 3 dimensions", threeDims(), 0, 1, 4932},
		{"second of 3 dimensions", threeDims(), 37, 41, 10265},
		{"third of 3 dimensions", threeDims(), 26, 42, 23531},
	} {
		c := &kolo.Call{Collective: kolo.Broadcast, DType: kolo.Int8, Count: 1 << 20, Root: row.from}
		programs := oneMessage(row.net.NPUs(), row.from, row.to)
		if got := simulatedOn(t, programs, row.net, c, 0).Total; got != row.want {
			t.Errorf("%s: %d ns, want %d", row.name, got, row.want)
		}
	}
}

// Sixteen ranks on a ring each send 1 MiB to each other rank, the shorter way around.
func TestDirectAllGatherOnARingGivesASTRASimsTime(t *testing.T) {
	net := astra(StoreAndForward, dim(Ring, 16, 500, 50))
	programs := byHand(Key{Collective: kolo.AllGather}, 16, 1, 0, func(r kolo.Rank) (out []Step) {
		for q := range kolo.Rank(16) {
			if q != r {
				out = append(out, Step{Op: Send, Peers: []kolo.Rank{q}, Src: one(In, 0)})
				out = append(out, Step{Op: Recv, Peers: []kolo.Rank{q}, Dst: one(Out, int(q))})
			}
		}
		return out
	})
	c := bytesCall(kolo.AllGather, 16<<20, 16)
	require.Equal(t, 704116*ns, simulatedOn(t, programs, net, c, 0).Total)
}

// ASTRA-sim cuts the call into 4 parts, which its default queue does one after the
// other. Each message costs 10 ns at the receiver, and so does the begin of a part;
// memory is read and written at 50e9 B/s, for a message that is folded twice as much.
func TestRingAllReduceGivesASTRASimsTime(t *testing.T) {
	net := astra(Uncontended, dim(Ring, 8, 500, 50))
	net.Endpoint = Endpoint{Start: 10, Recv: 10, Memory: 50e9}
	net.Reduce = 50e9
	c := bytesCall(kolo.AllReduce, 1<<20/4, 8)
	topo, err := net.Topology()
	require.NoError(t, err)
	programs, err := Programs(KeyOf(c, "ring"), topo)
	require.NoError(t, err)
	line := simulatedOn(t, programs, net, c, 0)
	require.Equal(t, 117780*ns, 4*line.Total)
}

// The example of LogGOPSim: a binomial reduction of 1024 B by 8 ranks, L 2500, o 1500,
// g 1000, G 6, S 65535. There a message of s bytes takes L + (s-1)G.
func TestBinomialReduceGivesLogGOPSimsTimes(t *testing.T) {
	net := &Network{Model: Uncontended, Dims: []Dim{dim(Mesh, 8, 2500-6, 1e9/6)},
		Endpoint: Endpoint{Send: 1500, Recv: 1500, Gap: 1000, Eager: 65535}, Reduce: 1e18}
	programs := byHand(Key{Collective: kolo.Reduce}, 8, 1, 1, func(r kolo.Rank) (out []Step) {
		from := one(In, 0)
		for d := kolo.Rank(4); d > 0; d /= 2 { // from 4, 2 and 1 ranks above, as far as there are any
			if r < d {
				to := one(Scratch, 0)
				out = append(out, Step{Op: RecvReduce, Peers: []kolo.Rank{r + d}, Src: from, Dst: to, After: lastOf(out)})
				from = to
			} else if r < 2*d {
				out = append(out, Step{Op: Send, Peers: []kolo.Rank{r - d}, Src: from, After: lastOf(out)})
				return out
			}
		}
		return out
	})
	line := simulatedOn(t, programs, net, bytesCall(kolo.Reduce, 1024, 8), 0)
	require.Equal(t, []time.Duration{34914, 24776, 13138, 13138, 1500, 1500, 1500, 1500}, line.Finish)
}

func lastOf(steps []Step) []int32 {
	if len(steps) == 0 {
		return nil
	}
	return []int32{int32(len(steps) - 1)}
}

// server8 is two racks of two servers with two boards of four.
func server8(model Transfer) *Network {
	return &Network{Model: model, Cluster: &Cluster{Racks: 2, Servers: 2, Boards: 2, NPUs: 4, Board: Mesh,
		HCCS: Wire{us, 30e9}, PCIe: Wire{2 * us, 16e9}, NIC: Wire{3 * us, 25e9}, Uplink: Wire{us, 50e9}, Uplinks: 2}}
}

func TestWaysThroughACluster(t *testing.T) {
	net := server8(CutThrough)
	w, err := net.wire()
	require.NoError(t, err)
	for _, row := range []struct {
		a, b int32
		want []string
	}{
		{0, 3, []string{"npu0>npu3"}},
		{6, 5, []string{"npu6>npu5"}},
		{1, 6, []string{"npu1>host0", "host0>npu6"}},
		{1, 9, []string{"npu1>leaf0", "leaf0>npu9"}},
		{9, 31, []string{"npu9>leaf0", "leaf0>spine1", "spine1>leaf1", "leaf1>npu31"}},
	} {
		way, err := w.between(nil, row.a, row.b)
		require.NoError(t, err)
		require.Equal(t, row.want, names(w, way))
	}
}

func names(w *wiring, way []int32) (out []string) {
	for _, k := range way {
		out = append(out, w.linkName(k))
	}
	return out
}

// Every way begins and ends where it should and its links follow one another.
func TestWaysAreConnected(t *testing.T) {
	for _, net := range []*Network{
		server8(0),
		{Dims: []Dim{dim(Ring, 4, 1, 1), dim(Ring, 3, 1, 1), dim(Ring, 2, 1, 1)}},
		{Dims: []Dim{dim(Mesh, 4, 1, 1), dim(Switch, 5, 1, 1)}},
		{Dims: []Dim{dim(Switch, 2, 1, 1), dim(Mesh, 1, 1, 1), dim(Ring, 7, 1, 1)}},
		{Cluster: &Cluster{Racks: 3, Servers: 4, Boards: 1, NPUs: 1, NIC: Wire{1, 1}, Uplink: Wire{1, 1}, Uplinks: 3}},
	} {
		require.NoError(t, net.Validate())
		w, err := net.wire()
		require.NoError(t, err)
		for a := range int32(net.NPUs()) {
			for b := range int32(net.NPUs()) {
				if a == b {
					continue
				}
				way, err := w.between(nil, a, b)
				require.NoError(t, err)
				at := a
				for _, k := range way {
					require.Equal(t, at, w.links[k].from, "%v from %d to %d", names(w, way), a, b)
					at = w.links[k].to
				}
				require.Equal(t, b, at)
			}
		}
	}
}

// Two messages meet on one link. Store-and-forward holds each link for the whole
// message; cut-through lets both links work at a time.
func TestMessagesShareALink(t *testing.T) {
	wire := Wire{us, 1e9}
	for model, want := range map[Transfer]time.Duration{
		StoreAndForward: (1 + 10 + 1 + 10 + 10) * us, // the second leaves the switch behind the first
		CutThrough:      (1 + 10 + 10 + 1) * us,
		Uncontended:     (1 + 10 + 1) * us,
	} {
		net := &Network{Model: model, Dims: []Dim{{Switch, 3, wire}}}
		programs := byHand(Key{Collective: kolo.Gather}, 3, 1, 0, func(r kolo.Rank) []Step {
			if r > 0 {
				return []Step{{Op: Send, Peers: to(0), Src: one(In, 0)}}
			}
			return []Step{{Op: Recv, Peers: to(1), Dst: one(Out, 1)}, {Op: Recv, Peers: to(2), Dst: one(Out, 2)}}
		})
		line := simulatedOn(t, programs, net, bytesCall(kolo.Gather, 30000, 3), 10)
		require.Equal(t, want, line.Total, "%v", model)
		require.Equal(t, Traffic{2, 20000}, line.Links[0].Traffic)
		if model != Uncontended {
			require.Equal(t, "switch0.0>npu0", line.Links[0].Name)
			require.Equal(t, "switch0.0>npu0", line.Critical[len(line.Critical)-1].Link)
		}
		checkPath(t, line)
	}
}

// checkPath: the legs of the critical path follow each other from 0 to the end.
func checkPath(t *testing.T, line Timeline) {
	t.Helper()
	at := time.Duration(0)
	for _, l := range line.Critical {
		if l.Start != at || l.End < l.Start {
			t.Errorf("a leg %+v begins, the one before ends at %v", l, at)
		}
		at = l.End
	}
	if at != line.Total {
		t.Errorf("the critical path ends at %v of %v", at, line.Total)
	}
}

func TestCriticalPathFillsTheWholeTimeOnNetworks(t *testing.T) {
	for _, model := range []Transfer{StoreAndForward, CutThrough, Uncontended} {
		for _, net := range []*Network{server8(model), {Model: model, Dims: []Dim{dim(Ring, 4, us, 1e9), dim(Ring, 3, us, 2e9)}}} {
			for _, end := range []Endpoint{{}, {Send: 300, Recv: 200, Gap: 100, Start: 50, Memory: 3e9}, {Send: 100, Recv: 200, Eager: 1 << 20}} {
				net.Endpoint = end
				topo, err := net.Topology()
				require.NoError(t, err)
				for _, a := range []string{"ring", "mesh", "nhr", "double-tree", "hier:mesh+nhr", "recursive-doubling"} {
					c := bytesCall(kolo.AllReduce, 100003, topo.Ranks())
					programs, err := Programs(KeyOf(c, a), topo)
					if err != nil {
						continue // one server only
					}
					line := simulatedOn(t, programs, net, c, 1<<20)
					require.Positive(t, line.Total)
					if end.Start == 0 {
						checkPath(t, line)
					}
					require.NotEmpty(t, line.Legs)
					again := simulatedOn(t, programs, net, c, 1<<20)
					require.Equal(t, line, again)
				}
			}
		}
	}
}

// Where a rank has one message at a time, links that are not shared are as good as ports.
func TestNetworkAgreesWithPorts(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		topo := OneServer(n)
		topo.Levels[0] = kolo.Edge{Latency: 5 * us, Bandwidth: 25e9}
		topo.Reduce = 100e9
		net := &Network{Dims: []Dim{dim(Mesh, n, 5*us, 25e9)}, Reduce: 100e9}
		for _, a := range []string{"ring", "nhr", "recursive-doubling"} {
			c := bytesCall(kolo.AllReduce, 1<<20, n)
			programs, err := Programs(KeyOf(c, a), topo)
			require.NoError(t, err)
			ports, err := Simulate(programs, topo, c)
			require.NoError(t, err)
			require.Equal(t, ports.Total, simulatedOn(t, programs, net, c, 0).Total, "%s of %d", a, n)
		}
	}
}

func TestWhatIf(t *testing.T) {
	run := func(n *Network) Timeline {
		topo, err := n.Topology()
		require.NoError(t, err)
		c := bytesCall(kolo.AllReduce, 8<<20, topo.Ranks())
		programs, err := Programs(KeyOf(c, "ring"), topo)
		require.NoError(t, err)
		return simulatedOn(t, programs, n, c, 0)
	}
	well := run(server8(CutThrough)).Total

	slow := server8(CutThrough)
	slow.Slow = []SlowLink{{"npu1>npu2", 0.1}}
	line := run(slow)
	require.Greater(t, line.Total, 2*well)
	require.Equal(t, "npu1>npu2", line.Bound().Link)
	require.Equal(t, "npu1>npu2", line.Links[0].Name)

	lost, err := server8(CutThrough).LoseNIC(7)
	require.NoError(t, err)
	line = run(lost)
	require.Greater(t, line.Total, well)
	require.False(t, slices.ContainsFunc(line.Links, func(u LinkUse) bool { return u.Name == "npu7>leaf0" }))

	// Neighbours of the ring in different racks: the uplinks are in the way.
	moved := server8(CutThrough)
	for i := range 32 {
		moved.Place = append(moved.Place, i/2+i%2*16)
	}
	require.Greater(t, run(moved).Total, well)

	gone := &Network{Dims: []Dim{dim(Switch, 2, 1, 1e9)}, Lost: []string{"npu0>switch0.0"}}
	c := bytesCall(kolo.Broadcast, 8, 2)
	_, err = SimulateOn(oneMessage(2, 0, 1), gone, c, 0)
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "no way is left from NPU 0 to NPU 1 without npu0>switch0.0")
	gone.Lost = []string{"npu0>npu1"}
	_, err = SimulateOn(oneMessage(2, 0, 1), gone, c, 0)
	require.ErrorContains(t, err, `no link "npu0>npu1"; links are named as "npu0>switch0.0"`)
}

func TestVirtualTimeHasAnEnd(t *testing.T) {
	net := &Network{Dims: []Dim{dim(Ring, 2, us, 1)}}
	_, err := SimulateOn(oneMessage(2, 0, 1), net, bytesCall(kolo.Broadcast, 1<<50, 2), 0)
	require.ErrorIs(t, err, kolo.ErrLimit)
}

func TestNetworkTopology(t *testing.T) {
	topo, err := server8(CutThrough).Topology()
	require.NoError(t, err)
	require.Equal(t, "32 ranks in 4 servers of 8 in 2 racks of 16 ranks", topo.shape())
	require.Equal(t, kolo.Edge{Link: kolo.LinkRoCE, Latency: 8 * us, Bandwidth: 25e9}, topo.Levels[2])
	net := &Network{Dims: []Dim{dim(Mesh, 8, us, 1e9), dim(Switch, 4, us, 1e9)}}
	topo, err = net.Topology()
	require.NoError(t, err)
	require.Equal(t, "32 ranks in 4 servers of 8", topo.shape())
}

func TestBadNetworks(t *testing.T) {
	good := dim(Ring, 4, us, 1e9)
	for want, n := range map[string]*Network{
		"either dimensions or a cluster": {},
		"no model":                       {Model: 3, Dims: []Dim{good}},
		"dimension 0 of size 0":          {Dims: []Dim{dim(Ring, 0, us, 1e9)}},
		"at most 65536 NPUs":             {Dims: []Dim{dim(Ring, 256, us, 1e9), dim(Ring, 257, us, 1e9)}},
		"0 bytes/s":                      {Dims: []Dim{dim(Ring, 4, us, 0)}},
		"links; the most is":             {Dims: []Dim{dim(Mesh, 4096, us, 1e9)}},
		"rank 1 on NPU 0":                {Dims: []Dim{good}, Place: []int{0, 0}},
		"no rank is placed":              {Dims: []Dim{good}, Place: []int{}},
		"negative or infinite":           {Dims: []Dim{good}, Endpoint: Endpoint{Gap: -1}},
		"racks 0":                        {Cluster: &Cluster{}},
		"want more than 0":               {Dims: []Dim{good}, Slow: []SlowLink{{"npu0>npu1", 0}}},
	} {
		require.ErrorContains(t, n.Validate(), want)
		_, err := n.Topology()
		require.ErrorIs(t, err, kolo.ErrArgument)
	}
}

// spanSize counts what Range says block by block.
func TestSpanSizeIsTheSumOfItsBlocks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		n := 1 + rng.IntN(9)
		k := Key{Collective: []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.AllToAll}[rng.IntN(4)]}
		parts := 1 + rng.IntN(5)
		p := byHand(k, n, parts, 0, func(kolo.Rank) []Step { return nil })[rng.IntN(n)]
		p.Blocks[Scratch] = max(p.Blocks[In], p.Blocks[Out])
		c := &kolo.Call{Collective: k.Collective, DType: kolo.Float32, Count: rng.Int64N(int64(rng.IntN(5000)) + 1)}
		if rng.IntN(3) == 0 { // scratch whose blocks are as long as others
			p.Like = make([]int32, p.Blocks[Scratch])
			for i := range p.Like {
				p.Like[i] = rng.Int32N(int32(p.Chunks * p.Parts))
			}
		}
		l := LayoutOf(p, c, Displs{})
		for range 4 {
			b := Buffer(rng.IntN(int(numBuffers)))
			blocks := p.Blocks[b]
			s := Span{b, rng.Int32N(int32(blocks)), 1 + rng.Int32N(int32(blocks)), int32(rng.IntN(2*blocks+1) - blocks)}
			want := int64(0)
			p.At(s, func(block int) {
				_, size := l.Range(b, block)
				want += size
			})
			if got := l.spanSize(p, s); got != want {
				t.Fatalf("%v of %v, %d parts, rank %d of %d: %d bytes, want %d", s, c, parts, p.Rank, n, got, want)
			}
		}
	}
}

func BenchmarkSimulateOn(b *testing.B) {
	for _, row := range []struct {
		algorithm string
		servers   int
	}{{"hier:ring+nhr", 128}, {"nhr", 128}, {"nhr", 1024}, {"ring", 128}} {
		b.Run(fmt.Sprintf("n=%d/%s", 8*row.servers, row.algorithm), func(b *testing.B) {
			net := &Network{Model: CutThrough, Cluster: &Cluster{Racks: 4, Servers: row.servers / 4, Boards: 1, NPUs: 8, Board: Mesh,
				HCCS: Wire{us, 30e9}, NIC: Wire{3 * us, 25e9}, Uplink: Wire{us, 100e9}, Uplinks: 8}}
			b.ReportAllocs()
			for b.Loop() {
				topo, err := net.Topology()
				require.NoError(b, err)
				c := bytesCall(kolo.AllReduce, 25<<20, topo.Ranks())
				programs, err := Programs(KeyOf(c, row.algorithm), topo)
				require.NoError(b, err)
				line, err := SimulateOn(programs, net, c, 0)
				require.NoError(b, err)
				b.ReportMetric(line.Total.Seconds()*1e6, "simulated-us")
			}
		})
	}
}
