package channeltest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/channel"
)

// Kit says how a driver is tested. Only Open must be set.
type Kit struct {
	// Open makes the driver under test; it fails t where it cannot. The kit closes the
	// driver. Config.Job differs for each world, Config.Engine is a simple engine of the
	// kit that does large jobs on goroutines of its own; Open may use another, which it
	// closes by t.Cleanup. If the driver is a channel.Remote, the kit opens one for each
	// rank of a world, as if each were a process of its own.
	Open func(t testing.TB, c channel.Config) channel.Driver
	// ZeroCopy says that a View refers to the sender's own memory, and AllocFree that a
	// small transfer allocates nothing. The kit checks that where it is said.
	ZeroCopy, AllocFree bool
	// Buffered says that a small send may complete before it has met its receive. It is
	// then not held against the driver that an abort, a close or a mismatch does not end
	// the send, nor that its bytes reach a receive that is posted later.
	Buffered bool
	// Seed makes the random schedules; 0 means one that differs at each run. It is
	// printed where a check fails.
	Seed uint64
	// Patience is how long a completion may take. 0 means 30 seconds.
	Patience time.Duration
}

// Run tests the drivers that open makes, as Kit.Run.
func Run(t *testing.T, open func(t testing.TB, c channel.Config) channel.Driver) {
	t.Helper()
	Kit{Open: open}.Run(t)
}

// Run makes one subtest of each check.
func (k Kit) Run(t *testing.T) {
	t.Helper()
	k = k.withDefaults()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("seed %d", k.Seed)
			c.run(t, k)
		})
	}
}

func (k Kit) withDefaults() Kit {
	if k.Patience == 0 {
		k.Patience = 30 * time.Second
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64()
	}
	return k
}

// seeded is the kit with another seed.
func (k Kit) seeded(seed uint64) Kit {
	k.Seed = seed
	return k
}

// rng is the random source of one check.
func (k Kit) rng(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(k.Seed, stream)) }

// check is one question to a driver.
type check struct {
	name string
	run  func(t testing.TB, k Kit)
}

func checks() []check {
	return []check{
		{"Sizes", checkSizes},
		{"OrderPerKey", checkOrder},
		{"KeysApart", checkKeys},
		{"GatherLists", checkGather},
		{"Self", checkSelf},
		{"Turns", checkTurns},
		{"Large", checkLarge},
		{"Carried", checkCarried},
		{"View", checkView},
		{"ViewInPieces", checkViewInPieces},
		{"ViewsOutOfOrder", checkViewsOutOfOrder},
		{"ViewAfterClose", checkViewAfterClose},
		{"Allocations", checkAllocations},
		{"Mismatch", checkMismatch},
		{"Abort", checkAbort},
		{"AbortedMemory", checkAbortedMemory},
		{"Close", checkClose},
		{"CloseSelf", checkCloseSelf},
		{"CloseUnused", checkCloseUnused},
		{"CloseWhilePosting", checkCloseWhilePosting},
		{"CloseWhileMoving", checkCloseWhileMoving},
		{"CloseEndpoint", checkCloseEndpoint},
		{"CloseOneLink", checkCloseOneLink},
		{"Soak", checkSoak},
		{"SoakWithFailures", checkSoakWithFailures},
	}
}

// sizes are lengths in bytes around the limits that drivers tend to have.
var sizes = [...]int{0, 1, 3, 8, 63, 64, 65, 1000, 4095, 4096, 4097, 65535, 65537, 1<<20 + 3, 4<<20 + 5}

func sizeName(n int) string { return fmt.Sprintf("%d bytes", n) }
