package channeltest

import (
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// inlineBytes is the size of the largest job that the kit's engine does at once.
const inlineBytes = 32 << 10

// engine is the simplest channel.Engine with both kinds of completion: in Start, and
// later on a goroutine of its own.
type engine struct{ jobs sync.WaitGroup }

func (e *engine) Start(t channel.Turn, j *channel.Job) {
	if j.Size() <= inlineBytes {
		do(j)
		j.Done(t, nil)
		return
	}
	// ended by Close
	e.jobs.Go(func() {
		do(j)
		j.Done(nil, nil)
	})
}

// do does a job in one go.
func do(j *channel.Job) {
	for i := range j.Parts {
		var space [2][4][]byte
		dst, src := space[0][:0], space[1][:0]
		for _, m := range j.Parts[i].Dst {
			dst = append(dst, m.Host)
		}
		for _, m := range j.Parts[i].Src {
			src = append(src, m.Host)
		}
		j.Op.Spread(dst, src)
	}
}

func (e *engine) Lend(*atomic.Uint32, int, int64) {}

func (e *engine) Reaches(s kolo.Space) bool { return s == kolo.HostSpace }

func (e *engine) Close() { e.jobs.Wait() }
