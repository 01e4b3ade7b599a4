package faulty

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// maxFaults is the most faults that a report lists one by one.
const maxFaults = 1 << 16

// Driver is a driver with faults. It is a channel.Driver for one World.
type Driver struct {
	inner  channel.Driver
	script Script
	seed   uint64
	sends  atomic.Int64

	mu     sync.Mutex
	counts [Cut + 1]int64
	faults []Fault
}

// New makes a driver that does what inner does, apart from what the script says.
// The seed decides where the script says a percentage. Closing the driver closes
// inner; if the script is wrong the caller keeps inner.
func New(inner channel.Driver, script string, seed uint64) (*Driver, error) {
	s, err := Parse(script)
	if err != nil {
		return nil, err
	}
	return &Driver{inner: inner, script: s, seed: seed}, nil
}

// Link is the link of the driver inside.
func (d *Driver) Link() kolo.Link { return d.inner.Link() }

// Open makes the endpoint of a rank.
func (d *Driver) Open(rank kolo.Rank) (channel.Endpoint, error) {
	e, err := d.inner.Open(rank)
	if err != nil {
		return nil, err
	}
	return &endpoint{d: d, inner: e, rank: rank}, nil
}

// Close closes the driver inside.
func (d *Driver) Close() error { return d.inner.Close() }

// Script is the script that the driver follows.
func (d *Driver) Script() Script { return d.script }

// Report says what a Driver has done.
type Report struct {
	Sends   int64 // messages that were to be sent, those with a fault included
	Lost    int64
	Delayed int64
	Cuts    int64 // links
	// Faults lists the first of them, at most 65536, by way and number of message.
	Faults []Fault
}

// Fault is one thing that was done to a message.
type Fault struct {
	What     What
	From, To kolo.Rank
	Send     int64         // number of the message on its way, from 0
	Delay    time.Duration // for a Delay
}

// String says it in the words of a script.
func (f Fault) String() string {
	s := fmt.Sprintf("%v %d -> %d send %d", f.What, int(f.From), int(f.To), f.Send)
	if f.What == Delay {
		s += " " + f.Delay.String()
	}
	return s
}

// Report says what has been done so far. Any goroutine may call it at any time.
func (d *Driver) Report() Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := Report{Sends: d.sends.Load(), Lost: d.counts[Lose], Delayed: d.counts[Delay], Cuts: d.counts[Cut]}
	r.Faults = slices.SortedFunc(slices.Values(d.faults), func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Send, b.Send), cmp.Compare(a.What, b.What))
	})
	return r
}

// note counts a fault.
func (d *Driver) note(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts[f.What]++
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, f)
	}
}

// endpoint hands out connections with faults.
type endpoint struct {
	d     *Driver
	inner channel.Endpoint
	rank  kolo.Rank
}

func (e *endpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	c, err := e.inner.Connect(peer)
	if err != nil {
		return nil, err
	}
	return &conn{d: e.d, inner: c, me: e.rank, peer: peer}, nil
}

func (e *endpoint) Close() { e.inner.Close() }
