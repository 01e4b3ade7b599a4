package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// ParseNetwork reads a network file: a line for each thing, words between blanks, # to
// the end of a line a comment. Either dimensions, the first counting fastest,
//
//	network  a torus of 4 x 8
//	model    store-and-forward        # or cut-through, uncontended; default store-and-forward
//	dim      ring 4 500ns 50GB/s      # or mesh, switch; size, latency, bandwidth each way
//	dim      ring 8 500ns 50GB/s
//
// or a cluster (see Cluster):
//
//	cluster  racks 4 servers 8 boards 1 npus 8
//	board    mesh 1us 30GB/s          # or ring, switch
//	pcie     2us 32GB/s               # between the boards of a server
//	nic      3us 25GB/s               # of each NPU
//	uplink   8 1us 100GB/s            # number for each rack, latency, bandwidth
//
// and, where wanted, with figures that may be left out:
//
//	endpoint start 1us send 500ns recv 500ns gap 0s eager 8192 memory 800GB/s
//	reduce   200GB/s
//	whole                             # times in whole ns, as ASTRA-sim has them
//	slow     npu1>npu2 0.1            # a tenth of the bandwidth is left
//	lost     npu3>leaf0
//	place    0 2 1 3                  # the NPU of rank 0, 1 and so on
//
// Units are ns, us, ms, s and B/s, kB/s, MB/s, GB/s, TB/s, GiB/s.
func ParseNetwork(text string) (*Network, error) {
	n := &Network{}
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if number > maxNetworkLines {
			return nil, fmt.Errorf("%w: network file of more than %d lines", kolo.ErrLimit, maxNetworkLines)
		}
		key := words[0]
		if seen[key] && !slices.Contains([]string{"dim", "slow", "lost"}, key) {
			return nil, fmt.Errorf("%w: network file, line %d: %s for the second time", kolo.ErrArgument, number, key)
		}
		seen[key] = true
		r := &wordReader{words: words[1:]}
		if err := n.parseLine(key, r, seen); err != nil {
			return nil, fmt.Errorf("%w: network file, line %d: %s: %v", kolo.ErrArgument, number, key, err)
		}
	}
	for _, key := range []string{"board", "pcie", "nic", "uplink"} {
		if seen[key] && !seen["cluster"] {
			return nil, fmt.Errorf("%w: network file: %s without a cluster line before it", kolo.ErrArgument, key)
		}
	}
	return n, n.Validate()
}

const maxNetworkLines = 1 << 16

// parseLine does one line; what is left of it is an error.
func (n *Network) parseLine(key string, r *wordReader, seen map[string]bool) error {
	c := n.Cluster
	if c == nil && slices.Contains([]string{"board", "pcie", "nic", "uplink"}, key) {
		return errors.New("a cluster line must come before it")
	}
	switch key {
	case "network":
		n.Name, r.words = strings.Join(r.words, " "), nil
	case "model":
		n.Model = Transfer(r.name(transferNames[:]))
	case "dim":
		if len(n.Dims) == maxDims {
			return fmt.Errorf("more than %d dimensions", maxDims)
		}
		n.Dims = append(n.Dims, Dim{Shape(r.name(shapeNames[:])), r.integer(), r.wire()})
	case "cluster":
		c = &Cluster{Uplinks: 1}
		r.pairs(map[string]func(){
			"racks": func() { c.Racks = r.integer() }, "servers": func() { c.Servers = r.integer() },
			"boards": func() { c.Boards = r.integer() }, "npus": func() { c.NPUs = r.integer() },
		})
		n.Cluster = c
	case "board":
		c.Board, c.HCCS = Shape(r.name(shapeNames[:])), r.wire()
	case "pcie":
		c.PCIe = r.wire()
	case "nic":
		c.NIC = r.wire()
	case "uplink":
		c.Uplinks, c.Uplink = r.integer(), r.wire()
	case "endpoint":
		e := &n.Endpoint
		r.pairs(map[string]func(){
			"start": func() { e.Start = r.duration() }, "send": func() { e.Send = r.duration() },
			"recv": func() { e.Recv = r.duration() }, "gap": func() { e.Gap = r.duration() },
			"eager": func() { e.Eager = int64(r.integer()) }, "memory": func() { e.Memory = r.rate() },
		})
	case "reduce":
		n.Reduce = r.rate()
	case "whole":
		n.Whole = true
	case "slow":
		n.Slow = append(n.Slow, SlowLink{r.word(), r.number()})
	case "lost":
		n.Lost = append(n.Lost, r.word())
	case "place":
		n.Place = []int{}
		for len(r.words) > 0 && r.err == nil && len(n.Place) <= maxNPUs {
			n.Place = append(n.Place, r.integer())
		}
	default:
		return errors.New("no such line; known: network, model, dim, cluster, board, pcie, nic, uplink, endpoint, reduce, whole, slow, lost, place")
	}
	if r.err == nil && len(r.words) > 0 {
		return fmt.Errorf("%.40q is too much", r.words[0])
	}
	return r.err
}

// wordReader takes words; after an error it gives zeros.
type wordReader struct {
	words []string
	err   error
}

func (r *wordReader) word() string {
	if r.err != nil || len(r.words) == 0 {
		if r.err == nil {
			r.err = errors.New("something is missing at the end")
		}
		return ""
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

func (r *wordReader) fail(got, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%.40q instead of %s", got, want)
	}
}

func (r *wordReader) name(of []string) int {
	w := r.word()
	i := slices.Index(of, w)
	if i < 0 {
		r.fail(w, strings.Join(of, ", "))
		return 0
	}
	return i
}

func (r *wordReader) integer() int {
	w := r.word()
	i, err := strconv.Atoi(w)
	if err != nil || i < 0 || i > math.MaxInt32 {
		r.fail(w, "a whole number")
		return 0
	}
	return i
}

func (r *wordReader) number() float64 {
	w := r.word()
	x, err := strconv.ParseFloat(w, 64)
	if err != nil || math.IsNaN(x) {
		r.fail(w, "a number")
	}
	return x
}

func (r *wordReader) duration() time.Duration {
	w := r.word()
	d, err := time.ParseDuration(w)
	if err != nil || d < 0 {
		r.fail(w, "a time, as 1.5us")
	}
	return d
}

func (r *wordReader) rate() float64 {
	w := r.word()
	x, ok := parseRate(w)
	if !ok {
		r.fail(w, "a rate, as 25GB/s")
	}
	return x
}

func (r *wordReader) wire() Wire { return Wire{r.duration(), r.rate()} }

// pairs reads names, each with what its function takes, each once.
func (r *wordReader) pairs(take map[string]func()) {
	seen := map[string]bool{}
	for len(r.words) > 0 && r.err == nil {
		w := r.word()
		f := take[w]
		if f == nil || seen[w] {
			r.fail(w, "a name that this line has, once")
			return
		}
		seen[w] = true
		f()
	}
}

var rateUnits = []struct {
	name string
	x    float64
}{{"GiB/s", 1 << 30}, {"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}}

func parseRate(w string) (float64, bool) {
	for _, u := range rateUnits {
		if digits, ok := strings.CutSuffix(w, u.name); ok {
			x, err := strconv.ParseFloat(digits, 64)
			return x * u.x, err == nil && x >= 0 && x <= 1e18
		}
	}
	return 0, false
}

// exactRate is the shortest text that parseRate reads back to the same number.
func exactRate(x float64) string {
	best := ""
	for _, u := range rateUnits {
		s := strconv.FormatFloat(x/u.x, 'g', -1, 64) + u.name
		if y, ok := parseRate(s); ok && y == x && (best == "" || len(s) < len(best)) {
			best = s
		}
	}
	return best
}

// String is the network as a file that ParseNetwork reads back.
func (n *Network) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	wire := func(w Wire) string { return w.Latency.String() + " " + exactRate(w.Bandwidth) }
	if name := strings.Join(strings.Fields(n.Name), " "); name != "" {
		line("network %s", name)
	}
	line("model %v", n.Model)
	for _, d := range n.Dims {
		line("dim %v %d %s", d.Shape, d.Size, wire(d.Wire))
	}
	if c := n.Cluster; c != nil {
		line("cluster racks %d servers %d boards %d npus %d", c.Racks, c.Servers, c.Boards, c.NPUs)
		for _, k := range []struct {
			name string
			w    Wire
		}{{"board " + c.Board.String(), c.HCCS}, {"pcie", c.PCIe}, {"nic", c.NIC}, {"uplink " + strconv.Itoa(c.Uplinks), c.Uplink}} {
			if k.w != (Wire{}) {
				line("%s %s", k.name, wire(k.w))
			}
		}
	}
	if e := n.Endpoint; e != (Endpoint{}) {
		line("endpoint start %v send %v recv %v gap %v eager %d memory %s", e.Start, e.Send, e.Recv, e.Gap, e.Eager, exactRate(e.Memory))
	}
	if n.Reduce != 0 {
		line("reduce %s", exactRate(n.Reduce))
	}
	if n.Whole {
		line("whole")
	}
	for _, s := range n.Slow {
		line("slow %s %v", s.Link, s.Factor)
	}
	for _, l := range n.Lost {
		line("lost %s", l)
	}
	if n.Place != nil {
		line("place %s", strings.Trim(fmt.Sprint(n.Place), "[]"))
	}
	return b.String()
}

// ParseASTRA reads a network file of ASTRA-sim's analytical network, as
//
//	topology: [ Ring, FullyConnected, Switch ]
//	npus_count: [ 2, 8, 4 ]
//	bandwidth: [ 200, 100, 50 ]   # GB/s of 2^30 bytes
//	latency: [ 50, 500, 2000 ]    # ns
//
// The lists may also be written with a line "- x" for each. The model is up to the
// caller: ASTRA-sim has a program for Uncontended and one for StoreAndForward, and
// that one only for a single dimension.
func ParseASTRA(text string) (*Network, error) {
	lists, err := yamlLists(text)
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: ASTRA-sim network: "+format, append([]any{kolo.ErrArgument}, args...)...)
	}
	shape := lists["topology"]
	if len(shape) == 0 || len(shape) > maxDims {
		return nil, bad("%d entries of topology; want 1 to %d", len(shape), maxDims)
	}
	for _, key := range []string{"npus_count", "bandwidth", "latency"} {
		if len(lists[key]) != len(shape) {
			return nil, bad("%d entries of %s and %d of topology", len(lists[key]), key, len(shape))
		}
	}
	n := &Network{Whole: true}
	for i := range shape {
		s := slices.Index([]string{"Ring", "FullyConnected", "Switch"}, shape[i])
		if s < 0 {
			return nil, bad("topology %.40q; want Ring, FullyConnected or Switch", shape[i])
		}
		r := &wordReader{words: []string{lists["npus_count"][i], lists["bandwidth"][i], lists["latency"][i]}}
		size, rate, latency := r.integer(), r.number(), r.number()
		if r.err != nil || !(latency >= 0 && latency <= float64(time.Hour)) {
			return nil, bad("dimension %d: %v, latency %v", i, r.err, latency)
		}
		n.Dims = append(n.Dims, Dim{Shape(s), size, Wire{time.Duration(latency), rate * (1 << 30)}})
	}
	return n, n.Validate()
}

// yamlLists reads a YAML mapping of names to lists of plain words.
func yamlLists(text string) (map[string][]string, error) {
	out := map[string][]string{}
	key, number := "", 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		bad := func(why string) error {
			return fmt.Errorf("%w: ASTRA-sim network, line %d: %s", kolo.ErrArgument, number, why)
		}
		if number > maxNetworkLines {
			return nil, bad("too many lines")
		}
		if line == "" || line == "---" {
			continue
		}
		if item, ok := strings.CutPrefix(line, "- "); ok && key != "" {
			out[key] = append(out[key], unquoted(item))
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, bad(fmt.Sprintf("%.40q is no list with a name", line))
		}
		if key = strings.TrimSpace(name); out[key] != nil {
			return nil, bad(fmt.Sprintf("%.40q for the second time", key))
		}
		value = strings.TrimSpace(value)
		if value == "" {
			continue
		}
		if inner, ok := strings.CutPrefix(value, "["); ok {
			if value, ok = strings.CutSuffix(inner, "]"); !ok {
				return nil, bad("a list without its ]")
			}
		}
		for item := range strings.SplitSeq(value, ",") {
			out[key] = append(out[key], unquoted(item))
		}
		key = ""
	}
	return out, nil
}

func unquoted(s string) string { return strings.Trim(strings.TrimSpace(s), `"'`) }
