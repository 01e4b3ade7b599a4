package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// line is a fixed list of chunks that are reduced in order, once in each step.
type line struct {
	name               string
	group              *rank.Group
	op                 kolo.ReduceOp
	producer, consumer npu.Stream // both or none
	now                func() time.Time
	shard              *actor.Shard
	chunks             []*chunk
	parts              []part

	left atomic.Int64 // chunks of the step that have not ended, and 1 until it is known when it began

	mu        sync.Mutex
	open      bool // a step has begun and was not waited for
	closed    bool
	launching bool // somebody launches chunks: then others leave theirs to them
	ready     []bool
	next      int // chunk to launch
	works     []rank.Work
	taken     int   // calls that were waited for, and unpacked without a Consumer
	err       error // the first call that was refused
	start     time.Time
	done      chan struct{} // of the step
}

// part is the memory of a chunk, and what is done with it around its call.
type part struct {
	buffers []rank.Buffer // one call reduces all of them
	pack    func() error  // before: asks the Producer, or does it at once; may be nil
	unpack  func() error  // after: asks the Consumer, or does it in Wait; may be nil
}

func newLine(l *line, parts []part) (*line, error) {
	if (l.producer == nil) != (l.consumer == nil) {
		return nil, fmt.Errorf("%w: pipeline: a Producer and a Consumer, or neither", kolo.ErrArgument)
	}
	if l.now == nil {
		l.now = time.Now
	}
	l.parts, l.ready = parts, make([]bool, len(parts))
	l.shard = l.group.World().NewShard(l.name)
	for i := range parts {
		c, err := newChunk(l, i)
		if err != nil {
			l.stop()
			return nil, err
		}
		l.chunks = append(l.chunks, c)
	}
	return l, nil
}

// oneDevice refuses streams of two devices, and memory of another device than theirs.
func oneDevice(producer, consumer npu.Stream, buffers ...rank.Buffer) error {
	if producer == nil || consumer == nil {
		return nil
	}
	d := producer.Device()
	if consumer.Device() != d {
		return fmt.Errorf("%w: pipeline: the Producer is of device %d, the Consumer of device %d", npu.ErrForeign, d.Info().Index, consumer.Device().Info().Index)
	}
	for _, b := range buffers {
		if s := b.Memory.Space; s != kolo.HostSpace && s != d.Info().Space {
			return fmt.Errorf("%w: pipeline: memory of space %d with streams of device %d, whose space is %d", npu.ErrForeign, s, d.Info().Index, d.Info().Space)
		}
	}
	return nil
}

// begin opens a step.
func (l *line) begin() error {
	l.mu.Lock()
	if err := l.closedOr(l.open, "the step before was not waited for"); err != nil {
		l.mu.Unlock()
		return err
	}
	l.open, l.next, l.err, l.works, l.taken, l.done = true, 0, nil, l.works[:0], 0, make(chan struct{})
	clear(l.ready)
	for _, c := range l.chunks {
		c.state, c.times, c.err = waiting, [3]time.Time{}, nil
	}
	l.left.Store(int64(len(l.chunks)) + 1)
	l.mu.Unlock()
	if l.producer == nil {
		l.began(nil)
		return nil
	}
	if err := l.producer.Callback(l.began); err != nil {
		l.mu.Lock()
		l.open = false
		l.mu.Unlock()
		err = fmt.Errorf("pipeline: begin a step: %w", err)
		l.group.Abort(err) // the other ranks begin theirs
		return err
	}
	return nil
}

// began notes when the step begins. A stream that has failed tells the first chunk too.
func (l *line) began(error) {
	l.start = l.now()
	l.ended()
}

func (l *line) closedOr(bad bool, why string) error {
	switch {
	case l.closed:
		return fmt.Errorf("%w: pipeline %s", kolo.ErrClosed, l.name)
	case bad:
		return fmt.Errorf("%w: pipeline %s: %s", kolo.ErrArgument, l.name, why)
	}
	return nil
}

// mark says that chunk i is computed, and launches all that may be.
func (l *line) mark(i int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.closedOr(!l.open, noStep); err != nil {
		return err
	}
	if i < 0 || i >= len(l.ready) {
		return fmt.Errorf("%w: pipeline %s: no chunk %d of %d", kolo.ErrArgument, l.name, i, len(l.ready))
	}
	if l.ready[i] && l.err != nil {
		return l.err // the step was aborted, which made every chunk ready
	}
	if l.ready[i] {
		return fmt.Errorf("%w: pipeline %s: chunk %d is ready twice", kolo.ErrArgument, l.name, i)
	}
	l.ready[i] = true
	if l.launching {
		return nil
	}
	l.launching = true
	for l.next < len(l.ready) && l.ready[l.next] {
		k, failed := l.next, l.err
		l.next++
		l.mu.Unlock()
		w, err := l.launch(k, failed) // runs actors: under no lock
		l.mu.Lock()
		if l.works = append(l.works, w); l.err == nil {
			l.err = err
		}
	}
	l.launching = false
	return l.err
}

// launch makes the call of chunk i. What is refused on this rank fails the group, as
// the other ranks wait for it.
func (l *line) launch(i int, failed error) (rank.Work, error) {
	c, p := l.chunks[i], &l.parts[i]
	if failed == nil && p.pack != nil {
		failed = p.pack()
	}
	var w rank.Work
	if failed == nil {
		w = rank.DoOn(l.group, request(p.buffers, l.op),
			rank.Between{Producer: l.producer, Consumer: l.consumer, Watch: c.watch})
		if failed = w.Refused(); failed == nil {
			if l.consumer != nil && p.unpack != nil {
				failed = p.unpack()
			}
			if failed != nil {
				l.group.Abort(failed)
			}
			return w, failed
		}
	}
	l.group.Abort(failed)
	c.end(&heard{stage: rank.StageEnded, at: l.now(), err: failed})
	return rank.Work{}, failed
}

// ended counts what has ended of the step.
func (l *line) ended() {
	if l.left.Add(-1) == 0 {
		close(l.done)
	}
}

// notLaunched says why there is nothing to wait for, or nil.
func (l *line) notLaunched() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.open:
		return l.closedOr(true, noStep)
	case l.launching:
		return l.closedOr(true, "Ready has not returned")
	}
	n := len(l.ready) - l.next
	return l.closedOr(n > 0, fmt.Sprintf("%d of %d chunks are not ready, or wait for one before them that is not", n, len(l.ready)))
}

// noStep refuses what is for a step that has begun.
const noStep = "no step has begun, or it was waited for already"

// wait ends the step. Without streams it also unpacks what has come.
func (l *line) wait(ctx context.Context) (Report, error) {
	if err := l.notLaunched(); err != nil {
		return Report{}, err
	}
	err := l.take(ctx, len(l.works))
	<-l.done // the calls have ended, and so the chunks are about to
	times := make([]Times, len(l.chunks))
	for i, c := range l.chunks {
		if err == nil {
			err = c.err
		}
		times[i] = Times{Part: i, Ready: c.times[0].Sub(l.start), Begun: c.times[1].Sub(l.start), Ended: c.times[2].Sub(l.start)}
	}
	l.mu.Lock()
	l.open = false
	l.mu.Unlock()
	if err != nil {
		return Report{}, err
	}
	return measure(times), nil
}

// take waits for the first n calls, and without streams unpacks what has come. It is
// for the goroutine that waits.
func (l *line) take(ctx context.Context, n int) error {
	for ; l.taken < n; l.taken++ {
		err := l.works[l.taken].Wait(ctx)
		if err == nil && l.err == nil && l.consumer == nil && l.parts[l.taken].unpack != nil {
			err = l.parts[l.taken].unpack()
		}
		if l.err == nil {
			l.err = err
		}
	}
	return l.err
}

// takeEnded takes the calls that have ended, which they do in order, without waiting
// for others. It is for a line without streams.
func (l *line) takeEnded(ctx context.Context) error {
	l.mu.Lock()
	launched := len(l.works)
	l.mu.Unlock()
	return l.take(ctx, min(launched, max(l.taken, len(l.chunks)-int(l.left.Load()))))
}

// use is behind chunk i. The Consumer is behind all that were launched anyway.
func (l *line) use(ctx context.Context, i int) error {
	if err := l.notLaunched(); err != nil {
		return err
	}
	if l.consumer != nil {
		return l.err
	}
	return l.take(ctx, i+1)
}

// abort fails the group, and with it the step, for a cause.
func (l *line) abort(cause error) error {
	l.group.Abort(cause)
	l.mu.Lock()
	list := make([]int, 0, len(l.ready))
	for i := range l.ready {
		if l.open && !l.ready[i] {
			list = append(list, i)
		}
	}
	if l.err == nil {
		l.err = cause
	}
	l.mu.Unlock()
	var errs []error
	for _, i := range list {
		if err := l.mark(i); err != nil && !errors.Is(err, cause) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close ends the actors, between steps.
func (l *line) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.open {
		return fmt.Errorf("%w: pipeline %s: a step was not waited for", kolo.ErrArgument, l.name)
	}
	l.closed = true
	l.stop()
	return nil
}

func (l *line) stop() {
	for _, c := range l.chunks {
		c.self.Stop()
	}
}
