package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// rendezvous is the actor where the processes of a world find each other.
//
//	             a process comes       all ranks have come
//	gathering ------------------> gathering ------------------> complete, epoch n
//	    ^   \                                                       |
//	    |    +-- the deadline: all that came hear who has not       | a member that was
//	    +----------------------------------------------------------+ lost comes again
//
// One that serves a single world, in the process of its rank 0, stays complete: the
// next epoch has a rendezvous of its own.
type rendezvous struct {
	over bool   // its server ends: nobody waits here any more
	only string // the job of the one world; "" for a standing rendezvous
	jobs map[string]*gathering
	open map[*guest]bool // whose streams are
	now  func() time.Time
	wake func(time.Duration) // asks for a tick
}

// gathering is the processes of one job that have come, and its latest world.
type gathering struct {
	job     string
	size    int
	attempt uint64
	guests  []*guest
	end     time.Time // of the patience of the first that runs out of it
	notes   []string
	world   *roster
	living  map[string]*guest // members of world whose stream is open, by nonce

	rows    map[int]*row // whom the members of world have reached, since one of them has told
	rowsEnd time.Time    // when the others are not waited for any more
	reach   *ConnectError
}

// guest is a process at the rendezvous.
type guest struct {
	hello
	answer chan answer
}

// maxAnswers is more than a guest gets.
const maxAnswers = 8

// say gives the guest an answer.
func (g *guest) say(a answer) {
	select {
	case g.answer <- a:
	default: // it tells more than it should, and does not hear
	}
}

// meeting is what a rendezvous handles.
type meeting interface{ isMeeting() }

type arrived struct{ g *guest }
type gone struct{ g *guest }
type tells struct {
	g *guest
	r *row
}
type meetTick struct{}
type dismissal struct{ done chan struct{} }

func (*arrived) isMeeting()   {}
func (*gone) isMeeting()      {}
func (*tells) isMeeting()     {}
func (meetTick) isMeeting()   {}
func (*dismissal) isMeeting() {}

func newRendezvous(only string, now func() time.Time, wake func(time.Duration)) *rendezvous {
	return &rendezvous{only: only, jobs: map[string]*gathering{}, open: map[*guest]bool{}, now: now, wake: wake}
}

// Handle does what the message says.
func (r *rendezvous) Handle(m meeting) error {
	switch m := m.(type) {
	case *arrived:
		r.open[m.g] = true
		if a := r.arrive(m.g); a != nil {
			m.g.say(*a)
		}
		if r.over {
			m.g.say(answer{last: true})
		}
	case *gone:
		delete(r.open, m.g)
		r.leave(m.g)
	case *tells:
		r.hear(m.g, m.r)
	case meetTick:
		r.tick()
	case *dismissal:
		r.dismiss()
		close(m.done)
	default:
		panic(fmt.Sprintf("cluster: unknown message %T", m))
	}
	return nil
}

func refuse(format string, args ...any) *answer {
	return &answer{Refused: fmt.Sprintf(format, args...)}
}

// dismiss answers all that wait, since the server ends.
func (r *rendezvous) dismiss() {
	r.over = true
	for _, j := range r.jobs {
		for _, g := range j.guests {
			g.say(*ends())
		}
		j.guests = nil
	}
	for g := range r.open {
		g.say(answer{last: true})
	}
}

func ends() *answer {
	return &answer{Retry: "the process that serves the rendezvous ends (see its own output)"}
}

// arrive takes a process in, or answers it.
func (r *rendezvous) arrive(g *guest) *answer {
	if r.over {
		return ends()
	}
	if g.Protocol != protocol {
		return refuse("protocol %d; this rendezvous speaks %d: all processes need one version of kolo", g.Protocol, protocol)
	}
	if r.only != "" && g.Job != r.only {
		return refuse("this rendezvous is of job %q, not %q: another job uses the address", r.only, g.Job)
	}
	if err := checkHello(&g.hello); err != nil {
		return refuse("%v", err)
	}
	j := r.jobs[g.Job]
	if j == nil {
		if len(r.jobs) >= maxJobs {
			return &answer{Retry: fmt.Sprintf("the rendezvous has %d jobs", maxJobs)}
		}
		j = &gathering{job: g.Job}
		r.jobs[g.Job] = j
	}
	if j.world != nil {
		if a := r.again(j, g); a != nil {
			return a
		}
	}
	return r.admit(j, g)
}

// checkHello says what is wrong with what a process says of itself.
func checkHello(h *hello) error {
	if h.Size < 1 || h.Size > maxRanks || len(h.Member.Ranks) == 0 || len(h.Member.Ranks) > h.Size || len(h.Member.Addresses) > maxHosts {
		return fmt.Errorf("%w: a world of %d ranks, %d of them in this process", kolo.ErrArgument, h.Size, len(h.Member.Ranks))
	}
	seen := map[kolo.Rank]bool{}
	for _, k := range h.Member.Ranks {
		if k < 0 || int(k) >= h.Size {
			return fmt.Errorf("%w: rank %d; the world has ranks 0 to %d", kolo.ErrArgument, int(k), h.Size-1)
		}
		if seen[k] {
			return fmt.Errorf("%w: this process claims rank %d twice", kolo.ErrArgument, int(k))
		}
		seen[k] = true
	}
	return nil
}

// again answers a process that comes when the world is complete, or lets it begin the
// next epoch.
func (r *rendezvous) again(j *gathering, g *guest) *answer {
	epoch := j.world.Epoch
	if g.Attempt < j.attempt {
		return refuse("stale: this process is of attempt %d, and the job is at attempt %d", g.Attempt, j.attempt)
	}
	if g.After != 0 && g.After < epoch {
		return refuse("stale: this process comes after epoch %d, and the job is at epoch %d already", g.After, epoch)
	}
	holder := j.holder(g.Member.Ranks)
	if g.After != epoch && g.Attempt == j.attempt && holder != nil {
		return refuse("duplicate: %v is claimed, and epoch %d has %v, which lives", &g.Member, epoch, &holder.Member)
	}
	if r.only != "" {
		return &answer{Retry: fmt.Sprintf("epoch %d of job %q is complete, and its rank 0 has not begun another", epoch, j.job)}
	}
	return nil
}

// holder is the living member of the world that has one of the ranks.
func (j *gathering) holder(ranks []kolo.Rank) *guest {
	for _, g := range j.living {
		for _, k := range ranks {
			if slices.Contains(g.Member.Ranks, k) {
				return g
			}
		}
	}
	return nil
}

// admit adds a process to those that have come.
func (r *rendezvous) admit(j *gathering, g *guest) *answer {
	if len(j.guests) == 0 {
		j.size, j.attempt = g.Size, max(j.attempt, g.Attempt)
	}
	switch {
	case g.Attempt < j.attempt:
		return refuse("stale: this process is of attempt %d, and the job is at attempt %d", g.Attempt, j.attempt)
	case g.Attempt > j.attempt:
		for _, old := range j.guests {
			old.say(*refuse("stale: this process is of attempt %d, and attempt %d has begun", old.Attempt, g.Attempt))
		}
		j.guests, j.notes, j.attempt, j.size = nil, nil, g.Attempt, g.Size
	case g.Size != j.size:
		return j.note(refuse("%v expects a world of %d ranks; %v expects %d", &g.Member, g.Size, &j.guests[0].Member, j.size))
	}
	for _, other := range j.guests {
		for _, k := range g.Member.Ranks {
			if slices.Contains(other.Member.Ranks, k) {
				return j.note(refuse("duplicate: rank %d is claimed by pid %d on %s and by pid %d on %s", int(k),
					other.Member.PID, other.Member.Host.Name, g.Member.PID, g.Member.Host.Name))
			}
		}
	}
	end := r.now().Add(g.Wait)
	if len(j.guests) == 0 || end.Before(j.end) {
		j.end = end
	}
	j.guests = append(j.guests, g)
	if j.ranks() == j.size {
		r.complete(j)
	}
	r.awake()
	return nil
}

func (j *gathering) note(a *answer) *answer {
	if len(j.notes) < maxNotes {
		j.notes = append(j.notes, a.Refused)
	}
	return a
}

func (j *gathering) ranks() (n int) {
	for _, g := range j.guests {
		n += len(g.Member.Ranks)
	}
	return n
}

// complete gives all that have come the list of members.
func (r *rendezvous) complete(j *gathering) {
	slices.SortFunc(j.guests, func(a, b *guest) int {
		return cmp.Compare(slices.Min(a.Member.Ranks), slices.Min(b.Member.Ranks))
	})
	epoch := uint64(r.now().UnixNano())
	if j.world != nil {
		epoch = max(epoch, j.world.Epoch+1)
	}
	j.world = &roster{Job: j.job, Epoch: epoch, Size: j.size}
	j.living = map[string]*guest{}
	for _, g := range j.guests {
		j.world.Members = append(j.world.Members, g.Member)
		j.living[g.Member.Nonce] = g
	}
	for _, g := range j.guests {
		g.say(answer{World: j.world})
	}
	j.guests, j.notes = nil, nil
	j.rows, j.reach = nil, nil
}

// leave forgets a process whose stream has ended.
func (r *rendezvous) leave(g *guest) {
	j := r.jobs[g.Job]
	if j == nil {
		return
	}
	j.guests = slices.DeleteFunc(j.guests, func(x *guest) bool { return x == g })
	if j.living[g.Member.Nonce] == g {
		delete(j.living, g.Member.Nonce)
		if j.rows != nil && j.reach == nil {
			r.sum(j)
		}
	}
	if r.only == "" && len(j.guests) == 0 && len(j.living) == 0 {
		delete(r.jobs, g.Job)
	}
}

// tick tells those whose patience is over who has not come.
func (r *rendezvous) tick() {
	for _, j := range r.jobs {
		if j.rows != nil && j.reach == nil {
			r.sum(j)
		}
		if len(j.guests) == 0 || j.end.After(r.now()) {
			continue
		}
		a := answer{Missing: j.absent()}
		for _, g := range j.guests {
			g.say(a)
		}
		j.guests, j.notes = nil, nil
	}
	r.awake()
}

// awake asks for a tick when the time of some job is over.
func (r *rendezvous) awake() {
	var first time.Time
	for _, j := range r.jobs {
		if len(j.guests) > 0 && (first.IsZero() || j.end.Before(first)) {
			first = j.end
		}
		if j.rows != nil && j.reach == nil && (first.IsZero() || j.rowsEnd.Before(first)) {
			first = j.rowsEnd
		}
	}
	if !first.IsZero() {
		r.wake(first.Sub(r.now()))
	}
}

// hear takes note of whom a member has reached. The first of them is one that cannot join: then
// all others are asked.
func (r *rendezvous) hear(g *guest, x *row) {
	j := r.jobs[g.Job]
	if j == nil || j.world == nil || x.Epoch != j.world.Epoch || !x.valid(j.world) || j.world.Members[x.Process].Nonce != g.Member.Nonce {
		return // it is of an older world
	}
	if j.rows == nil {
		j.rows, j.rowsEnd = map[int]*row{}, r.now().Add(reachTime)
		for _, other := range j.living {
			if other != g {
				other.say(answer{Tell: true})
			}
		}
	}
	j.rows[x.Process] = x
	if j.reach != nil { // it is late, and nobody else is concerned
		g.say(answer{Reach: newConnectError(j.world.Members, j.rows)})
		return
	}
	r.sum(j)
	r.awake()
}

// valid says whether a row can be of a world.
func (x *row) valid(w *roster) bool {
	known := func(q int) bool { return q >= 0 && q < len(w.Members) }
	for _, f := range x.Failed {
		if len(f.To) == 0 || !known(slices.Min(f.To)) || !known(slices.Max(f.To)) || slices.Contains(f.To, x.Process) {
			return false
		}
	}
	return known(x.Process)
}

// sum tells all members what all have told, when the time is over or all have.
func (r *rendezvous) sum(j *gathering) {
	for q := range j.world.Members {
		if j.rows[q] == nil && j.living[j.world.Members[q].Nonce] != nil && r.now().Before(j.rowsEnd) {
			return
		}
	}
	j.reach = newConnectError(j.world.Members, j.rows)
	for _, g := range j.living {
		g.say(answer{Reach: j.reach})
	}
}

// absent lists who has come and who has not.
func (j *gathering) absent() *absent {
	a := &absent{Size: j.size, Notes: j.notes}
	there := make([]bool, j.size)
	for _, g := range j.guests {
		a.Came = append(a.Came, g.Member)
		for _, k := range g.Member.Ranks {
			there[k] = true
		}
	}
	slices.SortFunc(a.Came, func(x, y Member) int { return cmp.Compare(slices.Min(x.Ranks), slices.Min(y.Ranks)) })
	for k, ok := range there {
		if !ok {
			a.Missing = append(a.Missing, kolo.Rank(k))
		}
	}
	return a
}
