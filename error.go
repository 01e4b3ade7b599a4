package kolo

import (
	"errors"
	"fmt"
	"strings"
)

// What callers branch on. Every error of this module that concerns a call wraps
// one of these; test with errors.Is.
var (
	ErrArgument    = errors.New("bad argument")             // this rank's call is wrong; nothing was started
	ErrMismatch    = errors.New("ranks disagree")           // ranks made different calls; in one process no output byte was changed
	ErrDeadline    = errors.New("deadline exceeded")        // not all ranks came, or data stood still, in time
	ErrLeft        = errors.New("a rank has left")          // a rank closed its group or its world
	ErrLost        = errors.New("connection lost")          // a channel broke
	ErrLeftOut     = errors.New("left out")                 // the others go on without this rank; with ErrLost
	ErrAborted     = errors.New("group aborted")            // the group was aborted, or failed in another call
	ErrClosed      = errors.New("closed")                   // used after Close
	ErrUnsupported = errors.New("not supported")            // a combination that no algorithm or driver serves
	ErrNotMember   = errors.New("not a member")             // this rank does not belong to the group
	ErrOverlap     = errors.New("buffers overlap")          // input and output overlap in a way that is no in-place layout
	ErrCanceled    = errors.New("canceled")                 // the caller's context ended
	ErrPanic       = errors.New("an actor has panicked")    // a bug in this module or in a callback; the group failed, the process goes on
	ErrLimit       = errors.New("a named limit is reached") // a queue or table is full
)

// Error says which operation failed, where, and why. It unwraps to its cause,
// and through it to one of the sentinels above. Fields that are not known hold
// NoCollective, "", NoRank or 0.
type Error struct {
	Op    Collective
	Group string
	Rank  Rank // the rank that reports, in the group's numbering
	Peer  Rank // the rank at fault or at the other end, NoRank if none or several
	Seq   uint64
	Ranks []Rank // the ranks at fault when there are several: missing, odd, gone
	Err   error
}

// Error is one line: operation, call number, group, rank, peer, cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("kolo: ")
	if e.Op != NoCollective {
		fmt.Fprintf(&b, "%v #%d ", e.Op, e.Seq)
	}
	if e.Group != "" {
		fmt.Fprintf(&b, "in group %q ", e.Group)
	}
	if e.Rank >= 0 {
		fmt.Fprintf(&b, "on rank %d", int(e.Rank))
	}
	if e.Peer >= 0 {
		fmt.Fprintf(&b, " (peer %d)", int(e.Peer))
	}
	return strings.TrimRight(b.String(), ": ") + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// RankList writes ranks for an error text, as "2, 5 and 7", with at most 16
// names and the number of the others.
func RankList(ranks []Rank) string {
	const most = 16
	var b strings.Builder
	for i, r := range ranks {
		switch {
		case i == most:
			fmt.Fprintf(&b, " and %d more", len(ranks)-most)
			return b.String()
		case i == 0:
		case i == len(ranks)-1:
			b.WriteString(" and ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d", int(r))
	}
	return b.String()
}
