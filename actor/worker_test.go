package actor

import (
	"math/rand/v2"
	"testing"
)

// The worker takes shards in the order in which they came, and its queue does not grow
// while it never runs empty.
func TestWorkerQueue(t *testing.T) {
	var w worker
	w.init()
	rng := rand.New(rand.NewPCG(1, 2))
	shards := make([]*Shard, 10_000)
	for i := range shards {
		shards[i] = &Shard{}
	}
	const most = 20
	taken := 0
	for given := 0; taken < len(shards); {
		if n := min(rng.IntN(8), most-(given-taken), len(shards)-given); n > 0 {
			w.take(shards[given : given+n])
			given += n
		}
		keep := 1 + rng.IntN(3)
		if given == len(shards) {
			keep = 0
		}
		for ; given-taken > keep; taken++ {
			if s := w.first(); s != shards[taken] {
				t.Fatalf("turn %d: another shard's", taken)
			}
		}
	}
	if cap(w.todo) > 8*most {
		t.Fatalf("the queue of %d shards has grown to %d", most, cap(w.todo))
	}
}
