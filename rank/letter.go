package rank

import (
	"maps"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// letter is what the processes of a world tell each other, through Control. Those
// with an id are for the hub of that group; the others are for the process.
type letter interface{ write(e *encoder) }

// Letters have a version, which both ends must share, and these kinds.
const letterVersion = 1

const (
	kindMade byte = iota + 1
	kindCalls
	kindFailed
	kindLeft
	kindParted
	kindAsk
	kindAnswer
	kindGreeting
	kindShrink
)

// Limits of a letter.
const (
	maxLetter = 8 << 20  // bytes
	maxText   = 16 << 10 // bytes of one string
)

// madeLetter says that a process has made a group. It comes before every other letter
// of the group, but of the group of the whole world, which all processes have.
type madeLetter struct {
	id        uint64
	name      string
	nth       int
	ranks     []kolo.Rank // world ranks
	algorithm string
	timeout   time.Duration
	priority  int
}

// callsLetter says what ranks have called under a number.
type callsLetter struct {
	id, seq uint64
	dispute bool // the calls are known to differ: tell yours
	entries []entry
}

// entry is a call that ranks have made, and what was chosen for it.
type entry struct {
	ranks     []kolo.Rank // in the group
	call      kolo.Call
	algorithm string // "" where none was chosen
}

// failedLetter says that the group has failed.
type failedLetter struct {
	id  uint64
	err *kolo.Error
}

// leftLetter says that a rank has left the group after a number of calls.
type leftLetter struct {
	id, calls uint64
	rank      kolo.Rank // in the group
	cause     error
}

// partedLetter says that a rank has closed its world.
type partedLetter struct {
	rank  kolo.Rank // in the world
	cause error
}

// askLetter asks what ranks are doing. With id and seq: which ranks of the group have
// come to that call.
type askLetter struct {
	token, id, seq uint64
	inCall         bool        // seq counts
	about          []kolo.Rank // world ranks
}

// answerLetter answers an askLetter.
type answerLetter struct {
	token  uint64
	states []state
	lines  []string
}

// state is how far a rank of a group is.
type state struct {
	rank    kolo.Rank // in the group
	arrived bool      // at the call that was asked for
	last    string    // what it did last
}

// shrinkLetter says what a rank that shrinks its world knows.
type shrinkLetter struct {
	rank   kolo.Rank                // in the world, as all ranks here
	call   uint64                   // how often it has called Shrink
	tried  uint64                   // in which of these calls it has tried its links
	opened []kolo.Rank              // whom it has links to
	links  map[kolo.Rank]string     // those that are broken, by the other end, and why
	out    map[kolo.Rank]*exclusion // who goes
}

func (m *madeLetter) write(e *encoder) {
	e.kind(kindMade).uint(m.id).text(m.name).uint(uint64(m.nth)).ranks(m.ranks).text(m.algorithm)
	e.int(int64(m.timeout)).int(int64(m.priority))
}

func readMade(d *decoder) *madeLetter {
	return &madeLetter{id: d.uint(), name: d.text(), nth: int(d.uint()), ranks: d.ranks(), algorithm: d.text(),
		timeout: time.Duration(d.int()), priority: int(d.int())}
}

func (m *callsLetter) write(e *encoder) {
	e.kind(kindCalls).uint(m.id).uint(m.seq).bool(m.dispute).uint(uint64(len(m.entries)))
	for i := range m.entries {
		n := &m.entries[i]
		e.ranks(n.ranks).text(n.algorithm).call(&n.call)
	}
}

func readCalls(d *decoder) *callsLetter {
	m := &callsLetter{id: d.uint(), seq: d.uint(), dispute: d.bool()}
	for range d.count(11) {
		n := entry{ranks: d.ranks(), algorithm: d.text()}
		n.call = d.call()
		m.entries = append(m.entries, n)
	}
	return m
}

func (m *failedLetter) write(e *encoder) { e.kind(kindFailed).uint(m.id).failure(m.err) }

func readFailed(d *decoder) *failedLetter { return &failedLetter{id: d.uint(), err: d.failure()} }

func (m *leftLetter) write(e *encoder) {
	e.kind(kindLeft).uint(m.id).int(int64(m.rank)).uint(m.calls).cause(m.cause)
}

func readLeft(d *decoder) *leftLetter {
	return &leftLetter{id: d.uint(), rank: kolo.Rank(d.int()), calls: d.uint(), cause: d.cause()}
}

func (m *partedLetter) write(e *encoder) { e.kind(kindParted).int(int64(m.rank)).cause(m.cause) }

func readParted(d *decoder) *partedLetter {
	return &partedLetter{rank: kolo.Rank(d.int()), cause: d.cause()}
}

func (m *askLetter) write(e *encoder) {
	e.kind(kindAsk).uint(m.token).uint(m.id).uint(m.seq).bool(m.inCall).ranks(m.about)
}

func readAsk(d *decoder) *askLetter {
	return &askLetter{token: d.uint(), id: d.uint(), seq: d.uint(), inCall: d.bool(), about: d.ranks()}
}

func (m *answerLetter) write(e *encoder) {
	e.kind(kindAnswer).uint(m.token).uint(uint64(len(m.states)))
	for _, s := range m.states {
		e.int(int64(s.rank)).bool(s.arrived).text(s.last)
	}
	e.uint(uint64(len(m.lines)))
	for _, l := range m.lines {
		e.text(l)
	}
}

func readAnswer(d *decoder) *answerLetter {
	m := &answerLetter{token: d.uint()}
	for range d.count(3) {
		m.states = append(m.states, state{rank: kolo.Rank(d.int()), arrived: d.bool(), last: d.text()})
	}
	for range d.count(1) {
		m.lines = append(m.lines, d.text())
	}
	return m
}

func (m *shrinkLetter) write(e *encoder) {
	e.kind(kindShrink).int(int64(m.rank)).uint(m.call).uint(m.tried).ranks(m.opened).uint(uint64(len(m.links)))
	for _, r := range slices.Sorted(maps.Keys(m.links)) {
		e.int(int64(r)).text(m.links[r])
	}
	e.uint(uint64(len(m.out)))
	for _, r := range slices.Sorted(maps.Keys(m.out)) {
		e.int(int64(r)).ranks(m.out[r].ends).text(m.out[r].why)
	}
}

func readShrink(d *decoder) *shrinkLetter {
	m := &shrinkLetter{rank: kolo.Rank(d.int()), call: d.uint(), tried: d.uint(), opened: d.ranks(), links: map[kolo.Rank]string{}, out: map[kolo.Rank]*exclusion{}}
	for range d.count(2) {
		r := kolo.Rank(d.int())
		m.links[r] = d.text()
	}
	for range d.count(3) {
		r := kolo.Rank(d.int())
		m.out[r] = &exclusion{ends: d.ranks(), why: d.text()}
	}
	return m
}

// pack is the letter as bytes.
func pack(m letter) []byte {
	e := &encoder{b: make([]byte, 0, 64)}
	m.write(e)
	return e.b
}

// unpack reads a letter. Whatever the bytes are, it takes no more memory than a small
// multiple of them.
func unpack(b []byte) (letter, error) {
	d := &decoder{b: b}
	if len(b) > maxLetter {
		return nil, d.fail("%d bytes are more than a letter has", len(b))
	}
	if v := d.byte(); d.err == nil && v != letterVersion {
		return nil, d.fail("version %d; this process speaks version %d", v, letterVersion)
	}
	var m letter
	switch k := d.byte(); k {
	case kindMade:
		m = readMade(d)
	case kindCalls:
		m = readCalls(d)
	case kindFailed:
		m = readFailed(d)
	case kindLeft:
		m = readLeft(d)
	case kindParted:
		m = readParted(d)
	case kindAsk:
		m = readAsk(d)
	case kindAnswer:
		m = readAnswer(d)
	case kindGreeting:
		m = readGreeting(d)
	case kindShrink:
		m = readShrink(d)
	default:
		_ = d.fail("kind %d", k) // noted in d
	}
	if d.err == nil && len(d.b) > 0 {
		_ = d.fail("%d bytes too many", len(d.b)) // noted in d
	}
	if d.err != nil {
		return nil, d.err
	}
	return m, nil
}
