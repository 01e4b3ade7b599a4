package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/plan"
)

// World is one rank's view of all ranks. Run makes one for each rank and closes it;
// those of Open and of package cluster are closed by who has them. Its methods may be
// called by any goroutine.
type World struct {
	p     *process
	rank  kolo.Rank
	actor *rankActor
	group *Group
	done  <-chan struct{} // of the context that Run gives its function
	over  <-chan struct{} // of Run's own context, which is watched for all calls

	mu      sync.Mutex
	groups  []*Group
	windows []*Window
	made    names // creations per group name
	closed  bool
	left    chan struct{} // closed when Close has done its work
}

// process is what the ranks of one process share.
type process struct {
	given  Config // as it was given
	cfg    Config // with defaults
	procs  int    // GOMAXPROCS when it was made
	sys    *actor.System
	host   *hccs.Engine   // of host memory
	engine channel.Engine // of all memory: host, or what Config.Engine has made around it
	// beneath is what Config.Engine has made, where engine is the last resort around it.
	beneath channel.Engine
	driver  channel.Driver
	poller  channel.Poller            // the driver, where ranks that wait may poll it
	staged  func(a, b kolo.Rank) bool // between whom the driver takes host memory only
	actors  []*rankActor
	now     func() time.Time
	began   time.Time
	probe   func() plan.Probe // measured at the first use; nil: the topology has its figures

	mu     sync.Mutex
	hubs   map[hubKey][]*hub // by key; those under one have no rank in common
	nextID uint64
	parted map[kolo.Rank]*departure // ranks that have closed their world
	open   int                      // worlds not closed

	changed chan struct{} // closed when there is news of who is left; nil: nobody waits
	shrinks shrinks

	watch   watch
	losses  losses
	outside *outside // the other processes; nil if there are none
}

// newProcess makes some ranks of a world of n in this process; part says where the
// others are, and is nil where there are none.
func newProcess(n int, given Config, part *Part, mine []kolo.Rank) (*process, error) {
	if err := checkSize(n); err != nil {
		return nil, err
	}
	if err := given.Validate(); err != nil {
		return nil, err
	}
	if err := checkDevices(given.Devices, len(mine)); err != nil {
		return nil, err
	}
	cfg, err := given.withDefaults(n)
	if err != nil {
		return nil, err
	}
	if cfg.Topology.Ranks() != n {
		return nil, fmt.Errorf("%w: Config.Topology has %d ranks, the world %d", kolo.ErrArgument, cfg.Topology.Ranks(), n)
	}
	p := &process{given: given, procs: runtime.GOMAXPROCS(0), cfg: cfg, now: time.Now, began: time.Now(), hubs: map[hubKey][]*hub{}, parted: map[kolo.Rank]*departure{}, open: len(mine), shrinks: newShrinks()}
	open := func(e channel.Engine) (channel.Driver, error) { return openDriver(&cfg, e) }
	if part != nil {
		p.outside = newOutside(p, part)
		open = part.Driver
	}
	if given.Topology == nil && len(given.Devices) == 0 || part != nil {
		p.probe = sync.OnceValue(Probe)
	}
	if err := p.openEngine(); err != nil {
		return nil, err
	}
	var driver channel.Driver
	err = guarded("channel driver", func() (err error) {
		driver, err = open(p.engine)
		return err
	})
	if err == nil {
		p.staged = stagedBy(driver, part != nil)
		driver, err = wrapDriver(&cfg, driver)
	}
	if err != nil {
		p.closeEngine()
		return nil, err
	}
	p.driver = driver
	p.poller, _ = driver.(channel.Poller)
	p.sys = newSystem(part)
	p.watch.init(p)
	p.actors = make([]*rankActor, n)
	for _, r := range mine {
		if p.actors[r], err = newRankActor(p, r); err != nil {
			return nil, errors.Join(err, p.stopActors(err), p.close(context.Background()))
		}
	}
	p.watchDevices(mine)
	return p, nil
}

// stopActors closes the endpoints of the ranks that there are.
func (p *process) stopActors(cause error) error {
	var errs []error
	for _, a := range p.actors {
		if a != nil {
			errs = append(errs, a.stop(cause))
		}
	}
	return errors.Join(errs...)
}

func newSystem(part *Part) *actor.System {
	if part == nil {
		return actor.NewSystem(actor.Config{})
	}
	return actor.NewSystem(actor.Config{Beside: part.Beside})
}

// openDriver makes the driver that the configuration names.
func openDriver(c *Config, e channel.Engine) (channel.Driver, error) {
	d, err := channel.Open(c.Driver, channel.Config{Job: "local", Engine: e})
	if err != nil {
		return nil, err
	}
	return d, meetSelf(d, c.Topology.Ranks())
}

// stagedBy says between which ranks a driver takes host memory only: those that it joins
// over something that no Engine addresses.
func stagedBy(d channel.Driver, apart bool) func(a, b kolo.Rank) bool {
	_, remote := d.(channel.Remote)
	direct, _ := d.(channel.Direct)
	return func(a, b kolo.Rank) bool { return (remote || apart) && (direct == nil || !direct.Direct(a, b)) }
}

// wrapDriver puts around a driver what the configuration says.
func wrapDriver(c *Config, inner channel.Driver) (channel.Driver, error) {
	if c.Wrap == nil {
		return inner, nil
	}
	var outer channel.Driver
	err := guarded("Config.Wrap", func() (err error) {
		outer, err = c.Wrap(inner)
		return err
	})
	if err == nil && outer == nil {
		err = fmt.Errorf("%w: it has made no driver", kolo.ErrArgument)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("Config.Wrap: %w", err), inner.Close())
	}
	return outer, nil
}

// meetSelf lets the ranks of this process meet by a driver that is made for several.
func meetSelf(d channel.Driver, n int) error {
	r, ok := d.(channel.Remote)
	if !ok {
		return nil
	}
	address, err := r.Address()
	peers := make([]channel.Peer, n)
	for i := range peers {
		peers[i] = channel.Peer{Rank: kolo.Rank(i), Address: address}
	}
	if err == nil {
		err = r.Meet(peers)
	}
	if err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
}

// openEngine makes the engine of the host, and around it that of the devices.
func (p *process) openEngine() error {
	p.host = hccs.NewEngine(p.cfg.Workers)
	p.engine = p.host
	if p.cfg.Engine == nil {
		return nil
	}
	err := guarded("Config.Engine", func() error {
		if p.engine = p.cfg.Engine(p.host); p.engine == nil {
			return fmt.Errorf("%w: Config.Engine has made no engine", kolo.ErrArgument)
		}
		return nil
	})
	if err != nil {
		p.host.Close()
		return err
	}
	return p.stageApart()
}

func (p *process) closeEngine() {
	p.engine.Close()
	if p.beneath != nil {
		p.beneath.Close()
	}
	if p.engine != p.host {
		p.host.Close()
	}
}

// close ends what the ranks share, after their worlds were closed.
func (p *process) close(ctx context.Context) error {
	p.watch.close()
	p.unwatchDevices()
	err := p.sys.Close(ctx)
	if err == nil {
		err = guarded("engine", func() error { p.closeEngine(); return nil })
		err = errors.Join(err, guarded("channel driver", p.driver.Close))
	}
	if p.outside != nil && p.outside.part.Closed != nil {
		err = errors.Join(err, p.outside.part.Closed())
	}
	return err
}

// Open makes n ranks of one process, each with its World, without running
// anything. Every World must be closed; the last Close ends the goroutines. Run is
// the usual way.
func Open(n int, cfg Config) ([]*World, error) {
	if err := checkSize(n); err != nil { // before there is a list of so many
		return nil, err
	}
	p, err := newProcess(n, cfg, nil, allRanks(n))
	if err != nil {
		return nil, err
	}
	return p.worlds(allRanks(n))
}

// checkSize says what is wrong with the number of ranks of a world.
func checkSize(n int) error {
	if n < 1 || n > maxRanks {
		return fmt.Errorf("%w: a world of %d ranks; want 1 to %d", kolo.ErrArgument, n, maxRanks)
	}
	return nil
}

// allRanks lists the ranks of a world.
func allRanks(n int) []kolo.Rank {
	all := make([]kolo.Rank, max(n, 0))
	for r := range all {
		all[r] = kolo.Rank(r)
	}
	return all
}

// worlds makes the World of each rank of this process, and the group of all ranks.
func (p *process) worlds(mine []kolo.Rank) ([]*World, error) {
	all := allRanks(len(p.actors))
	var worlds []*World
	for _, r := range mine {
		worlds = append(worlds, &World{p: p, rank: r, actor: p.actors[r], left: make(chan struct{})})
	}
	for _, w := range worlds {
		g, err := w.NewGroup(GroupConfig{Name: worldName, Ranks: all})
		if err != nil {
			return nil, errors.Join(err, p.close(context.Background()))
		}
		w.group = g
	}
	return worlds, nil
}

// departure is how a rank has left the world: with a cause, or cleanly.
type departure struct {
	cause error
	lost  bool // its process is gone
}

// depart tells the groups that a rank belongs to and has never made that it will not
// make them any more. Groups that are made later hear of it from newHub.
func (p *process) depart(r kolo.Rank, cause error) {
	if p.outside != nil {
		p.outside.departed(r, cause)
	}
	p.departed(r, departure{cause: cause})
}

// departed tells the hubs of this process.
func (p *process) departed(r kolo.Rank, d departure) {
	p.mu.Lock()
	if p.parted[r] == nil {
		p.tellNews()
		if p.parted[r] = &d; p.outside != nil && p.actors[r] != nil {
			p.outside.dropEarly()
		}
	}
	p.mu.Unlock()
	for _, h := range p.allHubs() {
		if at := slices.Index(h.ranks, r); at >= 0 {
			h.tell(nil, &leave{rank: kolo.Rank(at), cause: d.cause})
		}
	}
}

// worldName is the name of the group of all ranks.
const worldName = "world"

// Rank is this rank's number in the world.
func (w *World) Rank() kolo.Rank { return w.rank }

// Size is the number of ranks.
func (w *World) Size() int { return len(w.p.actors) }

// Group is the group of all ranks.
func (w *World) Group() *Group { return w.group }

// NewShard makes a shard for actors that work beside this rank's calls, as those of
// package pipeline. They end with the last World of the process at the latest.
func (w *World) NewShard(name string) *actor.Shard { return w.p.sys.NewShard(name) }

// Settings lists the effective configuration with the source of each value.
func (w *World) Settings() []Setting { return w.p.cfg.settings(&w.p.given) }

// Groups lists the groups of this rank that are not closed.
func (w *World) Groups() []*Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*Group(nil), w.groups...)
}

// Close leaves every group, after the calls in flight have ended or ctx or
// Config.CloseTimeout has; those are then aborted. The other ranks hear of it at
// once. Close never waits for a rank that does not answer. It may be called again, and
// then waits for the first Close or for ctx. The error reports calls that were aborted and Works that were never waited for.
func (w *World) Close(ctx context.Context) error { return w.leave(ctx, nil) }

// openWindows lists the windows of this rank that are not closed.
func (w *World) openWindows() []*Window {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.windows)
}

// leave closes the world; with a cause it waits for nothing, and the other ranks
// are told the cause.
func (w *World) leave(ctx context.Context, cause error) error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		if err := closedBy(ctx, w.left); err != nil {
			return fmt.Errorf("close the world of %v: %w", w.rank, err)
		}
		return nil
	}
	w.closed = true
	defer close(w.left)
	groups := append([]*Group(nil), w.groups...)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, w.p.cfg.CloseTimeout)
	defer cancel()
	var errs []error
	for i := len(groups) - 1; i >= 0; i-- {
		errs = append(errs, groups[i].leave(ctx, cause))
	}
	for _, win := range w.openWindows() {
		errs = append(errs, win.Close(ctx))
	}
	w.p.depart(w.rank, cause)
	errs = append(errs, w.actor.stop(fmt.Errorf("%w: %v has closed its world", kolo.ErrLeft, w.rank)))
	w.p.mu.Lock()
	w.p.open--
	last := w.p.open == 0
	w.p.mu.Unlock()
	if last {
		// No call is in flight, so this takes no time; but it takes it also if ctx has ended.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.p.cfg.CloseTimeout)
		defer cancel()
		errs = append(errs, w.p.close(end))
	}
	return errors.Join(errs...)
}

// watch is the one timer of a process: it wakes the hubs and the rank actors at
// the nearest deadline.
type watch struct {
	p      *process
	next   atomic.Int64 // UnixNano of the armed deadline, 0 if none
	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

func (w *watch) init(p *process) { w.p = p }

// arm makes sure that the ticks come at deadline or before.
func (w *watch) arm(deadline time.Time) {
	at := deadline.UnixNano()
	if next := w.next.Load(); next != 0 && next <= at {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if next := w.next.Load(); w.closed || next != 0 && next <= at {
		return
	}
	w.next.Store(at)
	wait := deadline.Sub(w.p.now())
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, w.fire)
	} else {
		w.timer.Reset(wait)
	}
}

func (w *watch) fire() {
	w.next.Store(0)
	for _, h := range w.p.allHubs() {
		h.tell(nil, tick{})
	}
	for _, a := range w.p.actors {
		if a != nil {
			a.tell(nil, tick{})
		}
	}
}

func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
