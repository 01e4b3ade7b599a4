package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// Where two processes of a world cannot connect, none of the others can know why, and the two
// may reach nobody who would pass it on. But all have come to the rendezvous, and each still has a
// stream to it. So
//
//	a process, shortly before its time is over    -> the rendezvous: whom I have reached (row)
//	the rendezvous -> all: tell
//	all            -> the rendezvous: row
//	the rendezvous -> all, when all have told or reachTime is over: ConnectError
//
// and every rank has the same error, of all pairs.

// reachTime is how long a rendezvous waits for whom all reach.
const reachTime = time.Second

// Attempt is how dialling an address has gone.
type Attempt struct {
	Address string
	Error   string        `json:",omitempty"` // of the latest try; "" if it was taken
	Errno   string        `json:",omitempty"` // what the system has called that, such as ECONNREFUSED
	Tries   int           // that have ended
	Took    time.Duration // by the latest
}

// String is "10.0.0.1:4000: connection refused (ECONNREFUSED), 5 tries, the last in 1ms".
func (a Attempt) String() string {
	text := a.Error
	switch {
	case a.Tries == 0:
		return a.Address + ": not tried, or no answer yet"
	case text == "":
		text = "connected"
	}
	if a.Errno != "" {
		text += " (" + a.Errno + ")"
	}
	text = a.Address + ": " + text
	if a.Tries > 1 {
		text += fmt.Sprintf(", %d tries, the last", a.Tries)
	}
	return text + " in " + roughly(a.Took).String()
}

// roughly is a duration for people.
func roughly(d time.Duration) time.Duration {
	for unit := time.Second; unit >= time.Microsecond; unit /= 10 {
		if d >= unit {
			return d.Round(unit / 10)
		}
	}
	return d
}

// Connection is how this process has been linked with another for control messages.
type Connection struct {
	Process int
	Dialled bool          // by this process; else the other has dialled
	Address string        // which was dialled, or from which
	Took    time.Duration // for who has dialled, with what failed before
	Failed  []Attempt     // what did
}

// Connections are those to the other processes, by number.
func (p *Process) Connections() (list []Connection) {
	for q, l := range p.everyLink() {
		if l != nil {
			list = append(list, Connection{Process: q, Dialled: q < p.self, Address: l.address, Took: l.took, Failed: p.failedBefore(q)})
		}
	}
	return list
}

// Reading is whether this process reads the private memory of another of its host in place.
type Reading struct {
	Process int
	Refusal string // why it cannot, and what to do; then large messages are copied twice. Else ""
}

// Readings are the other processes of which a driver has tried that, by number: those that are
// connected by memory.
func (p *Process) Readings() (list []Reading) {
	m := p.drivers
	for q, i := range m.by {
		d, ok := m.drivers[i].(channel.Reader)
		if !ok || q == p.self {
			continue
		}
		known, refusal := d.Reads(p.roster.Members[q].Ranks[0])
		if !known {
			continue
		}
		r := Reading{Process: q}
		if refusal != nil {
			r.Refusal = refusal.Error()
		}
		list = append(list, r)
	}
	return list
}

// dialling is what is known of the addresses of a process.
type dialling struct {
	begun time.Time
	mu    sync.Mutex
	list  []Attempt
}

func newDialling(addresses []string) *dialling {
	d := &dialling{begun: time.Now()}
	for _, a := range addresses {
		d.list = append(d.list, Attempt{Address: a})
	}
	return d
}

// note takes note of how a try of an address has ended. That the time of all was over says
// nothing of an address of which something else is known.
func (d *dialling) note(i int, err error, took time.Duration, late bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &d.list[i]
	if late && a.Tries > 0 {
		return
	}
	a.Tries, a.Took, a.Errno = a.Tries+1, took, ""
	if err == nil {
		a.Error = ""
		return
	}
	a.Error = err.Error()
	if n := syscall.Errno(0); errors.As(err, &n) {
		a.Error, a.Errno = n.Error(), errnoName(n)
	} else if late {
		a.Error = "no answer"
	}
}

func (d *dialling) attempts() []Attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.list)
}

// errnoName is the name of an error of connect(2), or its number.
func errnoName(n syscall.Errno) string {
	for _, e := range []struct {
		n    syscall.Errno
		name string
	}{
		{syscall.ECONNREFUSED, "ECONNREFUSED"}, {syscall.EHOSTUNREACH, "EHOSTUNREACH"}, {syscall.ENETUNREACH, "ENETUNREACH"},
		{syscall.ETIMEDOUT, "ETIMEDOUT"}, {syscall.ECONNRESET, "ECONNRESET"}, {syscall.EACCES, "EACCES"}, {syscall.EPERM, "EPERM"},
		{syscall.EADDRNOTAVAIL, "EADDRNOTAVAIL"}, {syscall.EINVAL, "EINVAL"}, {syscall.EMFILE, "EMFILE"}, {syscall.ENFILE, "ENFILE"},
		{syscall.EAFNOSUPPORT, "EAFNOSUPPORT"}, {syscall.ENETDOWN, "ENETDOWN"}, {syscall.EHOSTDOWN, "EHOSTDOWN"},
	} {
		if n == e.n {
			return e.name
		}
	}
	return fmt.Sprintf("errno %d", int(n))
}

// dialled notes that a process is going to be dialled at some addresses.
func (p *Process) dialled(q int, addresses []string) *dialling {
	d := newDialling(addresses)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dials == nil {
		p.dials = map[int]*dialling{}
	}
	p.dials[q] = d
	return d
}

// attempts are what is known of a process's addresses; ok if it was dialled.
func (p *Process) attempts(q int) (list []Attempt, ok bool) {
	p.mu.Lock()
	d := p.dials[q]
	p.mu.Unlock()
	if d == nil {
		return nil, false
	}
	return d.attempts(), true
}

func (p *Process) failedBefore(q int) []Attempt {
	list, _ := p.attempts(q)
	return slices.DeleteFunc(list, func(a Attempt) bool { return a.Error == "" })
}

// row is whom a process has reached of those that it dials, and whom it has not.
type row struct {
	Epoch   uint64
	Process int
	Linked  int
	Slowest time.Duration
	Failed  []failing
}

// failing are processes of which all addresses fail in the same way, the addresses being those
// of the first.
type failing struct {
	To    []int
	Tried []Attempt
}

// row is that of this process.
func (p *Process) row() *row {
	r := &row{Epoch: p.roster.Epoch, Process: p.self}
	index := map[string]int{}
	for q, l := range p.everyLink()[:p.self] {
		if l != nil {
			r.Linked, r.Slowest = r.Linked+1, max(r.Slowest, l.took)
			continue
		}
		tried, ok := p.attempts(q)
		if !ok || !slices.ContainsFunc(tried, func(a Attempt) bool { return a.Tries > 0 }) {
			continue // its turn has not come, or nothing is known yet
		}
		key := kindOf(tried)
		i, ok := index[key]
		if !ok {
			i = len(r.Failed)
			index[key], r.Failed = i, append(r.Failed, failing{Tried: tried})
		}
		r.Failed[i].To = append(r.Failed[i].To, q)
	}
	return r
}

// kindOf is how some addresses fail, without the addresses and the times.
func kindOf(tried []Attempt) string {
	var list []string
	for _, a := range tried {
		list = append(list, a.Error)
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "\n")
}

// hear does what the rendezvous says while this process joins.
func (p *Process) hear(a *answer) {
	switch {
	case a.Tell:
		p.client.tell(p.row())
	case a.Reach != nil:
		select {
		case p.reached <- a.Reach:
		default: // it has it
		}
		if len(a.Reach.Blocked) > 0 {
			p.failJoin(a.Reach.joinError())
		}
	}
}

// diagnosed is why the time of a join was over: which processes cannot connect, where that is
// so, or what is known here.
func (p *Process) diagnosed(ctx context.Context, err error) error {
	var known *ConnectError
	var told *refusal
	if !errors.Is(err, kolo.ErrDeadline) || p.links == nil || errors.As(err, &known) || errors.As(err, &told) {
		return err
	}
	mine := p.row()
	p.client.tell(mine)
	late := time.NewTimer(2 * reachTime)
	defer late.Stop()
	reach := (*ConnectError)(nil)
	select {
	case reach = <-p.reached:
	case <-late.C:
	case <-ctx.Done():
	}
	if reach == nil { // the rendezvous is gone
		reach = newConnectError(p.roster.Members, map[int]*row{p.self: mine})
	}
	if len(reach.Blocked) == 0 {
		return err
	}
	return reach.joinError()
}
