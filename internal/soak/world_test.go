package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	_ "github.com/kolo-ccl/kolo/channel/pcie"
	_ "github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// worldSpec is where ranks are and how their World runs.
type worldSpec struct {
	kind      string // a row of worldKinds
	sizes     []int  // ranks of each process
	of        []int  // the process of each rank, which need not be neighbours
	servers   []int  // of one process: ranks of each server, if not all are in one
	algorithm string
	medium    bool
	choice    plan.Method
	check     rank.Check
	diagnose  rank.Diagnosis
	overflow  bool
	repeats   bool // reproducible
	workers   int
	warn      time.Duration
	delays    string
	transport string // between processes
	plans     *plan.Library
	tuning    *plan.Tuning
	watched   bool
}

// worldKinds are the ways in which ranks are joined: the driver in one process, or, behind a
// plus sign, the one between processes inside this one, behind a number sign the one between
// real ones. sim has devices there too, and one of the drivers.
var worldKinds = []string{"hccs", "hccs", "faulty", "sim", "tcp", "roce", "shm", "pcie", "+shm", "+shm", "+shm", "+tcp", "+tcp", "+roce", "+mixed",
	"+sim", "#shm", "#tcp", "#sim"}

// kinds are those that this system has. What a packet of roce has brought through the system
// is no synchronisation for the race detector, where both ends are in one process.
func kinds() []string {
	return slices.DeleteFunc(slices.Clone(worldKinds), func(k string) bool {
		return runtime.GOOS != "linux" && (strings.HasSuffix(k, "shm") || k == "+sim" || k == "#sim") || raceEnabled && strings.HasSuffix(k, "roce")
	})
}

func randomWorld(rng *rand.Rand, kind string) worldSpec {
	list := kinds()
	w := worldSpec{kind: list[rng.IntN(len(list))], workers: rng.IntN(4)}
	if kind != "" {
		w.kind = kind
	}
	if w.transport = strings.TrimLeft(w.kind, "+#"); w.transport == "sim" {
		w.transport = []string{"shm", "tcp"}[rng.IntN(2)]
	}
	if w.several() {
		w.sizes = [][]int{{1, 1}, {1, 1}, {1, 1, 1}, {2, 1}, {2, 2}, {2, 1, 1}, {1, 1, 1, 1}, {3, 2}, {2, 3, 1}}[rng.IntN(9)]
	} else {
		w.sizes = []int{1 + rng.IntN(7)}
	}
	for i, k := range w.sizes {
		w.of = append(w.of, slices.Repeat([]int{i}, k)...)
	}
	if rng.IntN(2) == 0 {
		rng.Shuffle(len(w.of), func(i, k int) { w.of[i], w.of[k] = w.of[k], w.of[i] })
	}
	w.medium = rng.IntN(2) == 0
	w.choice = plan.Method(rng.IntN(3))
	switch rng.IntN(8) {
	case 0:
		w.algorithm = plan.Algorithms()[rng.IntN(len(plan.Algorithms()))].Name
	case 1:
		w.repeats = true
	}
	if rng.IntN(3) == 0 {
		w.diagnose = rank.Diagnosis(rng.IntN(8))
	}
	if !w.several() && rng.IntN(10) == 0 {
		w.diagnose, w.overflow = w.diagnose|rank.Overflow, true
	}
	if rng.IntN(3) == 0 {
		w.check = rank.Strict
	}
	if rng.IntN(4) == 0 {
		w.tuning = randomTuning(rng, w.ranks())
	}
	if rng.IntN(4) == 0 {
		w.plans = randomPlans(rng, w.ranks())
	}
	w.watched = rng.IntN(3) == 0
	if rng.IntN(4) == 0 {
		w.warn = time.Duration(1+rng.IntN(20)) * time.Millisecond
	}
	if n := w.ranks(); !w.several() && n > 3 && rng.IntN(2) == 0 {
		w.servers = []int{n / 2, n - n/2}
	}
	if w.kind == "faulty" {
		w.medium = false
		w.delays = fmt.Sprintf("delay * -> * %d%% %dus\ndelay %d -> * 5%% 3ms", 1+rng.IntN(60), 1+rng.IntN(400), rng.IntN(w.ranks()))
	}
	if w.kind != "hccs" && w.kind != "sim" && !w.several() {
		w.medium = false // which would do everything without the driver
	}
	return w
}

func (w *worldSpec) ranks() (n int) {
	for _, k := range w.sizes {
		n += k
	}
	return n
}

func (w *worldSpec) several() bool { return strings.HasPrefix(w.kind, "+") || w.apart() }
func (w *worldSpec) apart() bool   { return strings.HasPrefix(w.kind, "#") }
func (w *worldSpec) devices() bool { return strings.HasSuffix(w.kind, "sim") }

// refuses says whether calls may be refused since no algorithm serves.
func (w *worldSpec) refuses() bool { return w.algorithm != "" }

func (w *worldSpec) String() string {
	return fmt.Sprintf("world %s: ranks %v as %v in servers %v, algorithm %q, medium %v, %v, check %v, diagnose %v, reproducible %v, workers %d, warn %v, %q, between processes %s, %d plans, tuning %v, watched %v",
		w.kind, w.sizes, w.of, w.servers, w.algorithm, w.medium, w.choice, w.check, w.diagnose, w.repeats, w.workers, w.warn, w.delays, w.transport, len(w.plans.Entries()), w.tuning != nil, w.watched)
}

// randomCount is a number of elements of a vector. Large ones are rare.
func (w *worldSpec) randomCount(rng *rand.Rand) int64 {
	switch k := rng.IntN(40); {
	case k < 3:
		return 0
	case k < 10:
		return 1 + rng.Int64N(9)
	case k < 20:
		return 1 + rng.Int64N(300)
	case k < 32:
		return 1 + rng.Int64N(6000)
	case k < 38 || raceEnabled:
		return 1 + rng.Int64N(60000)
	default:
		return 1 + rng.Int64N(1_500_000)
	}
}

// opened is a world that is open.
type opened struct {
	worlds  []*rank.World // by rank
	devices []npu.Device
	end     func() error // behind the Close of every world
}

const callTimeout = 40 * time.Second

func (w *worldSpec) config() (c rank.Config, err error) {
	c = rank.Config{Timeout: callTimeout, Algorithm: w.algorithm, Choice: w.choice, Check: w.check, Diagnose: w.diagnose,
		Reproducible: w.repeats, Workers: w.workers, Contest: plan.ContestConfig{}, Plans: w.plans, Tuning: w.tuning}
	if w.warn > 0 {
		c.Warn, c.Warned = w.warn, func(rank.Warning) {}
	}
	if w.several() {
		return c, nil
	}
	t := plan.OneProcess(w.ranks())
	if w.servers != nil {
		if t, err = plan.Servers(w.servers...); err != nil {
			return c, err
		}
	}
	t.Medium = w.medium
	c.Topology = t
	return c, nil
}

// open opens the world; of one that is apart the part of one process, whose rendezvous is at
// an address.
func (w *worldSpec) open(ctx context.Context, seed uint64, process int, address string) (*opened, error) {
	c, err := w.config()
	if err != nil {
		return nil, err
	}
	o := &opened{end: func() error { return nil }}
	if w.devices() {
		if err := o.addDevices(&c, w); err != nil {
			return nil, err
		}
	}
	switch {
	case w.kind == "faulty":
		c.Wrap = func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, w.delays, seed) }
	case w.kind == "+mixed":
		return openMixed(c, w)
	case w.apart():
		o.worlds = make([]*rank.World, w.ranks())
		return o, o.joinOne(ctx, c, w, process, address)
	case w.several():
		return o, o.join(ctx, c, w)
	case w.kind != "sim":
		c.Driver = w.kind
	}
	o.worlds, err = rank.Open(w.ranks(), c)
	if err != nil {
		return nil, errors.Join(err, o.end())
	}
	return o, nil
}

// addDevices opens a simulated device for each rank.
func (o *opened) addDevices(c *rank.Config, w *worldSpec) error {
	s, err := sim.New(sim.Config{Devices: w.ranks(), Fast: true})
	if err != nil {
		return err
	}
	o.end = func() error { return s.Close(context.Background()) }
	for i := range w.ranks() {
		d, err := s.Open(i)
		if err != nil {
			return errors.Join(err, o.end())
		}
		o.devices = append(o.devices, d)
	}
	c.Engine = func(host channel.Engine) channel.Engine { return s.Engine(host) }
	return nil
}

// join opens the processes of a world inside this one of the operating system.
func (o *opened) join(ctx context.Context, c rank.Config, w *worldSpec) error {
	at, err := cluster.Serve("127.0.0.1:0", nil)
	if err != nil {
		return err
	}
	o.worlds = make([]*rank.World, w.ranks())
	errs := make([]error, len(w.sizes))
	var wg sync.WaitGroup
	for i := range w.sizes {
		wg.Go(func() { errs[i] = o.joinOne(ctx, c, w, i, at.Address()) }) // ends with the join
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), at.Close())
}

// joinOne opens one process of a world.
func (o *opened) joinOne(ctx context.Context, c rank.Config, w *worldSpec, process int, address string) error {
	var mine []kolo.Rank
	for r, q := range w.of {
		if q == process {
			mine = append(mine, kolo.Rank(r))
		}
	}
	p, err := cluster.Open(ctx, cluster.Config{Rendezvous: address, Size: len(o.worlds), Ranks: mine, Transport: w.transport,
		Timeout: 30 * time.Second, Silence: time.Minute, Rank: c, Getenv: func(string) string { return "" }})
	if err != nil {
		return err
	}
	for _, w := range p.Worlds() {
		o.worlds[w.Rank()] = w
	}
	return nil
}

// close closes all worlds.
func (o *opened) close() error {
	errs := make([]error, len(o.worlds))
	var wg sync.WaitGroup
	for i, w := range o.worlds {
		if w != nil {
			wg.Go(func() { errs[i] = w.Close(context.Background()) }) // ends with the World
		}
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), o.end())
}
