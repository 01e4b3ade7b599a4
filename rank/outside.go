package rank

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
)

// Control carries what the ranks of different processes must tell each other besides
// data: small messages, of which a call that succeeds needs none.
type Control interface {
	// Tell sends message to a process of the world and returns at once. Messages to one
	// process come in the order in which they were sent, or the process is lost. The bytes do
	// not change any more. An error says that the message will not come.
	Tell(process int, message []byte) error
}

// Part is the part of a world that one process holds.
type Part struct {
	// Process is this process's number, and Processes the number of each world rank's.
	Process   int
	Processes []int
	// Job and Epoch tell worlds apart; they are the same on all processes.
	Job   string
	Epoch uint64
	// Control is how the processes talk.
	Control Control
	// Driver makes the driver that joins all ranks of the world. It is called once, with
	// the engine that moves and folds this process's memory. The World closes it.
	Driver func(engine channel.Engine) (channel.Driver, error)
	// Beside, if set, is a system of actors that is open: see actor.Config.Beside.
	Beside *actor.System
	// Closed, if set, is called once, when the last World of the process was closed and
	// everything in it has ended.
	Closed func() error
}

// Local is the ranks of one process in a world of several.
type Local struct {
	p      *process
	worlds []*World
}

// OpenPart makes the ranks of this process in a world of several processes, whose
// topology c must have. What comes from the other processes is handed to Deliver and
// Lost, from when OpenPart has returned. Every World must be closed.
func (c Config) OpenPart(part Part) (*Local, error) {
	n := len(part.Processes)
	if c.Topology == nil || part.Control == nil || part.Driver == nil {
		return nil, fmt.Errorf("%w: a part of a world needs a topology, a control and a driver", kolo.ErrArgument)
	}
	var mine []kolo.Rank
	for r, p := range part.Processes {
		if p == part.Process {
			mine = append(mine, kolo.Rank(r))
		}
		if p < 0 || p >= n {
			return nil, fmt.Errorf("%w: rank %d is in process %d of a world of %d ranks", kolo.ErrArgument, r, p, n)
		}
	}
	if len(mine) == 0 {
		return nil, fmt.Errorf("%w: process %d has no rank", kolo.ErrArgument, part.Process)
	}
	p, err := newProcess(n, c, &part, mine)
	if err != nil {
		return nil, err
	}
	worlds, err := p.worlds(mine)
	if err != nil {
		return nil, err
	}
	return &Local{p: p, worlds: worlds}, nil
}

// Worlds are those of the process's ranks, ascending.
func (l *Local) Worlds() []*World { return l.worlds }

// SetTopology replaces the topology by which the groups of several processes choose, for
// instance by what was measured between them, and source says where it is from, for
// World.Settings. It must have been agreed on: all processes of the world do it with equal
// topologies, each before its ranks have made a collective call. After an error some groups
// may have the one and some the other, and the World is of no use.
func (l *Local) SetTopology(t *plan.Topology, source string) error {
	p := l.p
	if err := t.Validate(); err != nil {
		return err
	}
	if t.Ranks() != len(p.actors) {
		return fmt.Errorf("%w: a topology of %d ranks in a world of %d", kolo.ErrArgument, t.Ranks(), len(p.actors))
	}
	p.mu.Lock()
	p.cfg.Topology = t
	p.given.sources = maps.Clone(p.given.sources)
	if p.given.sources == nil {
		p.given.sources = map[string]string{}
	}
	p.given.sources["Topology"] = source
	p.mu.Unlock()
	var errs []error
	for _, h := range p.allHubs() {
		m := &replan{topology: t, done: make(chan struct{})}
		h.tell(nil, m)
		who := fmt.Sprintf("the hub of group %q", h.key.name)
		err := p.answered(m.done, who)
		if err == nil && m.err != nil {
			err = fmt.Errorf("%s: %w", who, m.err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// replan gives a hub another topology of the world.
type replan struct {
	topology *plan.Topology
	done     chan struct{}
	err      error // there when done is closed
}

func (m *replan) answer(err error) {
	m.err = err
	close(m.done)
}

// replan takes another topology of the world, before the first call.
func (h *hub) replan(t *plan.Topology) error {
	if h.far == nil {
		return nil // within a process the process's own probe counts
	}
	if h.base > 0 || len(h.rounds) > 0 {
		return fmt.Errorf("%w: another topology after the first call", kolo.ErrArgument)
	}
	h.far.plan(t)
	return nil
}

// Deliver takes a message of another process. An error says that it cannot be
// understood. It may be called by any goroutine; the messages of one process, in their order.
func (l *Local) Deliver(from int, message []byte) error { return l.p.outside.deliver(from, message) }

// Lost says that a process is gone, and why: its ranks that have not left before are
// lost, and with them every group that they are in. It may be called again.
func (l *Local) Lost(process int, cause error) { l.p.outside.lost(process, cause) }

// LeftOut says that the other processes go on without this one, and why. World.Shrink
// returns the first cause. Lost is to be called for each of them besides.
func (l *Local) LeftOut(cause error) {
	o := l.p.outside
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if o.leftOut == nil {
		o.leftOut = cause
		o.p.tellNews()
	}
}

// outside is what a process knows of the others of its world.
type outside struct {
	p     *process
	part  Part
	procs []int // the other processes

	// guarded by p.mu
	hubs    map[uint64]*hub       // of groups that span processes
	early   map[uint64]*earlyMail // of groups that a rank here may still make
	order   []uint64              // of early, oldest first
	asked   map[uint64]*inquiry   // by token
	tokens  uint64
	leftOut error                // the others go on without this process
	made    map[kolo.Rank]*names // how many groups of a name a rank here has made
}

// earlyMail is what has come for a group that a rank here may still make.
type earlyMail struct {
	made []*parcel
	rest []*parcel
}

const (
	maxEarly  = 4096 // groups that others have made and nobody here has
	maxEarlyN = 4096 // letters of one of them
)

func newOutside(p *process, part *Part) *outside {
	o := &outside{p: p, part: *part, hubs: map[uint64]*hub{}, early: map[uint64]*earlyMail{}, asked: map[uint64]*inquiry{}, made: map[kolo.Rank]*names{}}
	for r, q := range part.Processes {
		if q == part.Process {
			o.made[kolo.Rank(r)] = &names{}
		}
		if at, ok := slices.BinarySearch(o.procs, q); !ok && q != part.Process {
			o.procs = slices.Insert(o.procs, at, q)
		}
	}
	return o
}

// groupID is the number of a group, which all processes derive alike.
func (o *outside) groupID(key hubKey, ranks []kolo.Rank) uint64 {
	d := mixText(mix(o.part.Epoch, uint64(key.nth), uint64(len(ranks))), o.part.Job)
	d = mixText(d, key.name)
	for _, r := range ranks {
		d = mix(d, uint64(r))
	}
	return d
}

// opened registers a hub and tells the other processes of the group. p.mu is held.
func (o *outside) opened(h *hub) {
	o.hubs[h.id] = h
	if e := o.early[h.id]; e != nil {
		h.far.early = append(e.made, e.rest...)
		delete(o.early, h.id)
		o.order = slices.DeleteFunc(o.order, func(id uint64) bool { return id == h.id })
	}
	for _, e := range o.early {
		for _, p := range e.made {
			if m := p.m.(*madeLetter); m.sameName(h) {
				h.far.early = append(h.far.early, p) // with other members
			}
		}
	}
	o.dropEarly()
	if h.key.name != worldName {
		h.far.tell(&madeLetter{id: h.id, name: h.key.name, nth: h.key.nth, ranks: h.ranks,
			algorithm: h.cfg.Algorithm, timeout: h.cfg.Timeout, priority: h.cfg.Priority})
	}
}

// awaits says whether a rank here may still make the group of a letter. p.mu is held. The
// others have closed it, or have closed their world.
func (o *outside) awaits(m *madeLetter) bool {
	return slices.ContainsFunc(o.local(m.ranks), func(r kolo.Rank) bool {
		return o.p.parted[r] == nil && o.made[r].get(m.name) <= m.nth
	})
}

// dropEarly drops what has come for groups that no rank here will make any more. p.mu is held.
func (o *outside) dropEarly() {
	o.order = slices.DeleteFunc(o.order, func(id uint64) bool {
		over := !slices.ContainsFunc(o.early[id].made, func(p *parcel) bool { return o.awaits(p.m.(*madeLetter)) })
		if over {
			delete(o.early, id)
		}
		return over
	})
}

// sameName says whether the letter means the group of h, by name and members.
func (m *madeLetter) sameName(h *hub) bool {
	return m.name == h.key.name && m.nth == h.key.nth &&
		slices.ContainsFunc(m.ranks, func(r kolo.Rank) bool { return slices.Contains(h.ranks, r) })
}

// deliver opens a message and hands it to whom it concerns.
func (o *outside) deliver(from int, message []byte) error {
	m, err := unpack(message)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *madeLetter:
		o.toHub(m.id, &parcel{from, m})
	case *callsLetter:
		o.toHub(m.id, &parcel{from, m})
	case *failedLetter:
		o.toHub(m.id, &parcel{from, m})
	case *leftLetter:
		o.toHub(m.id, &parcel{from, m})
	case *partedLetter:
		if int(m.rank) < 0 || int(m.rank) >= len(o.part.Processes) || o.part.Processes[m.rank] != from {
			return fmt.Errorf("%w: process %d says that rank %d has left", kolo.ErrArgument, from, m.rank)
		}
		o.p.departed(m.rank, departure{cause: m.cause})
	case *askLetter:
		if !o.toHub(m.id, &parcel{from, m}) {
			o.inquire(&inquiry{about: m.about}, nil, from, m.token, nil)
		}
	case *answerLetter:
		o.answered(m)
	case *shrinkLetter:
		return o.shrinks(from, m)
	case *greeting:
		return o.greeted(from, m)
	}
	return nil
}

// toHub hands a letter to the hub of a group, or keeps it for the hub that will be. It is
// false for a question that there is no hub for.
func (o *outside) toHub(id uint64, p *parcel) bool {
	o.p.mu.Lock()
	h := o.hubs[id]
	made, isMade := p.m.(*madeLetter)
	if h == nil && isMade {
		for _, other := range o.hubs {
			if made.sameName(other) {
				h = other
			}
		}
	}
	if h != nil {
		o.p.mu.Unlock()
		h.tell(nil, p)
		return true
	}
	defer o.p.mu.Unlock()
	if _, ask := p.m.(*askLetter); ask {
		return false
	}
	e := o.early[id]
	switch {
	case e == nil && !isMade: // of a group that all ranks here have left
	case isMade && !o.awaits(made): // such a group too
	case e == nil:
		if len(o.order) == maxEarly {
			delete(o.early, o.order[0])
			o.order = o.order[1:]
		}
		o.early[id], o.order = &earlyMail{made: []*parcel{p}}, append(o.order, id)
	case isMade:
		e.made = append(e.made, p)
	case len(e.rest) < maxEarlyN:
		e.rest = append(e.rest, p)
	}
	return true
}

// departed tells the other processes that a rank of this one has closed its world.
func (o *outside) departed(r kolo.Rank, cause error) {
	b := pack(&partedLetter{rank: r, cause: cause})
	for _, q := range o.procs {
		_ = o.part.Control.Tell(q, b) // who is lost is reported by Lost
	}
}

// lost fails what the ranks of a process are in, and cuts the channels to them.
func (o *outside) lost(process int, cause error) {
	p := o.p
	var ranks []kolo.Rank
	p.mu.Lock()
	for r, q := range o.part.Processes {
		if q == process && p.parted[kolo.Rank(r)] == nil {
			p.parted[kolo.Rank(r)] = &departure{cause: cause, lost: true}
			ranks = append(ranks, kolo.Rank(r))
		}
	}
	var hubs []*hub
	for _, h := range o.hubs {
		if slices.Contains(h.far.procs, process) {
			hubs = append(hubs, h)
		}
	}
	p.tellNews()
	p.mu.Unlock()
	if len(ranks) == 0 || process == o.part.Process {
		return
	}
	for _, h := range hubs {
		h.tell(nil, &lostProcess{process, cause})
	}
	for _, a := range p.actors {
		if a != nil {
			a.tell(nil, &cut{ranks, fmt.Errorf("%w: %w", kolo.ErrLost, cause)})
		}
	}
}

// send asks the processes of group ranks, for an inquiry of h.
func (o *outside) send(q *inquiry, h *hub, there []kolo.Rank) {
	about := map[int][]kolo.Rank{}
	for _, r := range there {
		about[h.far.where[r]] = append(about[h.far.where[r]], h.ranks[r])
	}
	q.awaited = map[uint64]int{}
	tokens := map[int]uint64{}
	o.p.mu.Lock()
	for process := range about {
		o.tokens++
		o.asked[o.tokens] = q
		tokens[process], q.awaited[o.tokens] = o.tokens, process
	}
	o.p.mu.Unlock()
	q.mu.Lock()
	q.left += len(about)
	q.mu.Unlock()
	for process, ranks := range about {
		// One that is gone does not answer, and the error says so.
		_ = o.part.Control.Tell(process, pack(&askLetter{token: tokens[process], id: h.id, seq: q.err.Seq, inCall: q.late != nil, about: ranks}))
	}
}

// answered takes the answer of another process.
func (o *outside) answered(m *answerLetter) {
	o.p.mu.Lock()
	q := o.asked[m.token]
	delete(o.asked, m.token)
	o.p.mu.Unlock()
	if q == nil {
		return
	}
	q.mu.Lock()
	delete(q.awaited, m.token)
	q.states = append(q.states, m.states...)
	q.mu.Unlock()
	q.answer(nil, m.lines...)
}

// forget takes no answer to an inquiry any more.
func (o *outside) forget(q *inquiry) {
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	for token, x := range o.asked {
		if x == q {
			delete(o.asked, token)
		}
	}
}

// inquire finds out what ranks of this process do, for another process.
func (o *outside) inquire(q *inquiry, turn *actor.Shard, from int, token uint64, except *hub) {
	q.about = o.local(q.about)
	q.done = func(*actor.Shard) {
		_ = o.part.Control.Tell(from, pack(&answerLetter{token: token, states: q.states, lines: q.found})) // who is lost is reported by Lost
	}
	q.ask(o.p, turn, except)
}

// local keeps the ranks of a list that are in this process.
func (o *outside) local(ranks []kolo.Rank) []kolo.Rank {
	return slices.DeleteFunc(slices.Clone(ranks), func(r kolo.Rank) bool {
		return int(r) >= len(o.part.Processes) || o.part.Processes[r] != o.part.Process
	})
}

// mix folds words into a number, as FNV-1a does.
func mix(d uint64, words ...uint64) uint64 {
	for _, v := range words {
		for range 8 {
			d = (d ^ v&0xff) * 1099511628211
			v >>= 8
		}
	}
	return d
}

// mixText folds a text and its length into a number.
func mixText(d uint64, s string) uint64 {
	d = mix(d, uint64(len(s)))
	for i := range len(s) {
		d = (d ^ uint64(s[i])) * 1099511628211
	}
	return d
}

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func floatBits(x float64) uint64 { return math.Float64bits(x) }
