package npu

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// script pushes tasks that have names and writes down in which order they begin.
type script struct {
	t     *testing.T
	o     Order
	begun []*Task
}

func (s *script) push(q *Queue, kind TaskKind, name string, m *Mark, f *Flag) *Task {
	s.t.Helper()
	task := &Task{Kind: kind, Mark: m, Flag: f, Data: name}
	require.NoError(s.t, s.o.Push(q, task))
	return task
}

func (s *script) work(q *Queue, name string) *Task { return s.push(q, TaskWork, name, nil, nil) }

// ready takes all that may begin and returns their names; dropped ones have a "!"
// in front and are done at once.
func (s *script) ready() (names []string) {
	for t := s.o.Ready(); t != nil; t = s.o.Ready() {
		name := t.Data.(string)
		if t.Err != nil {
			name = "!" + name
		}
		names = append(names, name)
		if t.Err != nil || t.Kind == TaskRecord {
			s.o.Done(t, nil)
			continue
		}
		s.begun = append(s.begun, t)
	}
	return names
}

// end ends the begun task of that name.
func (s *script) end(name string, err error) {
	s.t.Helper()
	i := slices.IndexFunc(s.begun, func(t *Task) bool { return t.Data == name })
	require.GreaterOrEqual(s.t, i, 0, "%s has not begun", name)
	t := s.begun[i]
	s.begun = slices.Delete(s.begun, i, i+1)
	s.o.Done(t, err)
}

func TestOrderOneStream(t *testing.T) {
	s, q := &script{t: t}, &Queue{}
	s.work(q, "a")
	s.work(q, "b")
	require.Equal(t, []string{"a"}, s.ready())
	require.Empty(t, s.ready())
	s.end("a", nil)
	require.Equal(t, []string{"b"}, s.ready())
	s.end("b", nil)
	require.True(t, q.Idle())
}

func TestOrderEvent(t *testing.T) {
	s, p, q, m := &script{t: t}, &Queue{}, &Queue{}, &Mark{Name: "m"}
	s.push(q, TaskWait, "", m, nil) // never recorded: holds nobody
	s.work(q, "first")
	require.Equal(t, []string{"first"}, s.ready())
	s.work(p, "a")
	s.push(p, TaskRecord, "r1", m, nil)
	s.push(q, TaskWait, "", m, nil)
	s.work(q, "second")
	s.work(p, "b")
	s.push(p, TaskRecord, "r2", m, nil) // later: nothing to the Wait above
	require.True(t, m.InUse())
	s.end("first", nil)
	require.Equal(t, []string{"a"}, s.ready())
	s.end("a", nil)
	require.Equal(t, []string{"r1", "b", "second"}, s.ready())
	done, err := m.Done()
	require.NoError(t, err)
	require.False(t, done, "the latest record is behind b")
	s.end("b", nil)
	require.Equal(t, []string{"r2"}, s.ready())
	done, _ = m.Done()
	require.True(t, done)
	require.False(t, m.InUse())
}

func TestOrderNotify(t *testing.T) {
	s, p, q, f := &script{t: t}, &Queue{}, &Queue{}, &Flag{}
	s.push(p, TaskAwait, "", nil, f)
	s.work(p, "p")
	s.push(q, TaskAwait, "", nil, f)
	s.work(q, "q")
	require.Empty(t, s.ready())
	s.o.Set(f, nil)
	require.Equal(t, []string{"p"}, s.ready(), "one bit releases one stream, the first")
	s.o.Set(f, nil)
	require.Equal(t, []string{"q"}, s.ready())
	s.o.Set(f, nil)
	s.o.Set(f, nil) // stays one bit
	s.end("p", nil)
	s.push(p, TaskAwait, "", nil, f)
	s.push(p, TaskAwait, "", nil, f)
	s.work(p, "p2")
	require.Empty(t, s.ready())
	require.True(t, f.InUse())
	r := &Queue{}
	s.push(r, TaskSignal, "", nil, f)
	require.Equal(t, []string{"p2"}, s.ready())
	require.False(t, f.InUse())
}

func TestOrderFailure(t *testing.T) {
	s, p, q, r := &script{t: t}, &Queue{}, &Queue{}, &Queue{}
	m, f := &Mark{Name: "grads ready"}, &Flag{Name: "go"}
	broken := errors.New("broken")
	s.work(p, "a")
	s.work(p, "b")
	s.push(p, TaskRecord, "r", m, nil)
	s.push(p, TaskSignal, "", nil, f)
	s.push(p, TaskCall, "call", nil, nil)
	s.push(q, TaskWait, "", m, nil)
	s.work(q, "q")
	s.push(r, TaskAwait, "", nil, f)
	s.work(r, "r1")
	require.Equal(t, []string{"a"}, s.ready())
	s.end("a", broken)
	got := s.ready()
	slices.Sort(got)
	require.Equal(t, []string{"!b", "!call", "!q", "!r", "!r1"}, got)
	for _, queue := range []*Queue{p, q, r} {
		require.ErrorIs(t, queue.Err(), broken)
		require.True(t, queue.Idle())
	}
	require.ErrorContains(t, q.Err(), `wait for event "grads ready"`)
	require.ErrorContains(t, r.Err(), `await notify "go"`)

	s.work(p, "late")
	require.Equal(t, []string{"!late"}, s.ready())
	s.o.Fail(p, errors.New("other"))
	require.ErrorIs(t, p.Err(), broken, "the first error stays")
	s.o.Abort(p, errors.New("again"))
	s.work(p, "anew")
	require.Equal(t, []string{"anew"}, s.ready())
	s.o.Abort(r, errors.New("again"))
	s.o.Reset(f)
	s.push(r, TaskAwait, "", nil, f)
	s.work(r, "r2")
	s.o.Set(f, nil)
	require.Equal(t, []string{"r2"}, s.ready())
}

func TestOrderAbort(t *testing.T) {
	s, p, q, f := &script{t: t}, &Queue{}, &Queue{}, &Flag{}
	cause := errors.New("stop")
	running := s.work(p, "a")
	s.work(p, "b")
	s.push(p, TaskCall, "call", nil, nil)
	s.push(q, TaskAwait, "", nil, f)
	s.push(q, TaskCall, "q", nil, nil)
	other := &Queue{}
	s.push(other, TaskAwait, "", nil, f)
	s.work(other, "o")
	require.Equal(t, []string{"a"}, s.ready())
	s.o.Abort(p, cause)
	s.o.Abort(q, cause)
	require.Equal(t, []string{"!q"}, s.ready(), "what ran goes on; what is held is dropped")
	s.work(p, "next")
	require.ErrorIs(t, running.Err, cause)
	s.end("a", errors.New("too late to matter"))
	require.Equal(t, []string{"!b"}, s.ready()[:1])
	require.Equal(t, []string{"next"}, names(s.begun))
	require.NoError(t, p.Err())
	s.o.Set(f, nil)
	require.Equal(t, []string{"o"}, s.ready(), "the aborted stream is no longer in line")
}

func names(list []*Task) (names []string) {
	for _, t := range list {
		names = append(names, t.Data.(string))
	}
	return names
}

func TestOrderWatch(t *testing.T) {
	s, q, m := &script{t: t}, &Queue{}, &Mark{}
	w := &Task{Kind: TaskCall, Data: "w"}
	s.o.Watch(m, w)
	require.Equal(t, []string{"w"}, s.ready(), "never recorded")
	s.end("w", nil)
	s.work(q, "a")
	s.push(q, TaskRecord, "r", m, nil)
	s.o.Watch(m, &Task{Kind: TaskCall, Data: "w"})
	require.Equal(t, []string{"a"}, s.ready())
	s.o.Abort(q, errors.New("stop"))
	s.end("a", nil)
	require.Equal(t, []string{"!r", "!w"}, s.ready())
}

// set is some work, by number.
type set map[int]bool

func union(a, b set) set {
	c := maps.Clone(a)
	maps.Copy(c, b)
	return c
}

// A dumb model of the rules: what must have ended before a task begins is the work
// before it on its stream, and what was before the records that the stream has
// waited for. Random schedules hold to it, and none hangs.
func TestOrderRandomSchedules(t *testing.T) {
	for seed := range uint64(200) {
		randomSchedule(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func randomSchedule(t *testing.T, seed uint64) {
	const streams = 4
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &script{t: t}
	var queues [streams]Queue
	var marks [3]Mark
	var before [streams]set // what the next task of a stream comes after
	for i := range before {
		before[i] = set{}
	}
	recorded, after, ended := map[*Mark]set{}, map[string]set{}, set{}
	check := func() {
		for _, name := range s.ready() {
			for need := range after[name] {
				if !ended[need] {
					t.Errorf("%s began before w%d had ended", name, need)
				}
			}
		}
	}
	end := func() {
		if len(s.begun) > 0 {
			name, n := s.begun[rng.IntN(len(s.begun))].Data.(string), 0
			_, err := fmt.Sscanf(name, "w%d", &n)
			require.NoError(t, err)
			ended[n] = true
			s.end(name, nil)
		}
		check()
	}
	n := 0
	for range 200 {
		i, m := rng.IntN(streams), &marks[rng.IntN(len(marks))]
		q := &queues[i]
		switch rng.IntN(5) {
		case 0:
			s.push(q, TaskRecord, "record", m, nil)
			recorded[m] = maps.Clone(before[i])
		case 1:
			s.push(q, TaskWait, "", m, nil)
			before[i] = union(before[i], recorded[m])
		case 2:
			end()
		default:
			name := fmt.Sprint("w", n)
			after[name] = maps.Clone(before[i])
			before[i][n] = true
			n++
			s.work(q, name)
		}
		check()
	}
	for len(s.begun) > 0 {
		end()
	}
	if len(ended) != n {
		t.Errorf("%d of %d tasks have run: waiting for what was recorded earlier hangs", len(ended), n)
	}
}

func TestOrderFeedsADeviceAhead(t *testing.T) {
	s, q := &script{t: t}, &Queue{}
	f := &Flag{Name: "f"}
	a, b := s.work(q, "a"), s.work(q, "b")
	call := s.push(q, TaskCall, "call", nil, nil)
	s.push(q, TaskSignal, "", nil, f)
	require.Equal(t, []string{"a"}, s.ready())
	s.o.Pass(a)
	require.Equal(t, []string{"b"}, s.ready())
	s.o.Pass(b)
	require.Empty(t, s.ready(), "a callback comes when all before has ended")
	require.Equal(t, 4, q.Len())
	require.Panics(t, func() { s.o.Done(b, nil) }, "not in order")
	s.o.Done(a, nil)
	require.Empty(t, s.ready())
	s.o.Done(b, nil)
	require.Equal(t, []string{"call"}, s.ready())
	require.Panics(t, func() { s.o.Pass(call) })
	require.False(t, f.set)
	s.o.Done(call, nil)
	require.True(t, f.set && q.Idle())
}

func TestOrderOfDevicesThatWaitForEachOther(t *testing.T) {
	for _, chain := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			s, p, q, m := &script{t: t}, &Queue{}, &Queue{}, &Mark{Name: "m"}
			s.o.Chain = chain
			a := s.work(p, "a")
			record := s.push(p, TaskRecord, "record", m, nil)
			wait := s.push(q, TaskWait, "wait", m, nil)
			b := s.work(q, "b")
			require.Same(t, record, wait.Awaited())
			require.Same(t, a, s.o.Ready())
			require.Nil(t, s.o.Ready(), "nothing to wait for is on the device")
			s.o.Pass(a)
			require.Same(t, record, s.o.Ready())
			s.o.Pass(record)
			if chain {
				require.Same(t, wait, s.o.Ready())
				s.o.Pass(wait)
				require.Same(t, b, s.o.Ready())
				s.o.Pass(b)
			}
			require.Nil(t, s.o.Ready())
			require.True(t, m.InUse())
			var err error
			if fails {
				err = errors.New("broken")
			}
			s.o.Done(a, err)
			s.o.Done(record, err)
			require.ErrorIs(t, s.o.Broken(wait), err)
			if chain {
				s.o.Done(wait, nil)
				s.o.Done(b, q.Err())
			} else {
				require.Same(t, b, s.o.Ready())
				require.ErrorIs(t, b.Err, err)
				s.o.Done(b, nil)
			}
			require.ErrorIs(t, q.Err(), err)
			require.ErrorIs(t, p.Err(), err)
			require.True(t, p.Idle() && q.Idle())
			require.False(t, m.InUse())
		}
	}
}

func TestOrderAbortsWhatADeviceHas(t *testing.T) {
	s, q, m := &script{t: t}, &Queue{}, &Mark{Name: "m"}
	cause := errors.New("cause")
	a := s.work(q, "a")
	record := s.push(q, TaskRecord, "record", m, nil)
	require.Same(t, a, s.o.Ready())
	s.o.Pass(a)
	require.Same(t, record, s.o.Ready())
	s.o.Pass(record)
	s.o.Abort(q, cause)
	b := s.work(q, "b")
	require.Same(t, b, s.o.Ready(), "what comes later is given behind")
	s.o.Done(a, errors.New("of what was aborted"))
	s.o.Done(record, nil)
	_, err := m.Done()
	require.ErrorIs(t, err, cause)
	require.NoError(t, q.Err())
	s.o.Done(b, nil)
	require.True(t, q.Idle())
}
