package channel

import (
	"fmt"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/drivers"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// Driver joins ranks by one kind of link. A Driver belongs to one World, whose
// ranks of this process share it. All its methods may be called by any goroutine.
type Driver interface {
	// Link is the kind of link.
	Link() kolo.Link
	// Open makes the endpoint of a world rank of this process.
	Open(rank kolo.Rank) (Endpoint, error)
	// Close ends the goroutines of the driver. Endpoints are closed before.
	Close() error
}

// Remote is a Driver between processes. After it is opened, the processes exchange
// their addresses; then come Meet and the endpoints.
type Remote interface {
	Driver
	// Address says how the ranks of this process are reached. It is understood by the
	// same driver in another process and by nobody else, and is at most 4 KiB.
	Address() ([]byte, error)
	// Meet tells the driver where the other processes' ranks are reached. A rank that
	// is not named cannot be connected to. The driver keeps the list.
	Meet(peers []Peer) error
}

// Poller is a Driver whose waiting ranks may look themselves for what has come, which
// saves the time to wake another goroutine.
type Poller interface {
	Driver
	// Poll gives the calling goroutine, which has nothing else to do, to the driver
	// until done is not zero or nothing has come for some microseconds. Ops may complete
	// in it, with a nil turn. It may return at any time; the caller then parks.
	Poll(done *atomic.Uint32)
}

// Peer is a rank that is reached by a Remote driver. It may also be one of this
// process.
type Peer struct {
	Rank    kolo.Rank // world rank
	Address []byte    // what Address gave in its process
}

// Allocator is a Driver with memory that a peer reads in place: a send out of it costs
// no copy where the receiver takes a View, and one where it takes a Recv.
type Allocator interface {
	Driver
	// Alloc makes n zero bytes of host memory, aligned to a page. They are the caller's
	// until Free, and at the latest until the driver's Close.
	Alloc(n int64) (kolo.Memory, error)
	// Free gives back what Alloc made, the same handle; no op may be using it.
	Free(kolo.Memory) error
}

// Reader is a Driver between processes that reads memory of a peer where it is, if the system
// lets it.
type Reader interface {
	Driver
	// Reads says whether that of the process of a world rank can be read: nil, or why not and
	// what to do about it, for people. It is known while the two processes are connected.
	Reads(rank kolo.Rank) (known bool, refusal error)
}

// Direct is a Driver of ranks that share a process, whose Engine addresses the memory of
// each: what one rank does to another's memory needs nothing of that one.
type Direct interface {
	Driver
	// Direct says whether the Engine of the driver's Config may be used between two world
	// ranks in place of their Conn.
	Direct(a, b kolo.Rank) bool
}

// Medium is a Driver between processes that does whole collectives of a group: all
// processes write what their ranks give to memory which the others read.
type Medium interface {
	Driver
	// Spans says whether the medium joins all these world ranks. The processes of a group
	// come to the same answer.
	Spans(ranks []kolo.Rank) bool
	// Board makes this process's part of the medium of a group, whose members are world
	// ranks; those of this process are among them. It waits for nobody.
	Board(group uint64, ranks []kolo.Rank) (Board, error)
}

// Board is what the ranks of one process have in common with those of the other
// processes of a group. It is used by one actor.
type Board interface {
	// Post begins the next collective of the group and returns. Round.Done is called
	// exactly once: perhaps before Post returns and then with turn t, or later with a nil
	// turn. There is one round at a time.
	Post(t Turn, r *Round)
	// Cancel ends the round with cause, if there is one. The board can then only be closed.
	Cancel(t Turn, cause error)
	// Close gives back what this process's part holds.
	Close()
}

// Round is one collective on a Board, as parts, which are done in any order. It is used
// again; from Post to Done the memory belongs to the board.
type Round struct {
	Op     kernel.Op // how the sources of a part are folded
	Digest uint64    // of the call; processes that differ get kolo.ErrMismatch
	Parts  []Share   // as many in all processes, and alike but for the memory
	// Inputs are what this process's ranks give, in the group's order, if the others may read
	// that where it is. An input that no part reads may be empty.
	Inputs []kolo.Memory
	// Trades says that a destination may be the source of another part, both of one source:
	// what is to be read must be put aside before anything is written.
	Trades bool
	Done   func(t Turn, err error)
}

// Share is a part of a Round: what some ranks give is folded, in the order of the ranks,
// and stored to some ranks. With one source that is a copy (or a scaling, if Op says so).
type Share struct {
	Len      int64     // bytes of each source and destination, a multiple of the element's
	From, To kolo.Rank // group ranks, or EveryRank; a To that is EveryRank may leave out From
	At       int64     // where the source begins in the input of its rank, or of each
	// Src and Dst are host memory of this process's ranks, in the group's order. A destination
	// may be the source of its rank; apart from that, and from what Trades says, no destination
	// overlaps any memory of the round.
	Src, Dst []kolo.Memory
}

// EveryRank is a Share's From or To that is all ranks of the group.
const EveryRank kolo.Rank = -1

// Reset makes the round empty, keeping its lists.
func (r *Round) Reset() {
	r.Parts, r.Inputs, r.Trades = r.Parts[:0], r.Inputs[:0], false
}

// Add appends a part and returns it with empty lists, whose memory is used again.
func (r *Round) Add(n int64, from, to kolo.Rank, at int64) *Share {
	if k := len(r.Parts); k < cap(r.Parts) {
		r.Parts = r.Parts[:k+1]
	} else {
		r.Parts = append(r.Parts, Share{})
	}
	p := &r.Parts[len(r.Parts)-1]
	*p = Share{Len: n, From: from, To: to, At: at, Src: p.Src[:0], Dst: p.Dst[:0]}
	return p
}

// Endpoint is one rank's end of all its links by one driver.
type Endpoint interface {
	// Connect makes the Conn to a world rank. It returns at once; where the peer cannot
	// be reached, the ops posted to the Conn complete with kolo.ErrLost.
	Connect(peer kolo.Rank) (Conn, error)
	// Close breaks what is left of the endpoint's Conns.
	Close()
}

// Conn is one rank's end of the link to one peer. It is used by one channel actor:
// its methods are never called at the same time.
type Conn interface {
	// Post starts op and returns at once. Exactly one completion follows, also
	// after Close: perhaps before Post returns, then with turn t. A driver between
	// processes may complete a small send before it has met its receive: then it is on
	// its way, nobody takes it back, and the receiver alone hears of a mismatch.
	Post(t Turn, op *Op)
	// Release gives back the memory that a completed View op refers to.
	Release(t Turn, op *Op)
	// Abort completes the ops of a group that have not met their other end, with
	// cause. Those that have met it end as they would.
	Abort(t Turn, group uint64, cause error)
	// Close completes all ops that have not met their other end, with cause, and
	// those posted later too.
	Close(t Turn, cause error)
}

// Meter is a Conn that counts what it carries, while it does.
type Meter interface {
	Conn
	// Carried is how many bytes have gone and come on the link so far, what the driver
	// itself adds among them. It grows while an op is under way and never falls.
	Carried() int64
}

// Gauge is a Board that tells how far its round is.
type Gauge interface {
	Board
	// Level is how many of the round's blocks are done, of how many, and which ranks, by
	// their place in the list that the board was made of, have not done what the next block
	// needs. Without a round all is 0.
	Level(t Turn) (done, all int64, behind []int)
}

// Config is what a driver is made with.
type Config struct {
	Job    string // identifies the world; two worlds never meet
	Epoch  uint64 // of the world's membership; processes of different epochs never meet
	Engine Engine // moves and folds bytes
	// Getenv reads the environment, for drivers that know settings of HCCL's there. nil: they
	// read none.
	Getenv func(string) string
	// Cores is how many processors the processes of this host that are in the world may use
	// between them, where each may be bound to some. 0: what this process may use.
	Cores int
}

// Open makes a driver that was registered under a name.
func Open(name string, c Config) (Driver, error) {
	open, err := registry.Get(name)
	if err != nil {
		return nil, err
	}
	d, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open channel driver %s: %w", name, err)
	}
	return d, nil
}

// Register makes a driver known under a name. It is called by init functions of
// driver packages and panics if the name is taken.
func Register(name string, open func(Config) (Driver, error)) { registry.Add(name, open) }

// Drivers lists the names of the drivers that are linked in.
func Drivers() []string { return registry.Names() }

var registry = drivers.New[func(Config) (Driver, error)]("channel driver")
