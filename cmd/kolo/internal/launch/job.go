package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Job is a program and where it runs.
type Job struct {
	Args  []string // program and arguments
	Hosts []Host   // where; process i runs in the i-th slot. Validate says what is wrong
	// Master is the address that the processes meet at, MASTER_ADDR and MASTER_PORT.
	Master string
	Port   int
	Env    []string // KEY=value, for all processes
	// Shell is the program, and its first arguments, that runs a command on another
	// host: it gets the host's name and one argument for that host's shell.
	Shell []string
	// Patience is how long the others may go on when a process has failed, so that they
	// can say what they saw; then they are asked to end (SIGTERM).
	Patience time.Duration
	// Grace is how long a process that was asked to end may take before it is killed.
	Grace time.Duration
	// Bind is which processors each process may use; "" is BindNone.
	Bind Bind
	// KeepGoing lets the others go on for as long as they like. Run gives the first
	// *Failure all the same.
	KeepGoing bool
	// Out and Err get the output of all processes, whole lines, each behind Prefix with
	// its rank. An empty Prefix: nothing is put in front.
	Out, Err io.Writer
	Prefix   string // for instance "[%d] "
	// Log gets what the launcher itself has to say, a line each.
	Log io.Writer
	Now func() time.Time
}

// Host is a machine and how many processes it takes.
type Host struct {
	Name  string // "" is this machine
	Slots int
}

// ParseHosts reads a host file: a line for each host, "name" or "name slots=4", or
// "name:4"; # begins a comment. The same host may come again.
func ParseHosts(text string) ([]Host, error) {
	var list []Host
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		h := Host{Name: words[0], Slots: 1}
		count := ""
		if name, after, ok := strings.Cut(h.Name, ":"); ok && !strings.Contains(after, ":") {
			h.Name, count = name, after
		}
		for _, w := range words[1:] {
			value, ok := strings.CutPrefix(w, "slots=")
			if !ok {
				return nil, fmt.Errorf("%w: host file, line %d: %q; want slots=N", kolo.ErrArgument, n, w)
			}
			count = value
		}
		if count != "" {
			slots, err := strconv.Atoi(count)
			if err != nil || slots < 1 || slots > maxProcesses {
				return nil, fmt.Errorf("%w: host file, line %d: %q slots; want 1 to %d", kolo.ErrArgument, n, count, maxProcesses)
			}
			h.Slots = slots
		}
		if strings.HasPrefix(h.Name, "-") {
			return nil, fmt.Errorf("%w: host file, line %d: %q is no name of a host", kolo.ErrArgument, n, h.Name)
		}
		list = append(list, h)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the host file names no host", kolo.ErrArgument)
	}
	return list, nil
}

// maxProcesses is the most processes of a job.
const maxProcesses = 1 << 16

// Spread gives n processes to the slots of the hosts, in order; n = 0 fills all.
func Spread(hosts []Host, n int) ([]Host, error) {
	all := 0
	for _, h := range hosts {
		all += h.Slots
	}
	if n == 0 {
		n = all
	}
	if n > all || n > maxProcesses {
		return nil, fmt.Errorf("%w: %d processes; the hosts have %d slots, and a job at most %d", kolo.ErrArgument, n, all, maxProcesses)
	}
	var list []Host
	for _, h := range hosts {
		if k := min(h.Slots, n); k > 0 {
			list = append(list, Host{h.Name, k})
			n -= k
		}
	}
	return list, nil
}

// place is what one process is told.
type place struct {
	rank, world, local, localWorld int
	host                           Host
	on                             core // processors; nil: those of the launcher
}

// places are the processes of the job.
func (j *Job) places() []place {
	world := 0
	for _, h := range j.Hosts {
		world += h.Slots
	}
	each := map[string]int{} // of a host that comes again
	for _, h := range j.Hosts {
		each[h.Name] += h.Slots
	}
	next := map[string]int{}
	var list []place
	for _, h := range j.Hosts {
		for range h.Slots {
			list = append(list, place{rank: len(list), world: world, local: next[h.Name], localWorld: each[h.Name], host: h})
			next[h.Name]++
		}
	}
	return list
}

// Validate says what is wrong with the job.
func (j *Job) Validate() error {
	switch {
	case len(j.Args) == 0:
		return fmt.Errorf("%w: no program to run; put it behind --", kolo.ErrArgument)
	case len(j.Hosts) == 0:
		return fmt.Errorf("%w: no host to run on", kolo.ErrArgument)
	case j.Port < 0 || j.Port > 65535:
		return fmt.Errorf("%w: port %d", kolo.ErrArgument, j.Port)
	}
	for _, h := range j.Hosts {
		if h.Name != "" && len(j.Shell) == 0 {
			return fmt.Errorf("%w: host %s is another machine, and there is no remote shell to reach it", kolo.ErrArgument, h.Name)
		}
	}
	for _, e := range j.Env {
		if key, _, ok := strings.Cut(e, "="); !ok || !isName(key) {
			return fmt.Errorf("%w: environment %q; want NAME=value", kolo.ErrArgument, e)
		}
	}
	return j.checkBind()
}

// isName says whether s may name a variable of a shell.
func isName(s string) bool {
	for i, c := range s {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// Failure is the first process that has failed.
type Failure struct {
	Rank int
	Host string // "" is this machine
	Pid  int
	Code int // of its exit; 128 and the number of a signal
	Err  error
}

// Error says which process, and how it ended.
func (f *Failure) Error() string {
	where := ""
	if f.Host != "" {
		where = " on " + f.Host
	}
	if f.Pid != 0 { // it was started
		where = fmt.Sprintf("%s (pid %d)", where, f.Pid)
	}
	return fmt.Sprintf("rank %d%s: %v", f.Rank, where, f.Err)
}

// Unwrap is how the process ended.
func (f *Failure) Unwrap() error { return f.Err }

// Run starts all processes and returns when all have ended: nil if all ended well, or
// the first *Failure, or the cause of ctx if that ended them. Nothing is left running:
// what does not end when it is asked to is killed.
func (j *Job) Run(ctx context.Context) error {
	if err := j.Validate(); err != nil {
		return err
	}
	var mu sync.Mutex // the three may be one
	out, errs, log := newSink(&locked{&mu, j.Out}), newSink(&locked{&mu, j.Err}), &locked{&mu, j.Log}
	on, err := j.bind(log)
	if err != nil {
		return err
	}
	stop, ask := context.WithCancelCause(context.Background()) // asks all to end
	defer ask(nil)
	unhook := context.AfterFunc(ctx, func() { ask(fmt.Errorf("%w: %w", errAsked, context.Cause(ctx))) })
	defer unhook()
	keeper := newKeeper()
	defer keeper.close()
	var wg sync.WaitGroup
	ended := make(chan *Failure)
	list := j.places()
	for i, p := range list {
		if on != nil {
			p.on = on[i]
		}
		// ends with its process, which ends soon after stop
		wg.Go(func() { ended <- j.process(stop, p, keeper, out, errs) })
	}
	first := j.watch(stop, ask, len(list), ended, log)
	wg.Wait()
	if cause := ctx.Err(); cause != nil && (first == nil || errors.Is(first.Err, errAsked)) {
		return fmt.Errorf("%w: %w", kolo.ErrCanceled, context.Cause(ctx))
	}
	if first == nil {
		return nil
	}
	return first
}

// watch hears of each process that ends. The first failure ends the others, after
// Patience.
func (j *Job) watch(stop context.Context, ask context.CancelCauseFunc, left int, ended <-chan *Failure, log io.Writer) (first *Failure) {
	began := j.Now()
	var patience <-chan time.Time
	for left > 0 {
		select {
		case f := <-ended:
			left--
			if f == nil || first != nil && stop.Err() != nil {
				continue // ended well, or because it was asked to
			}
			say(log, "%v after %v", f, j.Now().Sub(began).Round(time.Millisecond))
			if first != nil {
				continue
			}
			first = f
			if left > 0 && !j.KeepGoing {
				timer := time.NewTimer(j.Patience)
				defer timer.Stop()
				patience = timer.C
			}
		case <-patience:
			say(log, "asking the other %d to end", left)
			ask(fmt.Errorf("%w because another process had failed", errAsked))
		}
	}
	return first
}

// errAsked is wrapped by why the launcher has ended a process.
var errAsked = errors.New("asked to end")

func say(log io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(log, "kolo run: "+format+"\n", args...) // the exit code says the rest
}

// locked is a writer that several goroutines use, or none.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	if l.w == nil {
		return len(b), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// environment is what a process is told.
func (j *Job) environment(p place) []string {
	return append([]string{
		"RANK=" + strconv.Itoa(p.rank),
		"WORLD_SIZE=" + strconv.Itoa(p.world),
		"LOCAL_RANK=" + strconv.Itoa(p.local),
		"LOCAL_WORLD_SIZE=" + strconv.Itoa(p.localWorld),
		"MASTER_ADDR=" + cmp.Or(j.Master, "127.0.0.1"),
		"MASTER_PORT=" + strconv.Itoa(j.Port),
	}, j.Env...)
}
