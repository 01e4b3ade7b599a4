package channeltest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDumbDriver(t *testing.T) {
	Run(t, func(testing.TB, channel.Config) channel.Driver { return newDumb(none) })
}

// Each bug must be found by some check; the table says by which.
func TestBugsAreFound(t *testing.T) {
	found := map[bug]string{
		lastFirst: "OrderPerKey", ignoresLane: "KeysApart", ignoresGroup: "KeysApart", ignoresClass: "KeysApart",
		ignoresCall: "KeysApart", dropsLastByte: "GatherLists", skipsEmptyMessages: "Sizes", noTurn: "Turns",
		sharesViews: "View", completesTwice: "OrderPerKey", forgetsPeer: "Close", forgetsOwn: "Close",
		abortsAll: "Abort", abortsNobody: "Abort", ignoresSize: "Mismatch", ignoresType: "Mismatch",
		oneHearsOfMismatch: "Mismatch", writesAfterAbort: "AbortedMemory", closesAllLinks: "CloseOneLink",
		forgetsEndpoint: "CloseEndpoint", acceptsAfterClose: "Close", leaksGoroutine: "CloseUnused",
		forgetsRelease: "ViewsOutOfOrder", receivesLate: "Large", besideShard: "Turns",
	}
	for b := lastFirst; b < bugs; b++ {
		name, ok := found[b]
		require.True(t, ok, "bug %d is not in the table", b)
		t.Run(fmt.Sprintf("%d-%s", b, name), func(t *testing.T) {
			for _, c := range checks() {
				if c.name == name {
					if b == besideShard && raceDetector {
						t.Skip("the race detector finds it")
					}
					k := Kit{Seed: 1, Patience: 100 * time.Millisecond, Open: func(testing.TB, channel.Config) channel.Driver {
						d := newDumb(b)
						t.Cleanup(func() { close(d.leak) })
						return d
					}}
					require.NotEmpty(t, try(t, k.withDefaults(), c))
					return
				}
			}
			t.Fatalf("no check %q", name)
		})
	}
}

// try runs a check that should fail, and returns what it complained about.
func try(t *testing.T, k Kit, c check) []string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanUp()
		c.run(r, k)
	}()
	<-done
	return r.complaints
}

// recorder is a testing.TB that keeps complaints to itself.
type recorder struct {
	testing.TB
	mu         sync.Mutex
	complaints []string
	cleanups   []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complaints = append(r.complaints, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *recorder) FailNow() { runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.complaints) > 0
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// cleanUp runs the cleanups, last first, also those behind one that gives up.
func (r *recorder) cleanUp() {
	if n := len(r.cleanups); n > 0 {
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		defer r.cleanUp()
		f()
	}
}
