package plan

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// Entry is a plan from outside that the runtime may use: for one collective by so many
// ranks, for vectors within a window of sizes.
type Entry struct {
	Name   string // what a Choice calls it; Programs have it as their Algorithm
	Key    Key    // a base collective, and the root
	Ranks  int
	Report Report // of the Programs that run
	// InPlace and OutOfPlace are the forms of a call that it serves. NewEntry sets the one
	// that the Programs were made for; for the other a rank copies first or last.
	InPlace, OutOfPlace bool
	// MinBytes and MaxBytes bound the size of the whole vector: of the larger one of input
	// and output. MaxBytes 0: no limit.
	MinBytes, MaxBytes int64

	programs [2][]Compiled // out of place, in place
}

// NewEntry makes an entry of Programs that Verify with key takes, one per rank.
func NewEntry(name string, key Key, programs []*Program) (*Entry, error) {
	e := &Entry{Name: name, Key: key, Ranks: len(programs), InPlace: key.InPlace, OutOfPlace: !key.InPlace}
	for i, inPlace := range []bool{false, true} {
		if key.Collective == kolo.Broadcast && !inPlace {
			continue
		}
		anew, report, err := Rendezvous(key, programs, inPlace)
		if err != nil {
			return nil, err
		}
		if inPlace == key.InPlace {
			e.Report = report
		}
		for _, p := range anew {
			e.programs[i] = append(e.programs[i], Compiled{Program: p, Successors: NewSuccessors(p)})
		}
	}
	return e, nil
}

// Anywhere is the entry for calls in place and out of place.
func (e *Entry) Anywhere() *Entry {
	a := *e
	a.InPlace, a.OutOfPlace = true, true
	return &a
}

// Program is the Program of a rank for a call in place or not.
func (e *Entry) Program(rank kolo.Rank, inPlace bool) Compiled {
	if inPlace || e.Key.Collective == kolo.Broadcast {
		return e.programs[1][rank]
	}
	return e.programs[0][rank]
}

// Serves says why the entry is not for call c of a group of n ranks, or nil.
func (e *Entry) Serves(c *kolo.Call, n int) error {
	size := c.Count * int64(c.DType.Size())
	if chunked(c.Collective) {
		size *= int64(n)
	}
	switch {
	case c.Collective != e.Key.Collective:
		return e.not("is for %v", e.Key.Collective)
	case n != e.Ranks:
		return e.not("is for %d ranks", e.Ranks)
	case c.Collective.Rooted() && c.Root != e.Key.Root:
		return e.not("is for root %d", int(e.Key.Root))
	case c.Collective.Reduces() && c.Op.Kind == kolo.OpPreMulSum:
		return e.not("multiplies nothing")
	case c.InPlace && !e.InPlace || !c.InPlace && !e.OutOfPlace && c.Collective != kolo.Broadcast:
		return e.not("is for calls that are in place (%v) or out of place (%v)", e.InPlace, e.OutOfPlace)
	case size < e.MinBytes || e.MaxBytes > 0 && size > e.MaxBytes:
		return e.not("is for %d to %d bytes", e.MinBytes, e.MaxBytes)
	}
	return nil
}

func (e *Entry) not(format string, args ...any) error {
	return fmt.Errorf("%w: plan %s %s", kolo.ErrUnsupported, e.Name, fmt.Sprintf(format, args...))
}

// Library is a list of plans from outside, in the order in which they were added. It
// is not changed once it is in use. All ranks of a group must hold the same one.
type Library struct{ entries []*Entry }

// Add appends an entry. Its name must be free, also among the algorithms of the table.
func (l *Library) Add(e *Entry) error {
	if l.Get(e.Name) != nil {
		return fmt.Errorf("%w: two plans of the name %q", kolo.ErrArgument, e.Name)
	}
	if _, err := Lookup(e.Name); err == nil || e.Name == "" {
		return fmt.Errorf("%w: a plan of the name %q, which is an algorithm's or none", kolo.ErrArgument, e.Name)
	}
	l.entries = append(l.entries, e)
	return nil
}

// Entries is the list.
func (l *Library) Entries() []*Entry {
	if l == nil {
		return nil
	}
	return append([]*Entry(nil), l.entries...)
}

// Digest is a number that two libraries share only if the same calls take the same
// plans of them.
func (l *Library) Digest() uint64 {
	h := fnv(fnvOffset)
	text := func(s string) {
		for _, c := range []byte(s) {
			h.add(uint64(c))
		}
	}
	for _, e := range l.Entries() {
		text(fmt.Sprintf("%q %+v %d %v %v %d %d\n", e.Name, e.Key, e.Ranks, e.InPlace, e.OutOfPlace, e.MinBytes, e.MaxBytes))
		for _, c := range e.programs[1] {
			text(c.Program.String())
		}
	}
	return uint64(h)
}

// Get is the entry of a name, or nil.
func (l *Library) Get(name string) *Entry {
	if l == nil {
		return nil
	}
	for _, e := range l.entries {
		if e.Name == name {
			return e
		}
	}
	return nil
}
