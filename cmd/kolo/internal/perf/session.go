package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// session is a run: what the ranks of this process share, none of which changes.
type session struct {
	*Config
	counts  []int64
	pattern *pattern
}

// worker is one rank of a session.
type worker struct {
	*session
	group   *rank.Group // what is measured
	between *rank.Group // of the same ranks, for what lies around it
	me      int
	memory  []byte
	note    []byte // what this rank has noted of a trial
	notes   []byte // of the reporter: what all have; with those of every rank at each, memory would grow with their square
}

// reporter is the rank that calls Begin and Row.
const reporter = 0

// gap is what lies before the output if it is not in place: inputs and outputs keep
// to multiples of it.
const gap = 64

// part is the session of the ranks of this process, in a world of several. When one of
// them fails, its groups fail everywhere with the cause.
func (s *session) part(ctx context.Context) error {
	errs := make([]error, len(s.Worlds))
	var wg sync.WaitGroup
	for i, w := range s.Worlds {
		// ends with the rank's work
		wg.Go(func() {
			if errs[i] = s.work(ctx, w); errs[i] == nil {
				return
			}
			for _, g := range w.Groups() {
				g.Abort(errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// work is one rank's part of the session.
func (s *session) work(ctx context.Context, w *rank.World) error {
	k := &worker{session: s, between: w.Group(), me: int(w.Rank()), note: make([]byte, noteSize)}
	if k.me == reporter {
		k.notes = make([]byte, noteSize*w.Size())
	}
	all := make([]kolo.Rank, w.Size())
	for r := range all {
		all[r] = kolo.Rank(r)
	}
	var err error
	if k.group, err = w.NewGroup(rank.GroupConfig{Name: s.Operator.Name, Ranks: all, Algorithm: s.Rank.Algorithm}); err != nil {
		return err
	}
	words := (s.most(k.me, s.counts) + 7) / 8
	memory, free, err := rank.AllocShared[uint64](w, int(words)) // aligned for every element type
	if err != nil {
		return err
	}
	k.memory = rank.Of(memory).Memory.Host
	for {
		for _, count := range s.counts {
			for _, p := range s.Placements {
				if err := k.try(ctx, newTrial(s.Config, p, count)); err != nil {
					return err
				}
			}
		}
		if !s.Repeat {
			return free()
		}
	}
}

// try does one trial: warm up, time, check, report.
func (k *worker) try(ctx context.Context, t *trial) error {
	l := t.lay(k.me)
	in, out := k.place(t, &l)
	r := t.request(k.Config, &l, in, out)
	reports := k.me == reporter
	row := Row{Size: t.count * int64(k.DType.Size()), Count: t.perCall(), Placement: t.placement}
	if reports && k.Begin != nil {
		k.Begin(row)
	}
	k.load(in, out)
	if err := k.repeat(ctx, r, k.Warmup); err != nil {
		return err
	}
	if err := rank.Barrier(ctx, k.between); err != nil {
		return err
	}
	start := k.Now()
	if err := k.repeat(ctx, r, k.Iterations); err != nil {
		return err
	}
	took := k.Now().Sub(start)
	row.Checked = k.Check && k.pattern.exact
	var m Mistake
	if row.Checked {
		k.load(in, out)
		if err := rank.Do(ctx, k.group, r); err != nil {
			return err
		}
		if k.Tamper != nil {
			k.Tamper(kolo.Rank(k.me), out)
		}
		m = k.examine(&l, out)
	}
	write(k.note, took, &m)
	if err := rank.Gather(ctx, k.between, k.notes, k.note, reporter); err != nil {
		return err
	}
	if !reports {
		return nil
	}
	return k.report(t, &l, row)
}

// What a rank notes of a trial: four numbers and two texts, each with its length before
// it, for which no text of a number is too long.
const (
	noteText = 40
	noteSize = 4*8 + 2*noteText
)

// write makes a note. The same fields stand in read.
func write(b []byte, took time.Duration, m *Mistake) {
	for i, v := range []int64{int64(took), m.Wrong, m.Of, m.Index} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(v))
	}
	for i, s := range []string{m.Got, m.Want} {
		to := b[4*8+i*noteText:][:noteText]
		to[0] = byte(copy(to[1:], s))
	}
}

// read is what rank r has noted.
func read(b []byte, r kolo.Rank) (took time.Duration, m Mistake) {
	b = b[int(r)*noteSize:][:noteSize]
	v := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	text := func(i int) string {
		from := b[4*8+i*noteText:][:noteText]
		return string(from[1 : 1+min(int(from[0]), noteText-1)])
	}
	return time.Duration(v(0)), Mistake{Rank: r, Wrong: v(1), Of: v(2), Index: v(3), Got: text(0), Want: text(1)}
}

// place is the rank's input and output.
func (k *worker) place(t *trial, l *layout) (in, out []byte) {
	size := int64(k.DType.Size())
	cut := func(from, n int64) []byte { return k.memory[from : from+n*size : from+n*size] }
	if t.placement == InPlace {
		return cut(l.inAt*size, l.in), cut(l.outAt*size, l.out)
	}
	return cut(0, l.in), cut((l.in*size+gap-1)/gap*gap, l.out)
}

// poison is what no input holds for long.
const poison = "\xa5\x5a\xa5\xa5\x5a\xa5\xa5\xa5"

// load writes what must be overwritten to the output, and the rank's values to the
// input, which may be a part of it.
func (k *worker) load(in, out []byte) {
	for n := copy(out, poison); n < len(out) && n > 0; n *= 2 {
		copy(out[n:], out[:n])
	}
	k.pattern.fill(in, k.me, 0)
}

func (k *worker) repeat(ctx context.Context, r rank.Request, n int) error {
	for range n {
		if err := rank.Do(ctx, k.group, r); err != nil {
			return err
		}
	}
	return nil
}

// examine compares all of the output.
func (k *worker) examine(l *layout, out []byte) Mistake {
	size := int64(k.DType.Size())
	m := Mistake{Rank: kolo.Rank(k.me), Of: l.out}
	at := int64(0)
	for _, s := range l.want {
		got := out[at*size : (at+s.count)*size]
		if wrong, first, want := k.pattern.compare(got, s.rank, s.from); wrong > 0 {
			if m.Wrong == 0 {
				m.Index = at + first
				m.Got, m.Want = text(k.DType, get(got, k.DType, int(first))), text(k.DType, want)
			}
			m.Wrong += wrong
		}
		at += s.count
	}
	return m
}

// report makes the row of what all ranks have noted.
func (k *worker) report(t *trial, l *layout, row Row) error {
	slowest := time.Duration(0)
	for r := range k.Ranks {
		took, m := read(k.notes, kolo.Rank(r))
		slowest = max(slowest, took)
		if m.Wrong > 0 {
			row.Mistakes = append(row.Mistakes, m)
		}
	}
	row.Time = float64(slowest.Nanoseconds()) / 1000 / float64(k.Iterations)
	row.AlgBW = float64(row.Size) / max(row.Time, 1e-3) / 1000
	row.BusBW = row.AlgBW * k.Operator.busFactor(k.Ranks)
	var err error
	if row.Choice, err = k.choice(t, l); err != nil {
		return err
	}
	return k.Row(row)
}

// choice is how the group does the trial's call. The medium cannot exchange blocks
// in place; the cheapest algorithm that can does it.
func (k *worker) choice(t *trial, l *layout) (plan.Choice, error) {
	ch, err := k.group.Explain(t.call(k.Config, l))
	if err != nil || ch.Algorithm != "fabric" || t.placement == OutOfPlace || t.operator.Collective != kolo.AllToAll {
		return ch, err
	}
	for _, row := range ch.Rows {
		if row.Serves && row.Name != ch.Algorithm {
			ch.Algorithm, ch.Cost, ch.Why = row.Name, row.Cost, "in place, which fabric cannot"
			break
		}
	}
	return ch, nil
}
