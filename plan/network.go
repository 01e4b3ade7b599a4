package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Network is what lies between NPUs, link by link, for SimulateOn. Either Dims or
// Cluster says what is linked with what. The rest may be left zero. It is a plain
// value: a what-if is a copy with another Slow, Lost or Place.
type Network struct {
	Name  string
	Model Transfer
	// Dims makes a grid: an NPU has a coordinate in each dimension, the first counting
	// fastest, and is linked in each dimension with those that differ from it only there.
	// A message goes dimension by dimension, the first first. A torus is a grid of rings.
	Dims []Dim
	// Cluster makes boards in servers in racks.
	Cluster *Cluster
	// Endpoint is what a message costs the ranks themselves.
	Endpoint Endpoint
	// Reduce is how many bytes per second a rank folds; see Topology.Reduce. 0 stands
	// for the default.
	Reduce float64
	// Whole rounds the time of a message on a link, and of a piece of work, down to
	// whole nanoseconds, as ASTRA-sim does.
	Whole bool

	Slow []SlowLink // links that are slower than the rest
	Lost []string   // links that are down, by name; messages go the shortest way that is left
	// Place is the NPU of each rank; nil: rank i is on NPU i.
	Place []int
}

// Transfer is how a message passes several links.
type Transfer uint8

// The models. Links are first come, first served, each message as a whole; what
// arrives waits in buffers without end.
const (
	// StoreAndForward passes a message on when all of it has come. It holds a link for
	// size/bandwidth and is at the other end a latency later.
	StoreAndForward Transfer = iota
	// CutThrough passes it on a latency after its head has left: of several links in a
	// row the slowest sets the pace, and those after a wait are held for the rest.
	CutThrough
	// Uncontended knows no other messages: the sum of the latencies and the time that
	// the slowest link takes.
	Uncontended
)

var transferNames = [...]string{"store-and-forward", "cut-through", "uncontended"}

// String is the name in network files, as "cut-through".
func (t Transfer) String() string {
	if int(t) < len(transferNames) {
		return transferNames[t]
	}
	return fmt.Sprintf("Transfer(%d)", uint8(t))
}

// Shape is how the NPUs of a dimension, or of a board, are linked.
type Shape uint8

// The shapes.
const (
	Ring   Shape = iota // each with the next and the one before, both ways
	Mesh                // every pair, both ways
	Switch              // each with a switch, which passes all at once
)

var shapeNames = [...]string{"ring", "mesh", "switch"}

// String is the name in network files.
func (s Shape) String() string {
	if int(s) < len(shapeNames) {
		return shapeNames[s]
	}
	return fmt.Sprintf("Shape(%d)", uint8(s))
}

// Dim is a dimension of a grid.
type Dim struct {
	Shape Shape
	Size  int
	Wire  Wire
}

// Wire is what a link of some kind does, in each direction.
type Wire struct {
	Latency   time.Duration
	Bandwidth float64 // bytes per second
}

// Cluster is boards of NPUs in servers in racks. The NPUs of a board are linked by
// HCCS; those of two boards of a server by PCIe, over the host; every NPU has a
// network card of its own, which leads to the switch of its rack; and each of these
// leaf switches has an uplink to each of Uplinks spine switches. The way between
// two racks goes by the spine switch whose number is that of the receiving NPU modulo
// Uplinks (D-mod-k routing), so that a flow keeps its order. With one NPU per server
// it is a fat tree of two levels.
type Cluster struct {
	Racks, Servers, Boards, NPUs int   // servers per rack, boards per server, NPUs per board
	Board                        Shape // of the HCCS links
	HCCS, PCIe, NIC, Uplink      Wire
	Uplinks                      int
}

// Endpoint is what messages cost the ranks, in the terms of LogGOPS (Hoefler,
// Schneider and Lumsdaine, 2010), which adds to LogGP the overhead per message and a
// limit for eager messages.
type Endpoint struct {
	Start time.Duration // before the first step
	// Send and Recv are the overheads o of the sender's and of the receiver's processor,
	// which does one at a time.
	Send, Recv time.Duration
	Gap        time.Duration // g: least time between two messages that a rank sends
	// Eager is the size up to which a message goes before its receiver is ready; the
	// send ends then with its overhead. 0: every message waits for its receiver.
	Eager int64
	// Memory is how many bytes per second a rank takes out of the network's buffers into
	// its memory; 0: at no cost.
	Memory float64
}

// SlowLink is a link of which Factor times the bandwidth is left, over 0.
type SlowLink struct {
	Link   string // as Timeline.Links has it
	Factor float64
}

// The limits of a network.
const (
	maxNPUs  = 1 << 16
	maxLinks = 1 << 22
	maxDims  = 8
)

// NPUs is the number of places for ranks.
func (n *Network) NPUs() int {
	if c := n.Cluster; c != nil {
		return c.Racks * c.Servers * c.Boards * c.NPUs
	}
	all := 1
	for _, d := range n.Dims {
		all *= d.Size
	}
	return all
}

// Ranks is how many ranks are placed.
func (n *Network) Ranks() int {
	if n.Place != nil {
		return len(n.Place)
	}
	return n.NPUs()
}

// Validate says what is wrong with the network, or nil. That the links of Slow and
// Lost exist is seen by SimulateOn.
func (n *Network) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: network: "+format, append([]any{kolo.ErrArgument}, args...)...)
	}
	if (len(n.Dims) == 0) == (n.Cluster == nil) {
		return bad("it must have either dimensions or a cluster")
	}
	if int(n.Model) >= len(transferNames) {
		return bad("no model %v", n.Model)
	}
	e := n.Endpoint
	if e.Start < 0 || e.Send < 0 || e.Recv < 0 || e.Gap < 0 || e.Eager < 0 || !figure(e.Memory) || !figure(n.Reduce) {
		return bad("endpoint %+v, reduce %v: no figure may be negative or infinite", e, n.Reduce)
	}
	if err := n.validateShape(bad); err != nil {
		return err
	}
	for _, s := range n.Slow {
		if !(s.Factor > 0 && s.Factor <= math.MaxFloat32) {
			return bad("link %q with %v of its bandwidth; want more than 0", s.Link, s.Factor)
		}
	}
	npus := n.NPUs()
	seen := make([]bool, npus)
	for r, at := range n.Place {
		if at < 0 || at >= npus || seen[at] {
			return bad("rank %d on NPU %d, which is taken or not one of %d", r, at, npus)
		}
		seen[at] = true
	}
	if n.Place != nil && len(n.Place) == 0 {
		return bad("no rank is placed")
	}
	return nil
}

func (n *Network) validateShape(bad func(string, ...any) error) error {
	npus, links := 1, 0
	count := func(what string, k int) error {
		if k < 1 || k > maxNPUs || npus*k > maxNPUs {
			return bad("%s %d; want 1 or more, and at most %d NPUs in all", what, k, maxNPUs)
		}
		npus *= k
		return nil
	}
	wire := func(what string, w Wire) error {
		if w.Latency < 0 || w.Latency > time.Hour || !(w.Bandwidth >= 1 && w.Bandwidth <= 1e18) {
			return bad("%s with latency %v and %v bytes/s; want 0 to 1h, and 1 to 1e18", what, w.Latency, w.Bandwidth)
		}
		return nil
	}
	if len(n.Dims) > maxDims {
		return bad("%d dimensions; the most is %d", len(n.Dims), maxDims)
	}
	for i, d := range n.Dims {
		if int(d.Shape) >= len(shapeNames) {
			return bad("dimension %d: no shape %v", i, d.Shape)
		}
		if err := count(fmt.Sprintf("dimension %d of size", i), d.Size); err != nil {
			return err
		}
		if err := wire(fmt.Sprintf("dimension %d", i), d.Wire); err != nil {
			return err
		}
	}
	for _, d := range n.Dims {
		links += npus * d.per()
	}
	if c := n.Cluster; c != nil {
		for _, k := range []struct {
			what string
			n    int
		}{{"racks", c.Racks}, {"servers", c.Servers}, {"boards", c.Boards}, {"npus", c.NPUs}} {
			if err := count(k.what, k.n); err != nil {
				return err
			}
		}
		if c.Board > Switch || c.Uplinks < 1 || c.Uplinks > maxNPUs {
			return bad("boards that are %v, %d uplinks", c.Board, c.Uplinks)
		}
		for _, k := range []struct {
			what string
			w    Wire
			used bool
		}{{"hccs", c.HCCS, c.NPUs > 1}, {"pcie", c.PCIe, c.Boards > 1}, {"nic", c.NIC, c.Racks*c.Servers > 1}, {"uplink", c.Uplink, c.Racks > 1}} {
			if err := wire(k.what, k.w); err != nil && k.used {
				return err
			}
		}
		links = npus*(Dim{Shape: c.Board, Size: c.NPUs}.per()+4) + 2*c.Racks*c.Uplinks
	}
	if links > maxLinks {
		return bad("%d links; the most is %d", links, maxLinks)
	}
	return nil
}

// per is the number of links that begin at an NPU, or with a switch also those that
// end there.
func (d Dim) per() int {
	if d.Shape == Mesh {
		return d.Size - 1
	}
	return 2
}

// Topology is what Choose and Compile see of the network: which ranks share a server
// and a rack, and what the way between two of them is like when nothing else is under
// way. In a grid of several dimensions of which the first is a mesh or a switch, that
// one is the server; where there are three or more, the second one makes racks.
func (n *Network) Topology() (*Topology, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	server, rack := make([]int, n.Ranks()), make([]int, n.Ranks())
	perServer, perRack := n.blocks()
	for r := range server {
		at := r
		if n.Place != nil {
			at = n.Place[r]
		}
		server[r], rack[r] = at/perServer, at/perRack
	}
	renumber(server)
	renumber(rack)
	t, err := Places(server, rack)
	if err != nil {
		return nil, err
	}
	if n.Reduce > 0 {
		t.Reduce = n.Reduce
	}
	return t, n.levelEdges(t)
}

// renumber makes the numbers dense, in the order in which they first occur.
func renumber(list []int) {
	number := map[int]int{}
	for i, v := range list {
		k, ok := number[v]
		if !ok {
			k = len(number)
			number[v] = k
		}
		list[i] = k
	}
}

// blocks is how many neighbouring NPUs make a server and a rack.
func (n *Network) blocks() (perServer, perRack int) {
	if c := n.Cluster; c != nil {
		return c.Boards * c.NPUs, c.Servers * c.Boards * c.NPUs
	}
	all := n.NPUs()
	switch d := n.Dims; {
	case len(d) == 1 || d[0].Shape == Ring:
		return all, all
	case len(d) == 2:
		return d[0].Size, all
	default:
		return d[0].Size, d[0].Size * d[1].Size
	}
}

// levelEdges sets each level of t to the way between the first pair of ranks of that
// level, of those with the lowest rank.
func (n *Network) levelEdges(t *Topology) error {
	w, err := n.wire()
	if err != nil {
		return err
	}
	e := &n.Endpoint
	var known [3]bool
	for b := 1; b < t.Ranks(); b++ {
		l := t.Level(0, kolo.Rank(b))
		if known[l] {
			continue
		}
		known[l] = true
		route, err := w.between(nil, int32(0), int32(b))
		if err != nil {
			return err
		}
		edge := kolo.Edge{Link: [3]kolo.Link{kolo.LinkHCCS, kolo.LinkRoCE, kolo.LinkRoCE}[l], Latency: e.Send + e.Recv, Bandwidth: math.Inf(1)}
		each := 0.0
		for _, k := range route {
			edge.Latency += time.Duration(w.links[k].latency / 1000)
			each += 1 / w.links[k].rate
			edge.Bandwidth = min(edge.Bandwidth, w.links[k].rate)
		}
		if n.Model == StoreAndForward {
			edge.Bandwidth = 1 / each
		}
		t.Levels[l] = edge
	}
	return nil
}

// wiring is a Network in the form that messages travel on.
type wiring struct {
	n      *Network
	links  []link
	node   []string // names of nodes: NPUs first
	place  []int32  // by rank; nil: the same number
	path   func(dst []int32, a, b int32) []int32
	lost   map[int32]bool
	detour map[[2]int32][]int32
	exits  [][]int32 // by node: links that begin there; made for the first detour
}

// link is one direction of a wire.
type link struct {
	from, to int32
	latency  picos
	rate     float64 // bytes per second
}

// linkName is "npu3>leaf0".
func (w *wiring) linkName(k int32) string {
	return w.node[w.links[k].from] + ">" + w.node[w.links[k].to]
}

// wire makes the links.
func (n *Network) wire() (*wiring, error) {
	w := &wiring{n: n}
	for i := range n.NPUs() {
		w.node = append(w.node, fmt.Sprintf("npu%d", i))
	}
	for _, at := range n.Place {
		w.place = append(w.place, int32(at))
	}
	if n.Cluster != nil {
		w.cluster(n.Cluster)
	} else {
		w.grid(n.Dims)
	}
	return w, w.whatIf(n)
}

// whatIf slows down links and takes them away.
func (w *wiring) whatIf(n *Network) error {
	if len(n.Slow)+len(n.Lost) == 0 {
		return nil
	}
	number := map[string]int32{}
	for k := range w.links {
		number[w.linkName(int32(k))] = int32(k)
	}
	find := func(name string) (int32, error) {
		k, ok := number[name]
		if !ok {
			return 0, fmt.Errorf("%w: network: no link %q; links are named as %q", kolo.ErrArgument, name, w.linkName(0))
		}
		return k, nil
	}
	for _, s := range n.Slow {
		k, err := find(s.Link)
		if err != nil {
			return err
		}
		w.links[k].rate *= s.Factor
	}
	w.lost, w.detour = map[int32]bool{}, map[[2]int32][]int32{}
	for _, name := range n.Lost {
		k, err := find(name)
		if err != nil {
			return err
		}
		w.lost[k] = true
	}
	return nil
}

// LoseNIC is the network without the network card of an NPU: what it exchanges with
// other servers goes by a neighbour's.
func (n *Network) LoseNIC(npu int) (*Network, error) {
	if n.Cluster == nil || npu < 0 || npu >= n.NPUs() {
		return nil, fmt.Errorf("%w: network: NPU %d has no network card of its own", kolo.ErrArgument, npu)
	}
	m := *n
	leaf := npu / (n.Cluster.Servers * n.Cluster.Boards * n.Cluster.NPUs)
	m.Lost = append(slices.Clone(n.Lost), fmt.Sprintf("npu%d>leaf%d", npu, leaf), fmt.Sprintf("leaf%d>npu%d", leaf, npu))
	return &m, nil
}

func (w *wiring) add(from, to int32, x Wire) {
	w.links = append(w.links, link{from, to, picos(x.Latency) * 1000, x.Bandwidth})
}

func (w *wiring) addNode(format string, args ...any) int32 {
	w.node = append(w.node, fmt.Sprintf(format, args...))
	return int32(len(w.node) - 1)
}

// wires links the NPUs of one dimension. Those of an NPU are per() in a row: with a
// ring to the next and to the one before, with a mesh to the next, the one after it
// and so on, with a switch to it and from it. before is the distance of neighbours.
func (w *wiring) wires(d Dim, before int, name func(group int) string) {
	npus := int32(w.n.NPUs())
	size, step := int32(d.Size), int32(before)
	hub := map[int32]int32{}
	for a := range npus {
		i := a / step % size
		first := a - i*step
		at := func(k int32) int32 { return first + (i+k+size)%size*step }
		switch d.Shape {
		case Ring:
			w.add(a, at(1), d.Wire)
			w.add(a, at(-1), d.Wire)
		case Mesh:
			for k := int32(1); k < size; k++ {
				w.add(a, at(k), d.Wire)
			}
		case Switch:
			s, ok := hub[first]
			if !ok {
				s = w.addNode("%s", name(len(hub)))
				hub[first] = s
			}
			w.add(a, s, d.Wire)
			w.add(s, a, d.Wire)
		}
	}
}

// hops appends the way from a to the NPU whose coordinate differs from a's by delta,
// which is not 0. base is the first link of the dimension.
func (d Dim) hops(dst []int32, base, a, delta int32, before int) []int32 {
	size, step := int32(d.Size), int32(before)
	delta = (delta + size) % size
	i := a / step % size
	first, per := a-i*step, int32(d.per())
	switch d.Shape {
	case Mesh:
		return append(dst, base+a*per+delta-1)
	case Switch:
		b := first + (i+delta)%size*step
		return append(dst, base+a*per, base+b*per+1)
	}
	turn, way := delta, int32(0)
	if 2*delta > size { // the shorter way around; forwards where both are alike
		turn, way = size-delta, 1
	}
	for range turn {
		dst = append(dst, base+(first+i*step)*per+way)
		i = (i + 1 - 2*way + size) % size
	}
	return dst
}

// grid makes the links of dimensions.
func (w *wiring) grid(dims []Dim) {
	base, before := make([]int32, len(dims)), make([]int, len(dims))
	step := 1
	for i, d := range dims {
		base[i], before[i] = int32(len(w.links)), step
		if d.Size > 1 {
			w.wires(d, step, func(group int) string { return fmt.Sprintf("switch%d.%d", i, group) })
		}
		step *= d.Size
	}
	w.path = func(dst []int32, a, b int32) []int32 {
		for i, d := range dims {
			step, size := int32(before[i]), int32(d.Size)
			if delta := b/step%size - a/step%size; delta != 0 {
				dst = d.hops(dst, base[i], a, delta, before[i])
				a += delta * step
			}
		}
		return dst
	}
}

// cluster makes the links of boards in servers in racks.
func (w *wiring) cluster(c *Cluster) {
	npus := int32(w.n.NPUs())
	perBoard, perServer := int32(c.NPUs), int32(c.NPUs*c.Boards)
	perRack := perServer * int32(c.Servers)
	board := Dim{c.Board, c.NPUs, c.HCCS}
	if c.NPUs > 1 {
		w.wires(board, 1, func(group int) string { return fmt.Sprintf("board%d", group) })
	}
	// star links every NPU with a node for each block of so many, up and down.
	star := func(per int32, name string, x Wire) (base int32) {
		base = int32(len(w.links))
		hub := int32(0)
		for a := range npus {
			if a%per == 0 {
				hub = w.addNode("%s%d", name, a/per)
			}
			w.add(a, hub, x)
			w.add(hub, a, x)
		}
		return base
	}
	var pcie, nic, uplink int32
	if c.Boards > 1 {
		pcie = star(perServer, "host", c.PCIe)
	}
	leaf := int32(len(w.node))
	if c.Racks*c.Servers > 1 {
		nic = star(perRack, "leaf", c.NIC)
	}
	if c.Racks > 1 {
		uplink = int32(len(w.links))
		for k := range int32(c.Uplinks) {
			spine := w.addNode("spine%d", k)
			for r := range int32(c.Racks) {
				w.add(leaf+r, spine, c.Uplink)
				w.add(spine, leaf+r, c.Uplink)
			}
		}
	}
	w.path = func(dst []int32, a, b int32) []int32 {
		switch {
		case a == b:
			return dst
		case a/perBoard == b/perBoard:
			return board.hops(dst, 0, a, b-a, 1)
		case a/perServer == b/perServer:
			return append(dst, pcie+2*a, pcie+2*b+1)
		case a/perRack == b/perRack:
			return append(dst, nic+2*a, nic+2*b+1)
		}
		spine := uplink + 2*int32(c.Racks)*(b%int32(c.Uplinks))
		return append(dst, nic+2*a, spine+2*(a/perRack), spine+2*(b/perRack)+1, nic+2*b+1)
	}
}

// between appends the links from rank a to rank b.
func (w *wiring) between(dst []int32, a, b int32) ([]int32, error) {
	if w.place != nil {
		a, b = w.place[a], w.place[b]
	}
	first := len(dst)
	dst = w.path(dst, a, b)
	if len(w.lost) == 0 || !slices.ContainsFunc(dst[first:], func(k int32) bool { return w.lost[k] }) {
		return dst, nil
	}
	way, ok := w.detour[[2]int32{a, b}]
	if !ok {
		way = w.shortest(a, b)
		w.detour[[2]int32{a, b}] = way
	}
	if way == nil {
		return nil, fmt.Errorf("%w: network: no way is left from NPU %d to NPU %d without %s", kolo.ErrUnsupported, a, b, strings.Join(w.n.Lost, ", "))
	}
	return append(dst[:first], way...), nil
}

// shortest is a way of the fewest links that are not lost, nil if there is none. Of
// several it is the first that a search in the order of the links finds.
func (w *wiring) shortest(a, b int32) []int32 {
	if w.exits == nil {
		w.exits = make([][]int32, len(w.node))
		for k, l := range w.links {
			if !w.lost[int32(k)] {
				w.exits[l.from] = append(w.exits[l.from], int32(k))
			}
		}
	}
	by := make([]int32, len(w.node)) // the link by which a node was found, plus one
	queue := []int32{a}
	for len(queue) > 0 && by[b] == 0 {
		at := queue[0]
		queue = queue[1:]
		for _, k := range w.exits[at] {
			if to := w.links[k].to; by[to] == 0 && to != a {
				by[to] = k + 1
				queue = append(queue, to)
			}
		}
	}
	var way []int32
	for at := b; by[at] > 0 && at != a; at = w.links[by[at]-1].from {
		way = append(way, by[at]-1)
	}
	slices.Reverse(way)
	return way
}
