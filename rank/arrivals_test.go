package rank

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// The hub closes the places where the ranks meet, at any moment, and the ranks run
// ahead of each other by more calls than there are places: no call is lost, none is
// taken twice, and the sums are right.
func TestArrivalsAreTakenOnceWhateverTheHubLooksFor(t *testing.T) {
	for _, algorithm := range []string{"fabric", "mesh-oneshot", "ring"} {
		t.Run(algorithm, func(t *testing.T) { arrive(t, algorithm, 4, 4000) })
	}
	t.Run("places=3", func(t *testing.T) { arrive(t, "fabric", 2*placeRanks+5, 150) })
}

func arrive(t *testing.T, algorithm string, ranks, calls int) {
	seed, all := rand.Uint64(), int64(ranks*(ranks+1)/2)
	require.NoError(t, Config{Algorithm: algorithm}.Run(t.Context(), ranks, func(ctx context.Context, w *World) error {
		rng := rand.New(rand.NewPCG(seed, uint64(w.Rank())))
		for i := 0; i < calls; {
			n := min(1+rng.IntN(3*arrivalsAhead), calls-i)
			list, bufs := make([]Work, n), make([][]int64, n)
			for k := range n {
				bufs[k] = []int64{int64(i+k) * int64(w.Rank()+1), int64(w.Rank())}
				list[k] = AllReduceAsync(w.Group(), bufs[k], kolo.Sum)
				if rng.IntN(8) == 0 {
					w.Group().hub.tell(nil, tick{})
				}
			}
			for k := range n {
				if err := list[k].Wait(ctx); err != nil {
					return err
				}
				if bufs[k][0] != int64(i+k)*all || bufs[k][1] != all-int64(ranks) {
					t.Errorf("seed %d: rank %d, call %d: %v", seed, int(w.Rank()), i+k, bufs[k])
				}
			}
			i += n
		}
		return nil
	}))
}

// A place takes each call of its number once, also while it is closed and opened again.
func TestPlaceOfArrivals(t *testing.T) {
	h := &hub{p: &process{}, ranks: make([]kolo.Rank, 2), members: make([]member, 2)}
	h.openPlaces()
	ticketOf := func(r kolo.Rank, seq uint64) *ticket {
		return &ticket{group: &Group{hub: h, rank: r}, seq: seq}
	}
	a := h.placeFor(3, 0)
	require.Equal(t, refused, a.deposit(ticketOf(0, 3+arrivalsAhead), false), "a call of a later round")
	t0, t1 := ticketOf(0, 3), ticketOf(1, 3)
	require.Equal(t, deposited, a.deposit(t0, false))
	require.False(t, a.complete(a.state.Load()))
	h.take(3)
	require.Equal(t, []*ticket{t0, nil}, h.rounds[3].tickets)
	require.Equal(t, refused, a.deposit(t1, false), "the place is closed")
	require.Nil(t, a.come(a.state.Load(), 3, 1))
	a.open(3 + arrivalsAhead)
	t0, t1 = ticketOf(0, 3+arrivalsAhead), ticketOf(1, 3+arrivalsAhead)
	require.Equal(t, deposited, a.deposit(t1, false))
	require.Equal(t, last, a.deposit(t0, false))
	require.True(t, a.complete(a.state.Load()))
}

// The last step of a plan may end the run while it is being begun, and the hub, on
// another goroutine, may begin the next round with it at once: nobody may look at it
// behind that.
func TestRunIsNotTouchedBehindItsEnd(t *testing.T) {
	const ranks, calls = 3, 3000
	stop := make(chan struct{})
	defer close(stop)
	require.NoError(t, Config{Algorithm: "bruck", Timeout: 30 * time.Second}.Run(t.Context(), ranks, func(ctx context.Context, w *World) error {
		if w.Rank() == 0 {
			go func() { // ends with the test
				for {
					select {
					case <-stop:
						return
					default:
						if h := w.Group().hub; h.self.Waiting() == 0 {
							h.tell(nil, tick{})
						}
					}
				}
			}()
		}
		for i := range calls {
			in, out := make([]int32, ranks), make([]int32, ranks)
			for k := range in {
				in[k] = int32(i*100 + int(w.Rank())*10 + k)
			}
			if err := AllToAll(ctx, w.Group(), out, in); err != nil {
				return err
			}
			for k := range out {
				if out[k] != int32(i*100+k*10+int(w.Rank())) {
					t.Errorf("call %d, rank %d: %v", i, int(w.Rank()), out)
				}
			}
		}
		return nil
	}))
}
