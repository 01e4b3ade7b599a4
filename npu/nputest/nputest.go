package nputest

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo/npu"
)

// Kit says how a driver is tested. Only Open must be set.
type Kit struct {
	// Open makes the driver under test; it fails or skips t where it cannot. The kit
	// closes the driver. Checks that need peers are skipped with less than two devices.
	Open func(t testing.TB) npu.Driver
	// Seed makes the random schedules; 0 means one that differs at each run. It is
	// printed.
	Seed uint64
	// Patience is how long something may take. 0 means 30 seconds.
	Patience time.Duration
	// Bubble runs each check in a synctest bubble of its own.
	Bubble bool
}

// Run tests the drivers that open makes, as Kit.Run.
func Run(t *testing.T, open func(t testing.TB) npu.Driver) {
	t.Helper()
	Kit{Open: open}.Run(t)
}

// Run makes one subtest of each check.
func (k Kit) Run(t *testing.T) {
	t.Helper()
	if k.Patience == 0 {
		k.Patience = 30 * time.Second
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64()
	}
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("seed %d", k.Seed)
			if k.Bubble {
				synctest.Test(t, func(t *testing.T) { c.run(newRig(t, k)) })
				return
			}
			c.run(newRig(t, k))
		})
	}
}

// rng is the random source of one check.
func (k Kit) rng(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(k.Seed, stream)) }

// check is one question to a driver.
type check struct {
	name string
	run  func(r *rig)
}

func checks() []check {
	return []check{
		{"OpenOnce", checkOpenOnce},
		{"Memory", checkMemory},
		{"OutOfMemory", checkOutOfMemory},
		{"Bytes", checkBytes},
		{"Reduce", checkReduce},
		{"ReturnsAtOnce", checkReturnsAtOnce},
		{"EventOrder", checkEventOrder},
		{"EventIsItsLatestRecord", checkEventLatest},
		{"EventNeverRecorded", checkEventNever},
		{"NotifyIsOneBit", checkNotifyBit},
		{"NotifyBetweenStreams", checkNotifyStreams},
		{"Callbacks", checkCallbacks},
		{"CallbacksThatDoNotReturn", checkCallbacksThatDoNotReturn},
		{"ErrorsStay", checkErrorsStay},
		{"ErrorsTravel", checkErrorsTravel},
		{"Abort", checkAbort},
		{"AbortDevice", checkAbortDevice},
		{"SyncEndsWithContext", checkSyncContext},
		{"BusyThings", checkBusy},
		{"FreedMemory", checkFreed},
		{"BadCalls", checkBadCalls},
		{"Overlap", checkOverlap},
		{"Costs", checkCosts},
		{"AbortWithoutCause", checkAbortWithoutCause},
		{"ClosedHandles", checkClosedHandles},
		{"OtherDevices", checkForeign},
		{"Peers", checkPeers},
		{"Close", checkClose},
		{"ClosedDevice", checkClosedDevice},
		{"Times", checkTimes},
		{"Actor", checkActor},
		{"ActorForgets", checkActorForgets},
		{"ManyGoroutines", checkGoroutines},
		{"RandomSchedules", checkRandom},
		{"RandomFailures", checkRandomFailures},
	}
}
