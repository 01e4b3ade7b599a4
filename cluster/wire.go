package cluster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// protocol is the version of what processes tell each other; both ends must share it.
const protocol = 7

// Limits of what comes from outside.
const (
	maxFrame = 16 << 20 // bytes of a gRPC message
	maxRanks = 1 << 20  // of a world
	maxHosts = 64       // addresses of a process
	maxJobs  = 1024     // of a standing rendezvous
	maxNotes = 16       // of what was refused
	maxQueue = 64 << 20 // bytes that wait to be sent to a process
)

// hello is what a process says at the rendezvous.
type hello struct {
	Protocol int
	Job      string
	Attempt  uint64 `json:",omitempty"`
	After    uint64 `json:",omitempty"` // the epoch that the ranks have been in before
	Size     int
	Member   Member
	Wait     time.Duration // how long it waits for the others, from then on
}

// Member is a process of a world.
type Member struct {
	Ranks     []kolo.Rank
	Host      Host
	PID       int
	Nonce     string   // of this process and join, so that nobody is mistaken for it
	Addresses []string // of its host, the likeliest first
	Port      int      // of its control plane
}

// Host says where a process runs, by evidence.
type Host struct {
	Name    string
	Machine string // differs between machines, and between starts of one
	Network string // differs between the network namespaces of a machine
	User    int    // who runs it
	Cores   int    // how many processors the process may use
	// Processors are their numbers, as Linux writes them: "0-3,8". Empty: they are not known.
	Processors string   `json:",omitempty"`
	Load       float64  `json:",omitempty"` // tasks that ran or waited for a processor when it joined: the average of a minute
	RDMA       []string `json:",omitempty"` // devices with an active port that speaks RoCE
	Rack       string   `json:",omitempty"` // as configured
}

// String is "rank 3 (pid 123 on host)".
func (m *Member) String() string {
	return fmt.Sprintf("rank %s (pid %d on %s)", kolo.RankList(m.Ranks), m.PID, m.Host.Name)
}

// answer is what the rendezvous says.
type answer struct {
	World   *roster `json:",omitempty"`
	Refused string  `json:",omitempty"` // for good
	Retry   string  `json:",omitempty"` // not now
	Missing *absent `json:",omitempty"` // the deadline has passed

	Tell  bool          `json:",omitempty"` // whom this process has reached, as a row
	Reach *ConnectError `json:",omitempty"` // what all have told
	last  bool          // nothing: what came before has been sent
}

// roster is a world that is complete.
type roster struct {
	Job     string
	Epoch   uint64
	Size    int
	Members []Member // by process number
}

// absent says who has come to a rendezvous and who has not.
type absent struct {
	Size    int
	Came    []Member
	Missing []kolo.Rank
	Notes   []string // of those that were refused
}

// greeting opens a Link, in both directions.
type greeting struct {
	Protocol int
	Job      string
	Epoch    uint64
	Process  int
	Nonce    string
	To       string // the nonce of who is meant
}

// intro is what a process tells each other one before data moves.
type intro struct {
	Drivers  map[string][]byte // what Address of each driver gave
	Topology uint64            // digest
	Settings string
}

// refusal is why a process does not join a world that it has met: the error of the
// others, too.
type refusal struct {
	Process int
	Text    string
	Is      []string      // the texts of the sentinels that the error is
	Reach   *ConnectError `json:",omitempty"`
	who     *Member
}

func (r *refusal) Error() string { return fmt.Sprintf("%v cannot join: %s", r.who, r.Text) }

// Unwrap are the sentinels of the error in the other process, and a ConnectError.
func (r *refusal) Unwrap() []error {
	var list []error
	for _, s := range sentinels() {
		if slices.Contains(r.Is, s.Error()) {
			list = append(list, s)
		}
	}
	if r.Reach != nil {
		list = append(list, r.Reach)
	}
	return list
}

// sentinels are the errors that a refusal can be tested for.
func sentinels() []error {
	return []error{kolo.ErrArgument, kolo.ErrMismatch, kolo.ErrUnsupported, kolo.ErrDeadline, kolo.ErrLost, kolo.ErrLeft, kolo.ErrLimit,
		kolo.ErrCanceled, kolo.ErrAborted, kolo.ErrClosed}
}

// sentinelsOf are the texts of those that err is.
func sentinelsOf(err error) (list []string) {
	for _, s := range sentinels() {
		if errors.Is(err, s) {
			list = append(list, s.Error())
		}
	}
	return list
}

// The kinds of frame of a Link, in their first byte.
const (
	frameBeat     byte = iota + 1
	frameTell          // to process 0, for all
	frameTold          // by process 0, what all have told: length, bytes, and so on
	frameMessages      // of package rank: length, bytes, and so on
	frameBye
	frameSuspicion // who has been lost, as JSON
	frameRefusal   // why a process does not join, as JSON
	frameChosen    // behind the greeting: of all addresses that were tried, this one is kept
)

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cluster: %T: %v", v, err)) // only plain structs are encoded
	}
	return b
}

// appendMessage adds a message to the body of a frame of them.
func appendMessage(b, message []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(message))), message...)
}

// messages cuts a frame of messages, without its first byte.
func messages(b []byte) (list [][]byte, err error) {
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil, fmt.Errorf("%w: a frame of messages is cut short", kolo.ErrArgument)
		}
		list = append(list, b[k:k+int(n)])
		b = b[k+int(n):]
	}
	return list, nil
}
