package channel

import (
	"fmt"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
)

// Turn is the shard whose actor is running on the calling goroutine. A driver
// hands the turn that it got with Post to every completion that it makes before
// Post returns, and a nil turn to those that it makes on goroutines of its own.
type Turn = *actor.Shard

// Kind is what an Op does.
type Kind uint8

// The kinds of Op.
const (
	// Send gives the bytes of Mem to the peer.
	Send Kind = iota
	// Recv fills Mem with the bytes of the peer's send.
	Recv
	// View takes the peer's send by reference: at completion Mem holds the sender's
	// memory (or a copy of it), readable until Release.
	View
)

// String is the name of the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Send:
		return "send"
	case Recv:
		return "receive"
	case View:
		return "view"
	}
	return "no kind"
}

// Key says which sends and receives of a Conn belong together: those with equal
// keys, first posted with first posted.
type Key struct {
	Group uint64 // the group's number in its world
	Call  uint64 // call number of a collective, or the tag of a message
	Class Class
	Lane  uint8
	// Number is which message of its lane it is, from 0: a lost message leaves its
	// receive waiting and cannot shift the ones behind it.
	Number uint32
}

// Class keeps collectives and messages of a group, and one-sided transfers, apart.
type Class uint8

// The classes.
const (
	Collective Class = iota
	Message
	OneSided // Group is the number of a connection to a window
)

// Sink hears of completions. Complete runs on the shard of the rank that posted
// the op and must not block.
type Sink interface {
	Complete(op *Op)
}

// Op is one transfer. It is made by the rank that posts it, preallocated and used
// again; from Post to its completion the op and the memory belong to the channel.
type Op struct {
	Kind  Kind
	Key   Key
	Mem   []kolo.Memory // Send, Recv: the bytes, in order. View: set at completion
	Size  int64         // bytes in all; for View, what is expected
	DType kolo.DType    // what the bytes are; both ends must agree
	// Digest is of the call that the transfer belongs to. Both ends must agree: between
	// processes it is what finds two ranks in different calls. 0 where the calls have been
	// compared before.
	Digest uint64
	Sink   Sink  // who is told
	Step   int   // the poster's own
	Err    error // set at completion; nil when the transfer is done
	// Take, if set for a View of host memory, may be given the peer's bytes piece by piece as
	// they come, in place of Mem: then Taken is set before the completion, and Mem is empty.
	// Each byte comes once, off is its place in the message, and pieces begin at multiples of
	// 64; b is the caller's again when Take returns. Take is called by one goroutine at a
	// time, may not block, and is not called after the completion. A driver may leave it alone.
	Take  func(off int64, b []byte)
	Taken bool

	conn  *Channel // where it was posted
	aside *bounce  // its buffer, if the memory is a device's and staged
	state atomic.Int32
	// Mate is the op of the other end, Job the move in progress, Held says that a View
	// must give something back, and Hold is what. They belong to the driver.
	Mate *Op
	Job  Job
	Held bool
	Hold any
}

// The states of an op.
const (
	opIdle int32 = iota
	opPosted
	opDone
)

// Complete ends op with err. A driver calls it exactly once per posted op, with
// the turn described at Turn.
func (op *Op) Complete(t Turn, err error) {
	op.conn.completed(t, op, err)
}

// Agree says why send and receive do not fit each other, or nil.
func Agree(send, recv *Op) error {
	if send.Size != recv.Size {
		return fmt.Errorf("%w: the sender gives %d bytes and the receiver takes %d", kolo.ErrMismatch, send.Size, recv.Size)
	}
	if send.DType != recv.DType {
		return fmt.Errorf("%w: the sender gives %v and the receiver takes %v", kolo.ErrMismatch, send.DType, recv.DType)
	}
	if send.Digest != recv.Digest {
		return fmt.Errorf("%w: sender and receiver are in different calls (digests %#x and %#x)", kolo.ErrMismatch, send.Digest, recv.Digest)
	}
	return nil
}
