package main

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/chart"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/rank"
)

// Defaults. Those of hccl_test where it has the flag; it takes all devices of the
// host where we take a number of ranks that does not depend on the host.
const (
	defaultRanks = 8
	defaultSize  = 64 << 20
	defaultIters = 20
	defaultWarm  = 10
	defaultSteps = 10 // sizes between the least and the largest
)

// testFlags is what the flags of a test say.
type testFlags struct {
	set                *pflag.FlagSet
	min, max, step     byteSize
	factor             float64
	iters, warmup      int
	op, dtype          string
	root, check, ranks int

	inplace, algo, json, plot     string
	transport                     string
	place                         place
	timeout                       time.Duration
	explain, uneven, reproducible bool

	zeroCopy, symmetric, nslb, deviceTime int
	accelerator                           string
}

// register declares the flags.
func (f *testFlags) register(s *pflag.FlagSet) {
	f.set = s
	s.SortFlags = false
	f.min, f.max = defaultSize, defaultSize
	s.IntVarP(&f.ranks, "npus", "p", defaultRanks, "`ranks` in this process; under a launcher in each process, and 1 unless given")
	s.StringVar(&f.transport, "transport", "", "`driver` between the ranks: "+strings.Join(transports, ", ")+" (default hccs in a process, shm between those of a host, else tcp)")
	s.VarP(&f.min, "minbytes", "b", "least `size`: bytes, or with K, M, G (of 1024)")
	s.VarP(&f.max, "maxbytes", "e", "largest `size`")
	s.VarP(&f.step, "stepbytes", "i", "`size` between two sizes; 0 repeats the least until interrupted (default (e-b)/10)")
	s.Float64VarP(&f.factor, "stepfactor", "f", 0, "`factor` between two sizes, more than 1; instead of -i")
	s.IntVarP(&f.iters, "iters", "n", defaultIters, "timed `calls` per size")
	s.IntVarP(&f.warmup, "warmup_iters", "w", defaultWarm, "`calls` before those")
	s.StringVarP(&f.op, "op", "o", "sum", "`operation`: sum, prod, max, min, avg")
	s.StringVarP(&f.dtype, "datatype", "d", "fp32", "element `type`: int8 int16 int32 int64 uint8 uint16 uint32 uint64 fp16 bfp16 fp32 fp64")
	s.IntVarP(&f.root, "root", "r", 0, "`rank` that has the data, or gets the result")
	s.IntVarP(&f.check, "check", "c", 1, "compare every element on every rank after the timed calls: 0 no, 1 yes, 2 and say what is wrong")

	s.StringVar(&f.inplace, "inplace", "", "`buffers`: out (two), in (one), both (a row for each) (default out, where the operator has it)")
	s.StringVar(&f.algo, "algo", "", "`algorithm` to force: a name that --explain lists, or an expression as in HCCL_ALGO")
	s.BoolVar(&f.uneven, "uneven", false, "different counts per rank, for operators that take counts")
	s.BoolVar(&f.reproducible, "reproducible", false, "only algorithms whose bits depend on the order of the ranks alone")
	s.BoolVar(&f.explain, "explain", false, "print which algorithm is chosen and why, as lines that begin with #")
	s.StringVar(&f.json, "json", "", "write the results to `file` in the form of nccl-tests -J; - is standard output, instead of the table")
	s.StringVar(&f.plot, "plot", "", "draw bus bandwidth and time over size to `file`, .png or .svg")
	s.DurationVar(&f.timeout, "timeout", 0, "`time` after which a call fails, as 30s (default "+rank.DefaultTimeout.String()+")")

	s.IntVarP(&f.zeroCopy, "zero_copy", "z", 0, "0 or 1: ranks of one process never copy, so both are the same")
	s.IntVarP(&f.symmetric, "symmetric_memory", "m", 0, "only 0 here")
	s.IntVarP(&f.nslb, "nslb", "s", 0, "only 0 here")
	s.StringVarP(&f.accelerator, "accelerator", "a", "default", "only default here")
	s.IntVarP(&f.deviceTime, "onlydevicetime", "t", 0, "only 0 here")
}

// config is what perf is to do.
func (f *testFlags) config(o perf.Operator, env rank.Config) (*perf.Config, error) {
	f.place.processes = max(f.place.processes, 1)
	if !f.place.alone() && !f.set.Changed("npus") {
		f.ranks = 1
	}
	if err := f.refuse(); err != nil {
		return nil, err
	}
	c := &perf.Config{
		Operator: o, Ranks: f.all(), Root: kolo.Rank(f.root), Iterations: f.iters, Warmup: f.warmup,
		Check: f.check > 0, Uneven: f.uneven, Rank: env,
	}
	var err error
	if c.DType, err = f.elementType(); err != nil {
		return nil, err
	}
	if c.Op, err = f.operation(); err != nil {
		return nil, err
	}
	if c.Placements, err = f.placements(o); err != nil {
		return nil, err
	}
	if err := f.sizes(c); err != nil {
		return nil, err
	}
	if f.algo != "" {
		forced := rank.Config{Algorithm: f.algo}
		if err := forced.Validate(); err != nil {
			return nil, fmt.Errorf("--algo: %w", errors.Unwrap(err)) // without the name of the field
		}
		c.Rank.Algorithm = f.algo
	}
	if f.set.Changed("timeout") {
		c.Rank.Timeout = f.timeout
	}
	c.Rank.Reproducible = c.Rank.Reproducible || f.reproducible
	return c, c.Validate()
}

// all is the number of ranks of all processes.
func (f *testFlags) all() int { return f.ranks * f.place.processes }

// party is the world that the flags ask for, with the configuration of c but for the
// algorithm: that is for the measured calls only, what is forced need not know others.
func (f *testFlags) party(c *perf.Config) partyConfig {
	p := partyConfig{place: f.place, each: f.ranks, transport: f.transport, rank: c.Rank}
	p.rank.Algorithm = ""
	return p
}

// maxTestRanks is the largest number of ranks of a test.
const maxTestRanks = maxPlanRanks

// refuse says which flags ask for what there is not.
func (f *testFlags) refuse() error {
	switch {
	case f.ranks < 1:
		return fmt.Errorf("-p %d: want 1 or more ranks", f.ranks)
	case f.ranks > maxTestRanks || f.ranks > maxTestRanks/f.place.processes:
		return fmt.Errorf("-p %d: want at most %d ranks in all %d processes", f.ranks, maxTestRanks, f.place.processes)
	case f.root < 0 || f.root >= f.all():
		return fmt.Errorf("-r %d: the ranks are 0 to %d; give more with -p", f.root, f.all()-1)
	case f.iters < 1:
		return fmt.Errorf("-n %d: a time needs 1 or more calls", f.iters)
	case f.warmup < 0:
		return fmt.Errorf("-w %d: want 0 or more calls", f.warmup)
	case f.check < 0 || f.check > 2:
		return fmt.Errorf("-c %d: want 0, 1 or 2", f.check)
	case f.zeroCopy != 0 && f.zeroCopy != 1:
		return fmt.Errorf("-z %d: want 0 or 1", f.zeroCopy)
	case f.symmetric != 0:
		return errors.New("-m: symmetric memory is of devices, and these ranks are on the host; leave it out")
	case f.nslb != 0:
		return errors.New("-s: there is no network between ranks of one process to balance; leave it out")
	case f.accelerator != "default":
		return fmt.Errorf("-a %s: there is no accelerator here; leave it out", f.accelerator)
	case f.deviceTime != 0:
		return errors.New("-t: there is no device whose time could be taken; leave it out, times are the slowest rank's")
	case f.set.Changed("timeout") && f.timeout <= 0:
		return fmt.Errorf("--timeout %v: want more than 0, as 30s", f.timeout)
	}
	p := f.party(&perf.Config{})
	if err := p.validate(); err != nil {
		return err
	}
	if f.plot != "" {
		if err := chart.Check(f.plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	return nil
}

// sizes sets the range. Step 0 stays at the least size for ever.
func (f *testFlags) sizes(c *perf.Config) error {
	r := perf.Range{Min: int64(f.min), Max: int64(f.max), Step: int64(f.step)}
	stepped, multiplied := f.set.Changed("stepbytes"), f.set.Changed("stepfactor")
	switch {
	case r.Min < 1 || r.Max < 1:
		return errors.New("-b and -e: want 1 byte or more")
	case r.Max < r.Min && f.set.Changed("maxbytes"):
		return fmt.Errorf("-e %v is less than -b %v", f.max, f.min)
	case r.Max < r.Min:
		return fmt.Errorf("-e is %v unless given, which is less than -b %v; give -e too", f.max, f.min)
	case multiplied && !(f.factor > 1):
		return fmt.Errorf("-f %v: want a factor of more than 1, as 2", f.factor)
	case multiplied:
		r.Factor, r.Step = f.factor, 0
	case stepped:
		c.Repeat = r.Step == 0
	default:
		r.Step = max(1, (r.Max-r.Min)/defaultSteps)
	}
	if c.Repeat {
		r.Max = r.Min
	}
	c.Range = r
	_, err := r.Counts(c.Operator, c.Ranks, c.DType)
	return err
}

// elementType is what -d says.
func (f *testFlags) elementType() (kolo.DType, error) {
	d, err := kolo.ParseDType(f.dtype)
	if err != nil || d == kolo.Int128 {
		return 0, fmt.Errorf("-d %q: want int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp16, bfp16, fp32 or fp64; fp8e4m3, fp8e5m2, fp8e8m0 or hif8 where nothing is reduced", f.dtype)
	}
	return d, nil
}

// operation is what -o says. hccl_test has no avg.
func (f *testFlags) operation() (kolo.ReduceOp, error) {
	op, err := kolo.ParseReduceOp(f.op)
	if err != nil || op.Kind == kolo.OpPreMulSum {
		return kolo.ReduceOp{}, fmt.Errorf("-o %q: want sum, prod, max, min or avg", f.op)
	}
	return op, nil
}

// placements is what --inplace says, or what the operator has.
func (f *testFlags) placements(o perf.Operator) ([]perf.Placement, error) {
	var p perf.Placement
	switch f.inplace {
	case "":
		return o.Placements()[:1], nil
	case "both":
		return o.Placements(), nil
	case "out":
		p = perf.OutOfPlace
	case "in":
		p = perf.InPlace
	default:
		return nil, fmt.Errorf("--inplace %q: want both, in or out", f.inplace)
	}
	if !o.Has(p) {
		return nil, fmt.Errorf("--inplace %s: %s is always %v; leave the flag out", f.inplace, o.Name, o.Placements()[0])
	}
	return []perf.Placement{p}, nil
}

// byteSize is a flag for bytes: a number with K, M or G, powers of 1024.
type byteSize int64

// Set reads the flag.
func (b *byteSize) Set(s string) error {
	number, shift := s, 0
	for i, unit := range []string{"K", "M", "G"} {
		if x, ok := strings.CutSuffix(strings.ToUpper(s), unit); ok {
			number, shift = x, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return errors.New("want a number of bytes, as 8, 64K, 16M or 1G")
	}
	*b = byteSize(n << shift)
	return nil
}

// String is the size as Set reads it.
func (b byteSize) String() string {
	n := int64(b)
	for i, unit := range []string{"G", "M", "K"} {
		if s := 30 - 10*i; n >= 1<<s && n%(1<<s) == 0 {
			return fmt.Sprintf("%d%s", n>>s, unit)
		}
	}
	return strconv.FormatInt(n, 10)
}

// Type is the word for the value in help.
func (b byteSize) Type() string { return "size" }

// device says what a rank runs on.
func device() string {
	return fmt.Sprintf("goroutine, %s/%s, GOMAXPROCS %d", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0))
}
