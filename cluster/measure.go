package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Measure is how much a join measures of the links between its processes, so that calls
// are chosen by what is there. It never makes a join fail: what was not measured in its
// time keeps the default figures, on all processes alike.
type Measure uint8

// What a join measures. For one process, or where Config.Rank.Topology is given, nothing is.
const (
	// MeasureQuick meets one or two pairs of processes of each host, and the hosts among each
	// other, each with up to 8 others: some milliseconds, and never more than 250.
	MeasureQuick Measure = iota
	// MeasureThorough meets up to 8 pairs of a host, and each host with up to 64 others, with
	// larger messages: 3 s at most.
	MeasureThorough
	// MeasureOff leaves all figures at their defaults.
	MeasureOff
)

// String is "quick", "thorough" or "off", as KOLO_MEASURE has it.
func (m Measure) String() string {
	switch m {
	case MeasureQuick:
		return "quick"
	case MeasureThorough:
		return "thorough"
	case MeasureOff:
		return "off"
	}
	return fmt.Sprintf("Measure(%d)", uint8(m))
}

// measureNamed is the reverse of String.
func measureNamed(name string) (Measure, error) {
	for m := MeasureQuick; m <= MeasureOff; m++ {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: KOLO_MEASURE=%q: want quick, thorough or off", kolo.ErrArgument, name)
}

// effort is what a Measure stands for.
type effort struct {
	time  time.Duration // of all meetings of a process
	near  int           // pairs of a host, of each kind
	far   int           // others that a host meets
	bytes int           // of the largest message
	tries int           // times that is sent
}

func (m Measure) effort() effort {
	if m == MeasureThorough {
		return effort{time: 3 * time.Second, near: 8, far: 64, bytes: 4 << 20, tries: 8}
	}
	return effort{time: 250 * time.Millisecond, near: 2, far: 8, bytes: 1 << 20, tries: 5}
}

// lateTime is how much longer than its time a measurement is waited for.
const lateTime = 20 * time.Millisecond

// measure finds out what lies between the processes, and gives all of them one table of it.
// An error is that of the join: a process has been lost. Whatever is wrong with a link leaves
// its figures at their defaults.
func (p *Process) measure(ctx context.Context) error {
	if p.cfg.measures() == MeasureOff || len(p.roster.Members) < 2 {
		return nil
	}
	how := p.cfg.Measure.effort()
	list := appointments(p.roster, p.topology, func(a, b int) string { return p.drivers.joining(p.roster, a, b) }, how)
	meetings := p.encounters(list)
	all, err := p.gather(ctx, "what it has measured", encode(p.meetAll(ctx, meetings, how)))
	if err != nil {
		return err
	}
	f := newFigures(p.roster, p.topology, list, all)
	all, err = p.gather(ctx, "the digest of what was measured", binary.LittleEndian.AppendUint64(nil, f.digest()))
	if err != nil {
		return err
	}
	if f.settle(all); f.topology != nil {
		if err := p.local.SetTopology(f.topology, "measured at the join"); err != nil {
			return fmt.Errorf("the topology of what was measured: %w", err)
		}
		p.topology = f.topology
	}
	p.figures = f
	for _, m := range meetings {
		m.part(p)
	}
	return nil
}

// report is what was measured of the way between two ranks, by the first of them. What is 0
// was not. Of a rank and itself it is what the process finds of its memory.
type report struct {
	A, B      kolo.Rank
	Link      kolo.Link
	Latency   int64  `json:",omitempty"` // ns, one way
	Bandwidth int64  `json:",omitempty"` // bytes per second, the slower way
	Fold      int64  `json:",omitempty"` // bytes per second that a rank folds
	Failed    string `json:",omitempty"` // why nothing passes
}

// notCertain is why a way has no figure if nothing else is known.
const notCertain = "not measured with certainty in the time that there was"

// maxReports is how many of a process are read.
const maxReports = 4096

// reports reads what a process tells. What cannot be read is the same to all processes.
func reports(b []byte) []report {
	var list []report
	if err := json.Unmarshal(b, &list); err != nil || len(list) > maxReports {
		return nil
	}
	return list
}

// encounter is one end of an appointment in this process.
type encounter struct {
	appointment
	world *rank.World
	g     *rank.Group
	first bool
	buf   []byte

	met   chan struct{} // closed when the two have greeted each other, or never will
	ended chan struct{} // closed when this end makes no call any more

	mu    sync.Mutex
	found report
	err   error
}

// encounters are the ends of appointments in this process, in their order.
func (p *Process) encounters(list []appointment) (mine []*encounter) {
	link := map[kolo.Rank]kolo.Link{}
	for _, r := range p.Map() {
		for _, k := range r.Ranks {
			link[k] = r.Link
		}
	}
	for _, a := range list {
		for _, w := range p.Worlds() {
			if w.Rank() == a.a || w.Rank() == a.b {
				m := &encounter{appointment: a, world: w, first: w.Rank() == a.a, met: make(chan struct{}), ended: make(chan struct{})}
				m.found = report{A: a.a, B: a.b, Link: link[a.b], Failed: notCertain}
				mine = append(mine, m)
			}
		}
	}
	return mine
}

// meetAll keeps the appointments of this process and returns what it has found out. What
// has not ended in its time goes on beside, until its group is closed.
func (p *Process) meetAll(ctx context.Context, list []*encounter, how effort) []report {
	end := time.Now().Add(how.time)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	done := make(chan struct{})
	for _, m := range list {
		// ends with ctx, or when the driver gives back what it was given
		p.tasks.Go(func() { m.greet(ctx, how) })
	}
	// ends with the meetings
	p.tasks.Go(func() {
		defer close(done)
		for i, m := range list {
			m.keep(ctx, end, len(list)-i, how)
		}
	})
	late := time.NewTimer(how.time + lateTime)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	case <-p.closing:
	}
	found := []report{}
	for _, m := range list {
		m.mu.Lock()
		if m.first {
			found = append(found, m.found)
		}
		m.mu.Unlock()
	}
	return found
}

// greet opens the way between the two, which takes most of the time where it is long, and
// all ends of a process do so at once.
func (m *encounter) greet(ctx context.Context, how effort) {
	defer close(m.met)
	if m.a == m.b {
		return
	}
	g, err := m.world.NewGroup(rank.GroupConfig{Name: fmt.Sprintf("join: ranks %d and %d", int(m.a), int(m.b)), Ranks: []kolo.Rank{m.a, m.b}, Timeout: 2 * how.time})
	if err != nil {
		m.fail(err)
		return
	}
	m.g = g
	err = m.swap(ctx, make([]uint64, 1))
	if err == nil && m.first {
		err = m.lookAhead(ctx)
	} else if err == nil {
		err = m.follow(ctx, how)
	}
	m.fail(err)
}

// fail notes why the meeting is over, if it is.
func (m *encounter) fail(err error) {
	if err == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err = err; m.found.Latency == 0 {
		m.found.Failed = fmt.Sprintf("%.300v", err)
		if errors.Is(err, kolo.ErrCanceled) || errors.Is(err, kolo.ErrDeadline) {
			m.found.Failed = notCertain
			if m.g != nil && !over(m.met) {
				m.found.Failed = "nothing has come in time"
			}
		}
	}
}

func (m *encounter) failed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err != nil
}

// keep measures, as one of so many meetings that are left until end.
func (m *encounter) keep(ctx context.Context, end time.Time, left int, how effort) {
	defer close(m.ended)
	if m.a == m.b {
		m.look()
		return
	}
	wait := time.NewTimer(time.Until(end) * 3 / 4) // who is not there by then keeps nobody from meeting others
	defer wait.Stop()
	select {
	case <-m.met:
	case <-wait.C:
		return
	}
	if m.failed() {
		return
	}
	if !m.first {
		m.fail(m.follow(ctx, how))
		return
	}
	m.fail(m.lead(ctx, end, left, how))
}

// part leaves the group of the meeting. That waits for nothing where it has gone well;
// where something is held up in a driver it is left to itself.
func (m *encounter) part(p *Process) {
	leave := func() {
		<-m.met
		if m.g != nil {
			_ = m.g.Close(context.Background()) // what is wrong with it is known
		}
	}
	select {
	case <-m.met:
		if !m.failed() && over(m.ended) {
			leave()
			return
		}
	default:
	}
	// ends with the group
	p.tasks.Go(leave)
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// look is what a process finds of its own memory.
func (m *encounter) look() {
	found := rank.Probe()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.Link, m.found.Fold = kolo.LinkHCCS, int64(found.Reduce)
	if e := found.Levels[0]; e.Latency > 0 {
		m.found.Latency, m.found.Bandwidth = int64(e.Latency), int64(e.Bandwidth)
	}
}
