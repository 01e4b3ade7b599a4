package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Topology says where the ranks of a group are, in the group's numbering, and
// what lies between them. It is immutable once it is in use; make a changed one
// with With or Sub. All ranks of a group must hold the same one (see Digest).
type Topology struct {
	// Server and Rack hold for each rank the number of its server and rack.
	Server, Rack []int
	// Levels are the edges between two ranks of one server, of two servers in one
	// rack, and of two racks. A zero Edge stands for the default of its level.
	Levels [3]kolo.Edge
	// Sources say for people where the figures of each level come from, as "measured". Empty:
	// they are defaults, or those of who has made the Topology. No choice depends on them.
	Sources [3]string
	// Reduce is how many bytes per second one rank folds, reading two operands and
	// writing one, counted as the bytes of the result. 0 stands for the default.
	Reduce float64
	// Cores is the number of processors that the ranks of a host share while they move
	// messages through sockets, which take a processor's time at both ends. 0: each has its own.
	Cores int
	// Processes says that servers are processes, and racks hosts. Else servers are hosts.
	Processes bool
	// Medium says that all ranks share a medium that can do collectives itself.
	Medium bool
	// Process are the figures of that medium; they count only where Medium is set.
	Process Process

	pairs   []uint16    // by a*ranks+b: index into palette, 0 the edge of the level; nil: nothing measured
	palette []kolo.Edge // palette[0] is unused
	uneven  [3]string   // why the pairs of a level are not alike, "" where they are
}

// Process holds what ranks of one process share. A zero field stands for its
// default, which is a figure of a 2-core machine.
type Process struct {
	Call   time.Duration // a collective of the medium, whatever the number of ranks; default 150 ns
	Rank   time.Duration // more for each rank that takes part; default 150 ns
	Start  time.Duration // setting a Program going on one rank; default 300 ns
	Memory float64       // bytes per second that all ranks together read and write; default 50 GB/s
	Cores  int           // processors that the ranks share; default 2
}

// The default figures. Those of the first level are the in-process driver's: a
// choreography step that hands a message over takes about 300 ns. Those of the
// others are rules of thumb for sockets over 10 Gbit/s Ethernet. All of them are
// there to be replaced by a probe.
var (
	defaultLevels = [3]kolo.Edge{
		{Link: kolo.LinkHCCS, Latency: 300 * time.Nanosecond, Bandwidth: 10e9},
		{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1.2e9},
		{Link: kolo.LinkTCP, Latency: 62 * time.Microsecond, Bandwidth: 1.2e9},
	}
	defaultProcess = Process{Call: 150 * time.Nanosecond, Rank: 150 * time.Nanosecond,
		Start: 300 * time.Nanosecond, Memory: 50e9, Cores: 2}
)

const defaultReduce = 8e9

// OneServer is n ranks of one server with the default figures.
func OneServer(n int) *Topology {
	n = max(n, 0)
	return withDefaults(make([]int, n), make([]int, n))
}

// OneProcess is n ranks of one process: one server, and the medium in it.
func OneProcess(n int) *Topology {
	t := OneServer(n)
	t.Medium = true
	return t
}

// Servers is one rack of servers with sizes[i] ranks on server i, numbered server
// by server, with the default figures.
func Servers(sizes ...int) (*Topology, error) { return Racks(sizes) }

// Racks is a server of racks[i][j] ranks for each rack i and each j in it,
// numbered rack by rack and server by server, with the default figures.
func Racks(racks ...[]int) (*Topology, error) {
	var server, rack []int
	s := 0
	for i, sizes := range racks {
		if len(sizes) == 0 {
			return nil, fmt.Errorf("%w: rack %d has no server", kolo.ErrArgument, i)
		}
		for _, size := range sizes {
			if size < 1 {
				return nil, fmt.Errorf("%w: server %d has %d ranks; a server holds at least one", kolo.ErrArgument, s, size)
			}
			for range size {
				server, rack = append(server, s), append(rack, i)
			}
			s++
		}
	}
	return Places(server, rack)
}

// Places is one rank for each entry of server and rack, which hold the numbers of
// its server and rack; a nil rack is one rack for all. Ranks of a server need not
// be neighbours. The figures are the defaults.
func Places(server, rack []int) (*Topology, error) {
	if rack == nil {
		rack = make([]int, len(server))
	}
	t := withDefaults(slices.Clone(server), slices.Clone(rack))
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return t, nil
}

func withDefaults(server, rack []int) *Topology {
	return &Topology{Server: server, Rack: rack, Levels: defaultLevels, Reduce: defaultReduce, Process: defaultProcess}
}

// Validate says what is wrong with the topology, or nil: lists of one length, at
// least one rank, numbers without gaps from 0, no server in two racks, and no
// negative or infinite figure.
func (t *Topology) Validate() error {
	n := len(t.Server)
	if n == 0 || n != len(t.Rack) {
		return fmt.Errorf("%w: a topology of %d ranks with servers and %d with racks; one of each per rank, at least one rank", kolo.ErrArgument, n, len(t.Rack))
	}
	if err := dense("server", t.Server); err != nil {
		return err
	}
	if err := dense("rack", t.Rack); err != nil {
		return err
	}
	first := make([]int, n) // by server: a rank of it, plus one
	for r, s := range t.Server {
		if q := first[s] - 1; q >= 0 && t.Rack[q] != t.Rack[r] {
			return fmt.Errorf("%w: server %d is in rack %d by rank %d and in rack %d by rank %d", kolo.ErrArgument, s, t.Rack[q], q, t.Rack[r], r)
		}
		first[s] = r + 1
	}
	for l, e := range t.Levels {
		if err := checkEdge(e); err != nil {
			return fmt.Errorf("level %d: %w", l, err)
		}
	}
	p := t.Process
	if !figure(t.Reduce) || !figure(p.Memory) || p.Call < 0 || p.Rank < 0 || p.Start < 0 || p.Cores < 0 || t.Cores < 0 {
		return fmt.Errorf("%w: reduce %v bytes/s, process %+v, %d cores: no figure may be negative or infinite", kolo.ErrArgument, t.Reduce, p, t.Cores)
	}
	return nil
}

// dense checks that the numbers are 0 to k-1 for some k, each at least once.
func dense(what string, list []int) error {
	seen := make([]bool, len(list))
	top := 0
	for r, v := range list {
		if v < 0 || v >= len(list) {
			return fmt.Errorf("%w: rank %d is in %s %d; %d ranks need numbers from 0 to %d", kolo.ErrArgument, r, what, v, len(list), len(list)-1)
		}
		seen[v] = true
		top = max(top, v)
	}
	if i := slices.Index(seen[:top+1], false); i >= 0 {
		return fmt.Errorf("%w: no rank is in %s %d, but one is in %s %d; numbers must have no gap", kolo.ErrArgument, what, i, what, top)
	}
	return nil
}

func checkEdge(e kolo.Edge) error {
	if e.Latency < 0 || !figure(e.Bandwidth) {
		return fmt.Errorf("%w: edge %v of %v and %v bytes/s: no figure may be negative or infinite", kolo.ErrArgument, e.Link, e.Latency, e.Bandwidth)
	}
	return nil
}

func figure(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

// Ranks is the number of ranks.
func (t *Topology) Ranks() int { return len(t.Server) }

// Groups are the ranks of each server, by server number, ascending.
func (t *Topology) Groups() [][]kolo.Rank {
	out := make([][]kolo.Rank, distinct(t.Server))
	for r, s := range t.Server {
		out[s] = append(out[s], kolo.Rank(r))
	}
	return out
}

// distinct is the number of different values of a dense list.
func distinct(list []int) int {
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list) + 1
}

// tally is how often each value of a dense list occurs.
func tally(list []int) []int {
	out := make([]int, distinct(list))
	for _, v := range list {
		out[v]++
	}
	return out
}

// EqualServers says whether all servers hold equally many ranks.
func (t *Topology) EqualServers() bool { return allEqual(tally(t.Server)) }

// EqualRacks says whether all racks hold equally many ranks.
func (t *Topology) EqualRacks() bool { return allEqual(tally(t.Rack)) }

func allEqual(list []int) bool {
	return len(list) == 0 || slices.Min(list) == slices.Max(list)
}

// Asymmetric says in what way the ranks are not placed alike, or "" when they
// are: servers or racks of different sizes, or measured pairs of one level of
// which the best is more than three times as good as the worst.
func (t *Topology) Asymmetric() string {
	switch {
	case !t.EqualServers():
		return "servers of unequal size"
	case !t.EqualRacks():
		return "racks of unequal size"
	}
	for _, why := range t.uneven {
		if why != "" {
			return why
		}
	}
	return ""
}

// Level is the level of the way between two ranks: 0 inside a server, 1 between
// servers of a rack, 2 between racks.
func (t *Topology) Level(a, b kolo.Rank) int {
	switch {
	case t.Server[a] == t.Server[b]:
		return 0
	case t.Rack[a] == t.Rack[b]:
		return 1
	}
	return 2
}

// Edge is the way from rank a to rank b: the measured one of the pair where there
// is one, else that of its level. From a rank to itself it is a copy in memory.
func (t *Topology) Edge(a, b kolo.Rank) kolo.Edge {
	if a == b {
		return kolo.Edge{Link: kolo.LinkSelf, Bandwidth: t.process().Memory / 2}
	}
	if t.pairs != nil {
		if i := t.pairs[int(a)*t.Ranks()+int(b)]; i > 0 {
			return t.palette[i]
		}
	}
	return t.levelEdge(t.Level(a, b))
}

// Default is the edge of a level for pairs of which nothing else is known: Levels[l] with the
// default figures in place of what is missing.
func (t *Topology) Default(l int) kolo.Edge { return t.levelEdge(l) }

// levelEdge is Levels[l] with the default in place of nothing.
func (t *Topology) levelEdge(l int) kolo.Edge {
	e := t.Levels[l]
	if e == (kolo.Edge{}) {
		return defaultLevels[l]
	}
	if e.Bandwidth == 0 {
		e.Bandwidth = defaultLevels[l].Bandwidth
	}
	return e
}

// FoldRate is Reduce, or the default in its place.
func (t *Topology) FoldRate() float64 {
	if t.Reduce == 0 {
		return defaultReduce
	}
	return t.Reduce
}

// process is Process with the defaults in place of zeros.
func (t *Topology) process() Process {
	p, d := t.Process, defaultProcess
	if p.Call == 0 {
		p.Call = d.Call
	}
	if p.Rank == 0 {
		p.Rank = d.Rank
	}
	if p.Start == 0 {
		p.Start = d.Start
	}
	if p.Memory == 0 {
		p.Memory = d.Memory
	}
	if p.Cores == 0 {
		p.Cores = d.Cores
	}
	return p
}

// Sub is the topology of a group of some of the ranks, in the order given:
// ranks[i] becomes rank i. Servers and racks are numbered anew in the order in
// which they first occur. It panics on a rank that does not exist or comes twice;
// whoever takes the list from a user checks it first.
func (t *Topology) Sub(ranks []kolo.Rank) *Topology {
	n := len(ranks)
	s := *t
	s.Server, s.Rack, s.pairs, s.uneven = make([]int, n), make([]int, n), nil, [3]string{}
	servers, racks := map[int]int{}, map[int]int{}
	number := func(m map[int]int, v int) int {
		if _, ok := m[v]; !ok {
			m[v] = len(m)
		}
		return m[v]
	}
	seen := make([]bool, t.Ranks())
	for i, r := range ranks {
		if r < 0 || int(r) >= len(seen) || seen[r] {
			panic(fmt.Sprintf("plan: a group of %v out of %d ranks", ranks, t.Ranks()))
		}
		seen[r] = true
		s.Server[i], s.Rack[i] = number(servers, t.Server[r]), number(racks, t.Rack[r])
	}
	if t.pairs != nil {
		s.pairs = make([]uint16, n*n)
		for i, a := range ranks {
			for j, b := range ranks {
				s.pairs[i*n+j] = t.pairs[int(a)*t.Ranks()+int(b)]
			}
		}
		s.findUneven()
	}
	return &s
}

// String is the topology in one line, as "8 ranks in 2 servers of 4: in a server
// hccs 300ns 10 GB/s; ...".
func (t *Topology) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", t.shape())
	names := [3]string{"in a server", "between servers", "between racks"}
	for l := range t.Levels {
		if used := [3]bool{true, distinct(t.Server) > distinct(t.Rack), distinct(t.Rack) > 1}; !used[l] {
			continue
		}
		e := t.levelEdge(l)
		fmt.Fprintf(&b, "%s %v %v %s", names[l], e.Link, e.Latency, kolo.RateString(e.Bandwidth))
		if t.Sources[l] != "" {
			fmt.Fprintf(&b, " (%s)", t.Sources[l])
		}
		b.WriteString("; ")
	}
	fmt.Fprintf(&b, "reduce %s", kolo.RateString(t.FoldRate()))
	if t.Cores > 0 && !t.Medium {
		fmt.Fprintf(&b, "; %d cores a host", t.Cores)
	}
	if t.pairs != nil {
		measured := 0
		for _, i := range t.pairs {
			measured += int(min(i, 1))
		}
		fmt.Fprintf(&b, "; %d pairs measured", measured/2)
	}
	if p := t.process(); t.Medium {
		fmt.Fprintf(&b, "; one medium: %v + %v a rank, %s, %d cores", p.Call, p.Rank, kolo.RateString(p.Memory), p.Cores)
	}
	if why := t.Asymmetric(); why != "" {
		b.WriteString("; " + why)
	}
	return b.String()
}

// shape is where the ranks are, as "8 ranks in 2 servers of 4".
func (t *Topology) shape() string {
	s := plural(t.Ranks(), "rank") + " in " + plural(distinct(t.Server), "server")
	if distinct(t.Server) > 1 {
		s += " of " + sizeList(tally(t.Server))
	}
	if distinct(t.Rack) > 1 {
		s += fmt.Sprintf(" in %d racks of %s ranks", distinct(t.Rack), sizeList(tally(t.Rack)))
	}
	return s
}

// sizeList is "4" where all are 4, else "4, 2, 3", with at most 16 of them.
func sizeList(list []int) string {
	const most = 16
	if allEqual(list) {
		return fmt.Sprint(list[0])
	}
	more := ""
	if len(list) > most {
		more = fmt.Sprintf(" and %d more", len(list)-most)
		list = list[:most]
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]") + more
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
