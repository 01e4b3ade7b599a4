package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// How HCCL chooses, for whoever knows it from articles. HCCL runs no benchmark at
// the first call: between servers it compares the closed alpha-beta costs of ring,
// NHR and halving-doubling, with a latency of 60 us and a table of bandwidths per
// chip as constants, after some size thresholds (coll_alg_operator.cc and
// device_capacity.cc of hcomm); newer chips use a cost table that a plug-in may
// edit. There is no tree among the algorithms that HCCL_ALGO can name, and its mesh
// is the algorithm inside a server, where all cards are linked, not one for uneven
// topologies (that is AHC). Much writing about HCCL nevertheless states the rule
// "small groups ring, large ones tree, uneven ones mesh": that rule is Static here.
// Measured is what HCCL really does, with figures of a probe instead of constants.

// Method is how Choose decides when nothing is forced.
type Method uint8

// The methods.
const (
	// Measured takes the algorithm of the least cost in the alpha-beta-gamma model,
	// with the figures of the Topology. Ties go to the earlier in the table.
	Measured Method = iota
	// Static looks at the number and the place of the ranks alone: ring for up to 15
	// ranks, tree from 16, mesh where Topology.Asymmetric says something. (The rule is
	// usually told as ring up to 8 and tree from 16; between the two a ring it is
	// here.) If that one does not serve the collective, the nearest of its kind does.
	Static
	// Timed is Measured until calls have been timed. Choose has no clock, so here it is
	// Measured; package rank times the calls themselves. See Contest and Choice.Settled.
	Timed
)

// treeFrom is the number of ranks from which Static takes the tree.
const treeFrom = 16

// String is "measured", "static" or "timed".
func (m Method) String() string {
	switch m {
	case Measured:
		return "measured"
	case Static:
		return "static"
	case Timed:
		return "timed"
	}
	return fmt.Sprintf("Method(%d)", uint8(m))
}

// Policy is what a user may say about the choice. The zero value is the measured
// method with nothing forced. Of several overrides the first of Per, Algorithm and
// HCCLAlgo that speaks of the collective counts. A forced algorithm that cannot do
// the collective is an error, never a reason to take another. All ranks of a group
// must have the same Policy.
type Policy struct {
	Method Method
	// Reproducible admits, for collectives that reduce, only algorithms that fold the
	// values of all ranks in rank order in one pass: the bits of the result then do
	// not depend on sizes, cuts or the algorithm.
	Reproducible bool
	// Algorithm forces one for every collective; "" does not.
	Algorithm string
	// Per forces one per collective. A V form without an entry takes its base's.
	Per map[kolo.Collective]string
	// HCCLAlgo is a value of HCCL_ALGO; see ParseHCCLAlgo.
	HCCLAlgo string
	// Tuning is a table of choices that counts where nothing is forced: before the method,
	// and with its disabled algorithms left out of it. nil: none. It must not change.
	Tuning *Tuning
}

// Validate says what in the policy cannot be understood, or nil. Whether the forced
// algorithms serve is seen only with a collective and a topology, by Choose.
func (p Policy) Validate() error {
	if p.Method > Timed {
		return fmt.Errorf("%w: no method of choice %d; known: measured, static, timed", kolo.ErrArgument, p.Method)
	}
	names := []string{p.Algorithm}
	for _, c := range kolo.Collectives() {
		names = append(names, p.Per[c])
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if _, err := Lookup(name); err != nil {
			return err
		}
	}
	if p.Tuning != nil {
		if err := p.Tuning.Validate(); err != nil {
			return err
		}
	}
	_, err := ParseHCCLAlgo(p.HCCLAlgo)
	return err
}

// Force is the policy with an algorithm forced as users write it in one setting: by a
// name, or by an expression as in HCCL_ALGO. An empty one forces nothing.
func (p Policy) Force(setting string) Policy {
	p.Algorithm, p.HCCLAlgo = "", ""
	if strings.ContainsAny(setting, "=;/") || strings.HasPrefix(strings.ToLower(setting), "level") {
		p.HCCLAlgo = setting
	} else {
		p.Algorithm = setting
	}
	return p
}

// forced is the algorithm that the policy demands, and who demands it.
func (p Policy) forced(c kolo.Collective, t *Topology) (name, who string, err error) {
	for _, k := range []kolo.Collective{c, c.Base()} {
		if name := p.Per[k]; name != "" {
			return name, "forced for " + k.String(), nil
		}
	}
	if p.Algorithm != "" {
		return p.Algorithm, "forced for all collectives", nil
	}
	if p.HCCLAlgo == "" {
		return "", "", nil
	}
	h, err := ParseHCCLAlgo(p.HCCLAlgo)
	if err != nil {
		return "", "", err
	}
	name, err = h.For(c, t)
	return name, "forced by HCCL_ALGO " + h.String(), err
}

// ordered are the algorithms that fold all sources of an element in rank order in
// one pass. Mesh does so too: the owner of a block folds it from all peers at once.
var ordered = []string{"fabric", "mesh-oneshot", "mesh", "star"}

// Row is one algorithm in the table behind a Choice.
type Row struct {
	Name   string
	Serves bool // it can do the collective under the policy
	// Cost is the estimate; NoCost where the algorithm does not serve or has no formula.
	Cost                   time.Duration
	Rounds, Bytes, Reduced float64 // summed over the levels; see Level
	// Why it won, lost or does not serve.
	Why string

	fan      float64       // messages in a round, at most
	most     costPart      // the greatest part of the cost
	mostCost time.Duration // and how much that is
}

// NoCost is the cost of a row that has none.
const NoCost = time.Duration(math.MaxInt64)

// Choice is what Choose decided, with every algorithm that it looked at: the
// winner first, the others that serve by cost, then those that do not.
type Choice struct {
	Algorithm  string
	Cost       time.Duration
	Why        string
	Collective kolo.Collective
	Size       int64 // bytes of the whole vector
	Policy     Policy
	Rows       []Row
	ByCost     bool // nothing was forced: neither a setting, nor a Tuning, nor the static rule

	topology *Topology
}

// allToAllNominal is the bytes per pair for which AllToAllV is chosen: a rank knows
// only its own counts there, and all ranks must choose alike.
const allToAllNominal = 64 << 10

// VectorSize is the bytes of the whole vector of a call in a group of n ranks, the
// number that costs are computed for: what one rank has in AllReduce, Reduce and
// Broadcast, all ranks' parts together in the gathers and scatters, all that one
// rank sends in AllToAll. AllToAllVC counts the rank that sends most; AllToAllV
// takes 64 KiB per pair, whatever the counts.
func VectorSize(c *kolo.Call, n int) (int64, error) {
	if err := planned(c.Collective); err != nil {
		return 0, err
	}
	size := int64(c.DType.Size())
	elements, times := c.Count, int64(1)
	switch c.Collective {
	case kolo.Barrier:
		return 0, nil
	case kolo.AllToAllV:
		return allToAllNominal * int64(n), nil
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		times = int64(n)
	case kolo.AllGatherV, kolo.ReduceScatterV, kolo.GatherV, kolo.ScatterV:
		if len(c.Counts) != n {
			return 0, fmt.Errorf("%w: %v with %d counts in a group of %d", kolo.ErrArgument, c.Collective, len(c.Counts), n)
		}
		elements = sumCounts(c.Counts)
	case kolo.AllToAllVC:
		if len(c.Counts) != n*n {
			return 0, fmt.Errorf("%w: %v with %d counts in a group of %d; the matrix has %d", kolo.ErrArgument, c.Collective, len(c.Counts), n, n*n)
		}
		elements = 0
		for row := range slices.Chunk(c.Counts, max(n, 1)) {
			if elements = max(elements, sumCounts(row)); sumCounts(row) < 0 {
				elements = -1
				break
			}
		}
	}
	switch {
	case !c.DType.Valid():
		return 0, fmt.Errorf("%w: %v: no element type %d", kolo.ErrArgument, c, uint8(c.DType))
	case elements < 0:
		return 0, fmt.Errorf("%w: %v: a count is negative, or all together are too large", kolo.ErrArgument, c)
	case elements > math.MaxInt64/(size*max(times, 1)):
		return 0, fmt.Errorf("%w: %v: the vector has more bytes than an int64 counts", kolo.ErrArgument, c)
	}
	return elements * size * times, nil
}

// sumCounts is the sum of counts, or -1 when one is negative or the sum too large.
func sumCounts(counts []int64) int64 {
	s := int64(0)
	for _, k := range counts {
		if k < 0 || s > math.MaxInt64-k {
			return -1
		}
		s += k
	}
	return s
}

func planned(c kolo.Collective) error {
	if !slices.Contains(kolo.Collectives(), c) {
		return fmt.Errorf("%w: there is no plan for %v; Send, Recv and Batch need none", kolo.ErrArgument, c)
	}
	return nil
}

// Class is a class of sizes: those that need the same number of bits.
type Class int

// ClassOf is the class of a size in bytes; 0 for nothing.
func ClassOf(size int64) Class {
	c := Class(0)
	for ; size > 0; size >>= 1 {
		c++
	}
	return c
}

// Size stands for all sizes of the class: the middle of it, 3 times a power of two.
func (c Class) Size() int64 {
	if c < 2 {
		return int64(max(c, 0))
	}
	return 3 << (min(c, 63) - 2)
}

// Sizes are the sizes from Low to High, which a cache of choices does not tell apart: one
// choice is made for all of them, that of ChooseSize for Typical. So a choice does not
// depend on which size was asked for first.
type Sizes struct{ Low, High, Typical int64 }

// SizesOf are the sizes around one: its class, or the part of it between two of
// Tuning.Steps.
func SizesOf(size int64, steps []int64) Sizes {
	c := ClassOf(size)
	s := Sizes{Typical: c.Size()}
	if c > 0 {
		s.Low, s.High = 1<<(c-1), math.MaxInt64>>(63-c)
	}
	i, found := slices.BinarySearch(steps, size)
	if found {
		i++
	}
	if i > 0 {
		s.Low = max(s.Low, steps[i-1])
	}
	if i < len(steps) {
		s.High = min(s.High, steps[i]-1)
	}
	s.Typical = min(max(s.Typical, s.Low), s.High)
	return s
}

// Choose decides how call c is done by the ranks of t. Equal calls, topologies and
// policies give equal choices on every rank.
//
// Errors: ErrArgument for a call, topology or policy that makes no sense;
// ErrUnsupported when a forced algorithm does not serve, or none does.
func Choose(c *kolo.Call, t *Topology, p Policy) (Choice, error) {
	size, err := VectorSize(c, t.Ranks())
	if err != nil {
		return Choice{}, err
	}
	return ChooseSize(c.Collective, size, t, p)
}

// ChooseSize is Choose for a collective over size bytes of the whole vector, of
// which Choose looks at nothing more. See VectorSize.
func ChooseSize(c kolo.Collective, size int64, t *Topology, p Policy) (Choice, error) {
	return chooseFrom(Algorithms(), c, size, t, p)
}

// chooseFrom is ChooseSize with a table of the tests' making.
func chooseFrom(table []*Algorithm, c kolo.Collective, size int64, t *Topology, p Policy) (Choice, error) {
	if err := planned(c); err != nil {
		return Choice{}, err
	}
	if err := t.Validate(); err != nil {
		return Choice{}, err
	}
	if size < 0 || p.Method > Timed {
		return Choice{}, fmt.Errorf("%w: %v over %d bytes, chosen by %v", kolo.ErrArgument, c, size, p.Method)
	}
	if c == kolo.Barrier {
		size = 0
	}
	forced, who, err := p.forced(c, t)
	if err != nil {
		return Choice{}, err
	}
	ch := Choice{Collective: c, Size: size, Policy: p, topology: t}
	for _, a := range table {
		row := t.row(a, c, size, p)
		if why := p.Tuning.disabled(a.Name, c, size, t); forced == "" && why != "" && row.Serves {
			row = Row{Name: a.Name, Cost: NoCost, Why: why}
		}
		ch.Rows = append(ch.Rows, row)
	}
	var at int
	switch {
	case forced != "":
		at, err = ch.force(forced, who)
	case t.Ranks() == 1:
		at, err = ch.prefer("a single rank: nothing travels", "ring")
	case ch.tuned() >= 0:
		at = ch.tuned()
	case p.Method == Static:
		at, err = ch.static()
	default:
		at, err = ch.cheapest()
		ch.ByCost = true
	}
	if err != nil {
		return Choice{}, err
	}
	win := ch.Rows[at]
	ch.Algorithm, ch.Cost, ch.Why = win.Name, win.Cost, win.Why
	slices.SortStableFunc(ch.Rows, func(x, y Row) int {
		return cmp.Or(trueFirst(x.Name == win.Name, y.Name == win.Name), trueFirst(x.Serves, y.Serves), cmp.Compare(x.Cost, y.Cost))
	})
	return ch, nil
}

// trueFirst puts true before false.
func trueFirst(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// row is algorithm a's line in the table; Why says only why it does not serve.
func (t *Topology) row(a *Algorithm, c kolo.Collective, size int64, p Policy) Row {
	r := Row{Name: a.Name, Cost: NoCost}
	if r.Why = t.refusal(a, c, p); r.Why != "" {
		return r
	}
	r.Serves = true
	t.estimate(&r, a, c.Base(), float64(size))
	return r
}

// refusal is why a may not do c, or "".
func (t *Topology) refusal(a *Algorithm, c kolo.Collective, p Policy) string {
	if a == fabric && !t.Medium {
		return "the ranks share no medium that does collectives"
	}
	if err := a.serves(c, t); err != nil {
		return err.Error()
	}
	if p.Reproducible && c.Reduces() && !slices.Contains(ordered, a.Name) {
		return "not reproducible: its order of folding depends on cuts"
	}
	return ""
}

// force is the row of the algorithm that the policy demands.
func (ch *Choice) force(name, who string) (int, error) {
	at := slices.IndexFunc(ch.Rows, func(r Row) bool { return r.Name == name })
	if at < 0 {
		a, err := Lookup(name)
		if err != nil {
			return 0, err
		}
		at = len(ch.Rows)
		ch.Rows = append(ch.Rows, ch.topology.row(a, ch.Collective, ch.Size, ch.Policy))
	}
	if r := ch.Rows[at]; !r.Serves {
		return 0, fmt.Errorf("%w: algorithm %s, %s, cannot do %v for %s: %s; %s", kolo.ErrUnsupported, name, who, ch.Collective, ch.topology.shape(), r.Why, ch.serving())
	}
	ch.rest("not asked: " + name + " is forced")
	ch.Rows[at].Why = who
	return at, nil
}

// serving says which algorithms serve the call.
func (ch *Choice) serving() string {
	var names []string
	for _, r := range ch.Rows {
		if r.Serves {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return "no algorithm does"
	}
	return "what can: " + strings.Join(names, ", ")
}

// rest gives a reason to every row that serves.
func (ch *Choice) rest(why string) {
	for i := range ch.Rows {
		if ch.Rows[i].Serves {
			ch.Rows[i].Why = why
		}
	}
}

// kinds lists, for each algorithm that the static rule names, those nearest to it.
var kinds = map[string][]string{
	"ring": {"ring", "pairwise", "mesh", "nhr", "star"},
	"tree": {"tree", "double-tree", "recursive-doubling", "halving-doubling", "nhr", "bruck", "star"},
	"mesh": {"mesh", "mesh-oneshot", "pairwise", "star", "ring"},
}

// static applies the rule of the same name.
func (ch *Choice) static() (int, error) {
	n := ch.topology.Ranks()
	if why := ch.topology.Asymmetric(); why != "" {
		return ch.prefer("static rule: mesh for "+why, "mesh")
	}
	if n >= treeFrom {
		return ch.prefer(fmt.Sprintf("static rule: tree from %d ranks", treeFrom), "tree")
	}
	return ch.prefer(fmt.Sprintf("static rule: ring for up to %d ranks", treeFrom-1), "ring")
}

// prefer takes the first of a kind that serves, else the first of the table. The
// medium comes last: no such rule knows of it.
func (ch *Choice) prefer(why, kind string) (int, error) {
	order := slices.Clone(kinds[kind])
	for _, r := range ch.Rows {
		if r.Name != fabric.Name {
			order = append(order, r.Name)
		}
	}
	for _, name := range append(order, fabric.Name) {
		at := slices.IndexFunc(ch.Rows, func(r Row) bool { return r.Name == name && r.Serves })
		if at < 0 {
			continue
		}
		if name != kind {
			why += fmt.Sprintf("; %s cannot, %s is nearest", kind, name)
		}
		ch.rest("not the rule's")
		ch.Rows[at].Why = why
		return at, nil
	}
	return 0, ch.none()
}

func (ch *Choice) none() error {
	var b strings.Builder
	for _, r := range ch.Rows {
		fmt.Fprintf(&b, "; %s: %s", r.Name, r.Why)
	}
	return fmt.Errorf("%w: no algorithm does %v for %s%s", kolo.ErrUnsupported, ch.Collective, ch.topology.shape(), b.String())
}

// cheapest takes the row of the least cost and tells the others why they lost.
func (ch *Choice) cheapest() (int, error) {
	best, next := -1, -1
	for i, r := range ch.Rows {
		switch {
		case !r.Serves:
		case best < 0 || r.Cost < ch.Rows[best].Cost:
			best, next = i, best
		case next < 0 || r.Cost < ch.Rows[next].Cost:
			next = i
		}
	}
	if best < 0 {
		return 0, ch.none()
	}
	win := &ch.Rows[best]
	for i := range ch.Rows {
		if r := &ch.Rows[i]; r.Serves && i != best {
			r.Why = r.loss(win)
		}
	}
	win.Why = "least cost"
	if win.Name == fabric.Name {
		win.Why = "the medium does it in one pass, at least cost"
	}
	if next >= 0 && ch.Rows[next].Cost != NoCost {
		win.Why += fmt.Sprintf("; next is %s with %s", ch.Rows[next].Name, duration(ch.Rows[next].Cost))
	}
	return best, nil
}
