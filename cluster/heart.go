package cluster

import (
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
)

// heart is the actor that decides which of the other processes live. It hears of links
// that break at once, and finds those that are silent; that says nothing of progress:
// a process that lives and does not call is a matter of deadlines.
type heart struct {
	p       *Process
	silence time.Duration
	state   []life // by process
	cause   []error
	mute    []bool // lost by silence, on another network: it may live
	started bool
	looks   int

	cut map[[2]int]time.Time // links between two others, of which one has told that it has broken; when
	out []expulsion          // of processes that live, by this one or heard of
}

func newHeart(p *Process, silence time.Duration) *heart {
	n := len(p.roster.Members)
	return &heart{p: p, silence: silence, state: make([]life, n), cause: make([]error, n), mute: make([]bool, n), cut: map[[2]int]time.Time{}}
}

// life is what is known of a process.
type life uint8

const (
	alive  life = iota
	parted      // it has said that it ends
	lost
)

// pulse is what a heart handles.
type pulse interface{ isPulse() }

type hurt struct {
	peer  int
	cause error
}
type parting struct{ peer int }
type beats struct{ now time.Time }
type start struct{}
type heard struct {
	from int
	s    suspicion
}

func (*hurt) isPulse()    {}
func (*parting) isPulse() {}
func (*beats) isPulse()   {}
func (start) isPulse()    {}
func (*heard) isPulse()   {}

// Handle does what the message says.
func (h *heart) Handle(m pulse) error {
	switch m := m.(type) {
	case *hurt:
		h.lose(m.peer, m.cause)
	case *parting:
		if h.state[m.peer] == alive {
			h.state[m.peer] = parted
		}
	case *beats:
		h.look(m.now)
	case *heard:
		h.hear(m.from, &m.s)
	case start:
		h.started = true
		for q, s := range h.state {
			if s == lost {
				h.tell(q)
			}
		}
	default:
		panic(fmt.Sprintf("cluster: unknown message %T", m))
	}
	return nil
}

// look finds the processes that have been silent.
func (h *heart) look(now time.Time) {
	h.looks++
	for q, l := range h.p.everyLink() {
		if l == nil || h.state[q] != alive {
			continue
		}
		if h.looks%looksPerBeat == 0 {
			l.beat()
		}
		if d := now.Sub(time.Unix(0, l.seen.Load())); d > h.silence*3/4 { // found before Silence is over
			h.mute[q] = h.p.roster.Members[q].Host.Network != h.p.roster.Members[h.p.self].Host.Network
			h.lose(q, fmt.Errorf("it has been silent for %v: stopped, or its network is cut", d.Round(time.Millisecond)))
		}
	}
	h.decide(now)
}

// lose notes that a process is gone.
func (h *heart) lose(peer int, cause error) {
	if h.state[peer] != alive {
		return
	}
	h.state[peer] = lost
	h.cause[peer] = fmt.Errorf("%w: %v: %w", kolo.ErrLost, &h.p.roster.Members[peer], cause)
	if l := h.p.everyLink()[peer]; l != nil {
		l.close(h.cause[peer])
	}
	if h.started {
		if err := h.outvoted(); err != nil {
			h.p.local.LeftOut(err)
		}
		h.tell(peer)
		h.share()
	} else {
		h.p.failJoin(h.cause[peer])
	}
}

// tell hands a loss to the ranks of this process, behind what has come from the lost one.
func (h *heart) tell(peer int) { h.p.inbox.lose(peer, h.cause[peer]) }
