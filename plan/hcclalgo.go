package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// HCCLAlgo is a parsed value of HCCL_ALGO. The zero value says nothing.
//
// The grammar is HCCL's (its environment variable reference, HCCL_ALGO):
//
//	value  = levels | op "=" levels { "/" op "=" levels }
//	levels = level { ";" level }
//	level  = "level0:" name | "level1:" name | "level2:" name
//
// with op an operator in lower case (allreduce, alltoallv and so on) or others, and
// name NA, an algorithm of HCCL, or any algorithm of this package but a hierarchical
// one. Level 0 is inside a server, 1 between servers, 2 between racks (super-pods).
// Letters may be of either case. An op without a V speaks for its V forms too,
// unless these are named.
//
// HCCL takes only NA for level 0, and quietly takes another algorithm when the named
// one cannot do the operator. Here level 0 may be named, and then means a
// hierarchical algorithm, and what cannot be done is an error.
type HCCLAlgo struct {
	rules []hcclRule // ascending by op, without repetition
}

// hcclRule is what is said of one operator.
type hcclRule struct {
	op    kolo.Collective // NoCollective: all others
	level [3]string       // algorithms of this package; "" is NA
}

// maxHCCLAlgo is the longest value, the room that HCCL's own configuration has.
const maxHCCLAlgo = 1600

// hcclNames are HCCL's names of algorithms, each with ours. fullmesh is what its logs
// call the mesh.
var hcclNames = [][2]string{
	{"ring", "ring"}, {"H-D_R", "halving-doubling"}, {"NHR", "nhr"}, {"NHR_V1", "nhr-v1"}, {"NB", "nb"},
	{"AHC", "ahc"}, {"pipeline", "pipeline"}, {"pairwise", "pairwise"}, {"fullmesh", "mesh"},
}

// hcclOps are the names of operators. The V forms are op+"v" in HCCL as well.
var hcclOps = []struct {
	name string
	op   kolo.Collective
}{
	{"broadcast", kolo.Broadcast}, {"allreduce", kolo.AllReduce}, {"reduce", kolo.Reduce},
	{"allgather", kolo.AllGather}, {"allgatherv", kolo.AllGatherV},
	{"reducescatter", kolo.ReduceScatter}, {"reducescatterv", kolo.ReduceScatterV},
	{"alltoall", kolo.AllToAll}, {"alltoallv", kolo.AllToAllV}, {"alltoallvc", kolo.AllToAllVC},
	{"gather", kolo.Gather}, {"gatherv", kolo.GatherV}, {"scatter", kolo.Scatter}, {"scatterv", kolo.ScatterV},
	{"barrier", kolo.Barrier}, {"others", kolo.NoCollective},
}

// ParseHCCLAlgo reads a value of HCCL_ALGO. An empty one says nothing.
//
// Errors name the token, its position (the first byte is 1) and what would be taken
// in its place: ErrArgument for what no grammar knows, ErrUnsupported for an
// algorithm that HCCL has and this package does not.
func ParseHCCLAlgo(s string) (HCCLAlgo, error) { return parseHCCLAlgo(s, algorithmNames()) }

func parseHCCLAlgo(s string, built algorithmList) (HCCLAlgo, error) {
	if s == "" {
		return HCCLAlgo{}, nil
	}
	if len(s) > maxHCCLAlgo {
		return HCCLAlgo{}, fmt.Errorf("%w: HCCL_ALGO of %d bytes; at most %d", kolo.ErrArgument, len(s), maxHCCLAlgo)
	}
	var h HCCLAlgo
	pos := 1
	perOp := strings.ContainsAny(s, "=/")
	for part := range strings.SplitSeq(s, "/") {
		rule := hcclRule{}
		at, levels := pos, part
		if perOp {
			name, rest, found := strings.Cut(part, "=")
			op, known := hcclOp(name)
			switch {
			case !found:
				return HCCLAlgo{}, hcclError(pos, part, "op=levels, where op is "+opNames())
			case !known:
				return HCCLAlgo{}, hcclError(pos, name, "an operator: "+opNames())
			case h.rule(op) != nil:
				return HCCLAlgo{}, hcclError(pos, name, "each operator once")
			}
			rule.op, at, levels = op, pos+len(name)+1, rest
		}
		if err := rule.parse(levels, at, built); err != nil {
			return HCCLAlgo{}, err
		}
		h.rules = append(h.rules, rule)
		pos += len(part) + 1
	}
	slices.SortFunc(h.rules, func(a, b hcclRule) int { return int(a.op) - int(b.op) })
	return h, nil
}

func hcclOp(name string) (kolo.Collective, bool) {
	for _, o := range hcclOps {
		if strings.EqualFold(o.name, name) {
			return o.op, true
		}
	}
	return kolo.NoCollective, false
}

// parse reads levels, which begin at position pos of the whole value.
func (r *hcclRule) parse(levels string, pos int, built algorithmList) error {
	var seen [3]bool
	for part := range strings.SplitSeq(levels, ";") {
		key, name, _ := strings.Cut(part, ":")
		l := -1
		if len(key) == len("level0") && strings.EqualFold(key[:5], "level") {
			l = int(key[5]) - '0'
		}
		if l < 0 || l > 2 || len(part) == len(key) {
			return hcclError(pos, part, "level0:name, level1:name or level2:name, separated by ;")
		}
		if seen[l] {
			return hcclError(pos, part, "each level once")
		}
		seen[l] = true
		var err error
		if r.level[l], err = built.named(name, pos+len(key)+1); err != nil {
			return err
		}
		pos += len(part) + 1
	}
	return nil
}

// algorithmList are the names of algorithms that exist.
type algorithmList []string

func algorithmNames() algorithmList {
	var out algorithmList
	for _, a := range Algorithms() {
		out = append(out, a.Name)
	}
	return out
}

// named is this package's name of an algorithm, "" for NA.
func (built algorithmList) named(name string, pos int) (string, error) {
	if strings.EqualFold(name, "NA") {
		return "", nil
	}
	for _, k := range hcclNames {
		if !strings.EqualFold(k[0], name) {
			continue
		}
		if !slices.Contains(built, k[1]) {
			return "", fmt.Errorf("%w: HCCL_ALGO, position %d: HCCL has %s, but it is not built here; built are %s", kolo.ErrUnsupported, pos, k[0], built.levels())
		}
		return k[1], nil
	}
	for _, a := range built {
		if strings.EqualFold(a, name) && !strings.HasPrefix(a, hierPrefix) {
			return a, nil
		}
	}
	return "", hcclError(pos, name, "one of "+built.levels())
}

// levels lists what a level can be, HCCL's names first.
func (built algorithmList) levels() string {
	names := []string{"NA"}
	spelled := map[string]bool{}
	for _, k := range hcclNames {
		if slices.Contains(built, k[1]) {
			names, spelled[k[1]] = append(names, k[0]), true
		}
	}
	for _, a := range built {
		if !strings.HasPrefix(a, hierPrefix) && (!spelled[a] || a == "mesh") {
			names = append(names, a)
		}
	}
	return strings.Join(names, ", ")
}

// hier lists the hierarchical ones.
func (built algorithmList) hier() string {
	var names []string
	for _, a := range built {
		if strings.HasPrefix(a, hierPrefix) {
			names = append(names, a)
		}
	}
	if len(names) == 0 {
		return "no hierarchical ones"
	}
	return strings.Join(names, ", ")
}

// hierPrefix begins the name of a hierarchical algorithm.
const hierPrefix = "hier:"

func hcclError(pos int, got, want string) error {
	return fmt.Errorf("%w: HCCL_ALGO, position %d: %.60q instead of %s", kolo.ErrArgument, pos, got, want)
}

func opNames() string {
	var names []string
	for _, o := range hcclOps {
		names = append(names, o.name)
	}
	return strings.Join(names, ", ")
}

// rule is what is said of op itself, or nil.
func (h HCCLAlgo) rule(op kolo.Collective) *hcclRule {
	for i := range h.rules {
		if h.rules[i].op == op {
			return &h.rules[i]
		}
	}
	return nil
}

// String is the value in one spelling: operators in the order of their numbers, then
// the others; level 0 and what is not NA of the rest. ParseHCCLAlgo reads it back.
func (h HCCLAlgo) String() string {
	if len(h.rules) == 1 && h.rules[0].op == kolo.NoCollective {
		return h.rules[0].levels()
	}
	var named, others []string
	for _, r := range h.rules {
		for _, o := range hcclOps {
			switch {
			case o.op != r.op:
			case o.op == kolo.NoCollective:
				others = append(others, o.name+"="+r.levels())
			default:
				named = append(named, o.name+"="+r.levels())
			}
		}
	}
	return strings.Join(append(named, others...), "/")
}

// levels is the rule without its operator, in HCCL's spelling where there is one.
func (r *hcclRule) levels() string {
	var out []string
	for l, name := range r.level {
		if name == "" && l > 0 {
			continue
		}
		out = append(out, fmt.Sprintf("level%d:%s", l, hcclSpelling(name)))
	}
	return strings.Join(out, ";")
}

func hcclSpelling(name string) string {
	if name == "" {
		return "NA"
	}
	for _, k := range hcclNames {
		if k[1] == name && k[0] != "fullmesh" {
			return k[0]
		}
	}
	return name
}

// For is the algorithm that is asked for collective c on t, or "" where the choice is
// left to the library.
//
//	servers      level0  level1  level2    algorithm
//	one          x       any     any       x over all ranks
//	one          NA      y       any       y over all ranks
//	several      NA      y       NA or y   y over all ranks, as if there were no servers
//	several      x       y       any       hier:x+y; without y, NHR (as HCCL on its newer chips)
//	in racks     x       y       z         hier:x+y+z; without z, hier:x+y
//
// Level 2 counts only where there are several racks, and a level 0 only where some
// server holds several ranks. AHC at level 1 is AHC everywhere, as in HCCL, and
// pipeline at level 1 has a level 0 of its own. What is
// said of all or the other operators does not bind Barrier, which HCCL has not.
// Levels that make no algorithm of this package are ErrUnsupported.
func (h HCCLAlgo) For(c kolo.Collective, t *Topology) (string, error) {
	return h.forAmong(c, t, algorithmNames())
}

func (h HCCLAlgo) forAmong(c kolo.Collective, t *Topology, built algorithmList) (string, error) {
	r := h.rule(c)
	if r == nil {
		r = h.rule(c.Base())
	}
	if r == nil && c != kolo.Barrier {
		r = h.rule(kolo.NoCollective)
	}
	if r == nil {
		return "", nil
	}
	l0, l1, l2 := r.level[0], r.level[1], r.level[2]
	servers, racks := distinct(t.Server), distinct(t.Rack)
	switch {
	case l1 == "ahc", l1 == "pipeline" && servers > 1:
		return l1, nil
	case servers == 1 && l0 != "":
		return l0, nil
	case servers == 1 || l0 == "" && l2 == "":
		return l1, nil
	case racks == 1:
		l2 = ""
	}
	if servers == t.Ranks() && l0 != "" {
		l0 = ""
		l1 = cmp.Or(l1, defaultLevel1)
	}
	if l0 == "" {
		if l2 == "" || l2 == l1 {
			return l1, nil
		}
		return "", fmt.Errorf("%w: HCCL_ALGO %s for %v: level2:%s needs the same algorithm at level 1, or servers of several ranks and one at level 0 too (as level0:ring)", kolo.ErrUnsupported, r.levels(), c, hcclSpelling(l2))
	}
	name := hierPrefix + l0 + "+" + cmp.Or(l1, defaultLevel1)
	if l2 != "" {
		name += "+" + l2
	}
	if !slices.Contains(built, name) {
		return "", fmt.Errorf("%w: HCCL_ALGO %s for %v over %s asks for %s, which is not built; built are %s", kolo.ErrUnsupported, r.levels(), c, t.shape(), name, built.hier())
	}
	return name, nil
}

// defaultLevel1 goes with a level 0 that is named alone.
const defaultLevel1 = "nhr"
