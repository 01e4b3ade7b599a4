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
	mute    []bool    // lost by silence, on another network: it may live
	started bool      // the join is over
	beaten  time.Time // when it has beaten last
	counted time.Time // the latest look that counted
	met     []contact

	cut map[[2]int]cutLink // links between two others
	out []expulsion        // of processes that live, by this one or heard of
}

func newHeart(p *Process, silence time.Duration) *heart {
	n := len(p.roster.Members)
	return &heart{p: p, silence: silence, state: make([]life, n), cause: make([]error, n), mute: make([]bool, n), met: make([]contact, n), cut: map[[2]int]cutLink{}}
}

// contact is when a process was heard of last.
type contact struct {
	frames uint64 // that had come then
	at     time.Time
	looks  int // since then, of those that count
}

// A heart looks at its links so often in the time of Config.Silence, and beats at every other
// look. Who has not been heard in silentLooks looks is lost: that is found within seven eighths of
// that time after the last frame, when three beats are missing. While processes join, on machines
// that may be full of others which do, they have longer: no call waits for them yet.
const (
	looksPerSilence = 8
	looksPerBeat    = 2
	silentLooks     = 6
	joiningLooks    = 4 * silentLooks
)

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
			h.met[q].looks = 0 // what was long was allowed
			if s == lost {
				h.tell(q)
			}
		}
	default:
		panic(fmt.Sprintf("cluster: unknown message %T", m))
	}
	return nil
}

// look finds the processes that have been silent. Silence is counted in looks, and not by a
// clock: a process that was not run itself for a while, on a machine that has more to do than
// processors or since it was stopped, does not hold that against the others, whose beats may be
// there and not read yet. So looks that come late, all at once, count as one.
func (h *heart) look(now time.Time) {
	every := h.silence / looksPerSilence
	counts := now.Sub(h.counted) >= every/2
	if counts {
		h.counted = now
	}
	due := now.Sub(h.beaten) >= looksPerBeat*every-every/2
	if due {
		h.beaten = now
	}
	limit := silentLooks
	if !h.started {
		limit = joiningLooks
	}
	for q, l := range h.p.everyLink() {
		if l == nil || h.state[q] != alive {
			continue
		}
		if due {
			l.beat()
		}
		x := &h.met[q]
		if n := l.heard.Load(); n != x.frames {
			*x = contact{frames: n, at: now}
		} else if counts {
			x.looks++
		}
		if x.looks >= limit {
			h.mute[q] = h.p.roster.Members[q].Host.Network != h.p.roster.Members[h.p.self].Host.Network
			h.lose(q, fmt.Errorf("it has been silent for %v: stopped, or its network is cut", now.Sub(x.at).Round(time.Millisecond)))
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
