package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kolo-ccl/kolo"
)

// minRounds is the fewest rounds of which figures may be quoted.
const minRounds = 5

// options are what the flags say.
type options struct {
	ranks       []int
	sizes       []int64
	collectives []kolo.Collective
	programs    []string
	mpi         []string // names of mpiSettings
	rounds      int
	repeats     int
	budget      time.Duration
	think       time.Duration
	limit       time.Duration
	threads     int
	separated   bool
	busy        bool
	install     bool
	between     string
	bind        bool
	out         string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if args := os.Args[1:]; len(args) > 1 && args[0] == "part" {
		err = runPart(ctx, args[1], args[2:])
	} else {
		// The system ends a child when the thread that started it ends.
		runtime.LockOSThread()
		var o options
		if o, err = parse(args); err == nil {
			err = run(ctx, o, os.Stdout)
		}
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("peers", "error", err)
		stop()
		os.Exit(1)
	}
}

// quick sets the flags of a short run, but for those that are given.
func quick(f *flag.FlagSet) error {
	values := map[string]string{
		"rounds": "2", "repeats": "2", "budget": "3ms",
		"ranks": "2,4", "sizes": "8,64KiB,1MiB", "collectives": "AllReduce,AllGather",
	}
	f.Visit(func(given *flag.Flag) { delete(values, given.Name) })
	for name, value := range values {
		if err := f.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

func parse(args []string) (options, error) {
	o := options{}
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	ranks := f.String("ranks", "2,4,8", "numbers of ranks")
	sizes := f.String("sizes", "8,1KiB,64KiB,1MiB,16MiB,64MiB", "sizes in bytes of the whole vector")
	names := f.String("collectives", "AllReduce,AllGather,ReduceScatter,Broadcast,AllToAll,Barrier", "what to measure")
	programs := f.String("programs", "kolo,plain,openmpi,floor", "what to compare; floor includes one-pass")
	mpi := f.String("mpi", "default", "settings of Open MPI, the best of which counts: "+mpiNames())
	fast := f.Bool("quick", false, "a short run, to see whether everything works")
	f.IntVar(&o.rounds, "rounds", minRounds, "rounds; medians and ranges are over the rounds")
	f.IntVar(&o.repeats, "repeats", 3, "repetitions within a process; their median counts")
	f.DurationVar(&o.budget, "budget", 20*time.Millisecond, "about how long a repetition takes")
	f.DurationVar(&o.think, "think", 0, "work of each rank before each call, without memory; its own time is taken off")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "longest time of a process")
	f.IntVar(&o.threads, "threads", runtime.NumCPU(), "threads of the floors")
	f.BoolVar(&o.separated, "separated", true, "measure also with a barrier before each call")
	f.BoolVar(&o.busy, "busy", false, "take one core away: a process pinned to it spins all the time")
	f.BoolVar(&o.install, "install", false, "install what is missing, as root with apt-get")
	f.StringVar(&o.between, "between", "", "one process for each rank of kolo, joined by this transport: shm or tcp")
	f.BoolVar(&o.bind, "bind", false, "bind those processes to a core each, where there is one for each, as Open MPI's always are")
	f.StringVar(&o.out, "out", "bench/out", "directory of the results")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("argument %q is not understood: all options begin with a dash", f.Arg(0))
	}
	if *fast {
		if err := quick(f); err != nil {
			return o, err
		}
	}
	return o, errors.Join(
		parseList("-ranks", *ranks, &o.ranks, parseRanks),
		parseList("-sizes", *sizes, &o.sizes, parseSize),
		parseList("-collectives", *names, &o.collectives, parseCollective),
		parseList("-programs", *programs, &o.programs, parseProgram),
		parseList("-mpi", *mpi, &o.mpi, parseMPI),
		o.validate())
}

// parseList reads a list with commas.
func parseList[T any](name, list string, to *[]T, one func(string) (T, error)) error {
	for s := range strings.SplitSeq(list, ",") {
		x, err := one(strings.TrimSpace(s))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*to = append(*to, x)
	}
	return nil
}

func parseRanks(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 2 || n > maxRanks {
		return 0, fmt.Errorf("%q is no number of ranks from 2 to %d", s, maxRanks)
	}
	return n, nil
}

func (o options) validate() error {
	switch {
	case o.rounds < 1 || o.repeats < 1 || o.repeats > 64 || o.threads < 1:
		return errors.New("-rounds, -repeats and -threads must be at least 1, -repeats at most 64")
	case o.bind && o.between == "":
		return errors.New("-bind is for the processes of -between")
	case o.between != "" && !slices.Contains(transports, o.between):
		return fmt.Errorf("-between is one of %s", strings.Join(transports, ", "))
	case o.between != "" && slices.Contains(o.programs, "plain"):
		return errors.New("-between: the program plain has no processes; say which -programs, for instance kolo,openmpi")
	case o.budget < time.Millisecond || o.limit < time.Second || o.think < 0:
		return errors.New("-budget must be at least 1ms, -limit at least 1s, -think not negative")
	}
	return nil
}

// run builds, measures and reports to w and the directory of the results.
func run(ctx context.Context, o options, w io.Writer) (err error) {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("directory of the results (-out): %w", err)
	}
	dir, err := os.MkdirTemp("", "kolo-peers-")
	if err != nil {
		return fmt.Errorf("directory for the build: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := builder{dir: dir, install: o.install}
	parts, notes := b.parts(ctx, o)
	if len(parts) == 0 {
		return fmt.Errorf("nothing can run here: %s", strings.Join(notes, "; "))
	}
	host := describe(ctx)
	if o.busy {
		end, err := startBusy(ctx)
		if err != nil {
			return fmt.Errorf("-busy: %w", err)
		}
		defer end()
	}
	m := newMeeting(o, parts)
	for _, n := range notes {
		m.notes.add(n, "")
	}
	if err := m.measure(ctx); err != nil {
		return fmt.Errorf("interrupted, nothing was written: %w", err)
	}
	return report{options: o, host: host, samples: m.samples, notes: m.notes.lines()}.write(w)
}
