package rank

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Diagnosis is a set of notes and checks that cost time, for the search of a fault:
// Config.Diagnose. Values are combined with |.
type Diagnosis uint8

// The notes and checks.
const (
	// CallSites notes where in the program each call was made; errors about calls that
	// differ, or that have not been made, then name file and line. It costs about a
	// microsecond a call.
	CallSites Diagnosis = 1 << iota
	// InFlight compares what a rank gives to a call, at the moment when the call is made,
	// with what is there when the data begins to move and, where the call does not itself
	// write it, when it has ended. A buffer that was changed in between fails the group.
	// It reads all host memory twice more; calls between streams are left out.
	InFlight
	// Results compares the results of a call that gives all ranks the same (AllReduce,
	// AllGather, Broadcast), over the ranks of this process. It reads them once more.
	Results
	// Overflow refuses a sum or product of integers that the type cannot hold, and which
	// would wrap, before its data moves: with the element and the value. It computes in
	// arbitrary precision, some hundred times slower than the call, for host memory and
	// groups within one process.
	Overflow
)

// String lists the set.
func (d Diagnosis) String() string {
	if d == 0 {
		return "none"
	}
	var names []string
	for i, name := range []string{"call sites", "in flight", "results", "overflow"} {
		if d&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Warning tells of a call that takes long, before its deadline.
type Warning struct {
	Group   string
	Call    kolo.Call
	Seq     uint64
	Waited  time.Duration // since the first rank of this process began to wait
	Missing []kolo.Rank   // group ranks of this process that have not come to the call
	Text    string        // all that is known, in a sentence
}

// site is where in the program a call was made; zero if it was not noted.
type site [8]uintptr

// note finds the callers of a call.
func (s *site) note() { runtime.Callers(4, s[:]) }

// String is " at file:line" of the first caller outside the runtime's own packages.
func (s *site) String() string {
	if s[0] == 0 {
		return ""
	}
	n := len(s)
	for n > 0 && s[n-1] == 0 {
		n--
	}
	frames := runtime.CallersFrames(s[:n])
	for {
		f, more := frames.Next()
		own := strings.HasPrefix(f.Function, "github.com/kolo-ccl/kolo/rank.") || strings.HasPrefix(f.Function, "github.com/kolo-ccl/kolo/pipeline.")
		if !own || strings.HasSuffix(f.File, "_test.go") || !more {
			return fmt.Sprintf(" at %s:%d", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line)
		}
	}
}

// hashSeed is of the checksums of this process; they are compared in it only.
var hashSeed = maphash.MakeSeed()

func checksum(list ...kolo.Memory) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	for _, m := range list {
		h.Write(m.Host) // never fails
	}
	return h.Sum64()
}

// given is the checksum of the host memory whose contents a rank gives to the call.
func (t *ticket) given() uint64 {
	switch {
	case len(t.tensors) > 0:
		return checksum(t.tensors...)
	case t.call.Collective == kolo.Broadcast && t.call.Root == t.group.rank:
		return checksum(t.out)
	}
	return checksum(t.in)
}

// inPlace says whether the call itself writes what the rank gives to it.
func (t *ticket) inPlace() bool {
	return len(t.tensors) > 0 || t.call.Collective != kolo.Broadcast && spanOf(t.in).overlaps(spanOf(t.out))
}

// result is the memory that the call writes, in pieces: what lies between the parts of a
// V form is not the call's.
func (t *ticket) result(dst []kolo.Memory) []kolo.Memory {
	switch {
	case len(t.tensors) > 0:
		return append(dst, t.tensors...)
	case t.displs.Out == nil:
		return append(dst, t.out)
	}
	size := int64(t.call.DType.Size())
	for i, n := range t.call.Counts {
		dst = append(dst, t.out.Slice(t.displs.Out[i]*size, n*size))
	}
	return dst
}

// unlike is the first element in which the results of two ranks differ, or -1. They are
// counted over the pieces, one behind the other.
func (t *ticket) unlike(other *ticket) int64 {
	at, size := int64(0), int64(t.call.DType.Size())
	theirs := other.result(nil)
	for i, m := range t.result(nil) {
		if !bytes.Equal(m.Host, theirs[i].Host) {
			return at + firstByte(m.Host, theirs[i].Host)/size
		}
		at += m.Len() / size
	}
	return -1
}

// diagnose makes the notes that Config.Diagnose asks for, when the call is made.
func (t *ticket) diagnose(d Diagnosis) {
	if d&CallSites != 0 {
		t.site.note()
	}
	if d&InFlight != 0 {
		t.sum = t.given()
	}
}

// changed finds a rank of this process whose buffer was changed since it made its
// call. written says that the call may have written it itself, where it is in place.
func (h *hub) changed(rd *round, written bool, when string) error {
	if h.p.cfg.Diagnose&InFlight == 0 {
		return nil
	}
	for _, r := range h.mine {
		t := rd.tickets[r]
		if t == nil || t.stream != nil || written && t.inPlace() {
			continue
		}
		if t.given() != t.sum {
			e := t.failure(fmt.Errorf("%w: rank %d has changed its buffer while the call was in flight (seen %s)%v; the buffers are the runtime's from the call to its end",
				kolo.ErrArgument, int(r), when, &t.site))
			e.Rank, e.Peer, e.Ranks = kolo.NoRank, r, []kolo.Rank{r}
			return e
		}
	}
	return nil
}

// differing finds the ranks of this process whose results are not those of the most.
func (h *hub) differing(rd *round) error {
	if h.p.cfg.Diagnose&Results == 0 {
		return nil
	}
	switch rd.tickets[h.mine[0]].call.Collective.Base() {
	case kolo.AllReduce, kolo.AllGather, kolo.Broadcast:
	default:
		return nil
	}
	best, votes := rd.tickets[h.mine[0]], 0
	for _, r := range h.mine { // the majority, if there is one
		switch t := rd.tickets[r]; {
		case votes == 0:
			best, votes = t, 1
		case t.unlike(best) < 0:
			votes++
		default:
			votes--
		}
	}
	var odd []kolo.Rank
	at := int64(-1)
	for _, r := range h.mine {
		if k := rd.tickets[r].unlike(best); k >= 0 {
			if odd = append(odd, r); at < 0 {
				at = k
			}
		}
	}
	if odd == nil {
		return nil
	}
	e := best.failure(fmt.Errorf("%w: the result of rank %s is not that of the other ranks, from element %d on; the memory or a driver is at fault", kolo.ErrMismatch, kolo.RankList(odd), at))
	e.Rank, e.Ranks = kolo.NoRank, odd
	if len(odd) == 1 {
		e.Peer = odd[0]
	}
	return e
}

// firstByte is where two pieces of memory of one length begin to differ.
func firstByte(a, b []byte) int64 {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return int64(i)
		}
	}
	return int64(min(len(a), len(b)))
}

// siteOf is where rank r made a call that is pending, as " at file:line", or "".
func (h *hub) siteOf(r kolo.Rank, seq uint64) string {
	if i := int(seq - h.base); i >= 0 && i < len(h.rounds) && h.rounds[i].tickets[r] != nil {
		return h.rounds[i].tickets[r].site.String()
	}
	return ""
}

// warn tells of a round that takes long, once, and says when to look again.
func (h *hub) warn(i int, rd *round, now time.Time) {
	after := h.p.cfg.Warn
	if after <= 0 || rd.warned || h.p.cfg.Warned == nil {
		return
	}
	waited := now.Sub(rd.opened)
	if waited < after {
		h.p.watch.arm(rd.opened.Add(after))
		return
	}
	rd.warned = true
	seq := h.base + uint64(i)
	w := Warning{Group: h.key.name, Call: *rd.firstCall(), Seq: seq, Waited: waited}
	var last string
	if w.Missing, last = h.missing(rd, seq); len(w.Missing) > 0 {
		w.Text = fmt.Sprintf("%v #%d of group %q waits since %v for rank %s (%s)", &w.Call, seq, w.Group, waited, kolo.RankList(w.Missing), last)
	} else {
		w.Text = fmt.Sprintf("%v #%d of group %q has been made by all ranks of this process %v ago and has not ended", &w.Call, seq, w.Group, waited)
	}
	h.p.cfg.Warned(w)
}

// firstLook is how long after the first call of a round somebody must look at it; 0 is
// never.
func (h *hub) firstLook() time.Duration {
	look := max(h.cfg.Timeout, 0)
	if w := h.p.cfg.Warn; w > 0 && h.p.cfg.Warned != nil && (look == 0 || w < look) {
		look = w
	}
	if h.far != nil && (look == 0 || slowRound < look) {
		look = slowRound
	}
	return look
}

// Busy says what this rank does while it makes no call, for as long as it does: the
// errors and warnings of ranks of this process that wait for it say so. Empty: it is
// no longer busy. A deadline holds nevertheless.
func (w *World) Busy(what string) {
	if what == "" {
		w.actor.busy.Store(nil)
		return
	}
	w.actor.busy.Store(&what)
}

// busyWith is what a member of this process says that it does, as a clause.
func (h *hub) busyWith(r kolo.Rank) string {
	a := h.p.actors[h.ranks[r]]
	if a == nil {
		return ""
	}
	if what := a.busy.Load(); what != nil {
		return fmt.Sprintf(" and is busy: %s", *what)
	}
	return ""
}
