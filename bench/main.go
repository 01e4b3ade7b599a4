package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// options are what the flags say.
type options struct {
	ranks       []int
	sizes       []int64
	collectives []kolo.Collective
	algorithm   string
	rounds      int
	round       time.Duration // about how long a round takes
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(context.Background(), o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("bench", "error", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	ranks := f.String("ranks", "2,4,8", "numbers of ranks")
	sizes := f.String("sizes", "8,1KiB,64KiB,1MiB,16MiB,64MiB", "sizes in bytes of the whole vector")
	names := f.String("collectives", "AllReduce,AllGather,ReduceScatter,Broadcast,AllToAll,Barrier", "what to measure")
	f.StringVar(&o.algorithm, "algorithm", "", "an algorithm to force; empty: the choice by cost")
	f.IntVar(&o.rounds, "rounds", 7, "rounds of each measurement; the median counts")
	f.DurationVar(&o.round, "round", 30*time.Millisecond, "about how long a round takes")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, s := range strings.Split(*ranks, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-ranks: %q is no number of ranks", s)
		}
		o.ranks = append(o.ranks, n)
	}
	for _, s := range strings.Split(*sizes, ",") {
		n, err := parseSize(s)
		if err != nil {
			return o, fmt.Errorf("-sizes: %w", err)
		}
		o.sizes = append(o.sizes, n)
	}
	for _, s := range strings.Split(*names, ",") {
		i := slices.IndexFunc(kolo.Collectives(), func(c kolo.Collective) bool { return c.String() == s })
		if i < 0 {
			return o, fmt.Errorf("-collectives: no collective %q", s)
		}
		o.collectives = append(o.collectives, kolo.Collectives()[i])
	}
	return o, nil
}

// parseSize reads 8, 64KiB, 1MiB or 1GiB.
func parseSize(s string) (int64, error) {
	number, shift := s, 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if x, ok := strings.CutSuffix(s, unit); ok {
			number, shift = x, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > 1<<40>>shift {
		return 0, fmt.Errorf("%q is no size", s)
	}
	return n << shift, nil
}

func sizeString(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if s := 30 - 10*i; n >= 1<<s && n%(1<<s) == 0 {
			return fmt.Sprintf("%d %s", n>>s, unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

func run(ctx context.Context, o options) error {
	fmt.Printf("kolo, ranks of one process: %s, %s/%s, GOMAXPROCS %d, float32 sum, medians of %d rounds\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), o.rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "collective\tranks\tsize\ttime us\tspread us\talgbw GB/s\tbusbw GB/s\tplain Go us\tratio\t")
	for _, p := range o.ranks {
		for _, c := range o.collectives {
			sizes := o.sizes
			if c == kolo.Barrier {
				sizes = []int64{0}
			}
			for _, size := range sizes {
				if err := row(ctx, w, o, c, p, size); err != nil {
					return fmt.Errorf("%v, %d ranks, %s: %w", c, p, sizeString(size), err)
				}
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// row measures one case and writes its line.
func row(ctx context.Context, w *tabwriter.Writer, o options, c kolo.Collective, p int, size int64) error {
	size = (size + int64(4*p) - 1) / int64(4*p) * int64(4*p)
	ours, err := newTeam(ctx, o, c, p, size)
	if err != nil {
		return err
	}
	teams := []team{ours}
	if c == kolo.AllReduce {
		teams = append(teams, plainTeams(p, size)...)
	}
	times, err := measure(teams, o)
	for _, t := range teams {
		err = errors.Join(err, t.close())
	}
	if err != nil {
		return err
	}
	median := times[0][len(times[0])/2]
	algbw := float64(size) / float64(median.Nanoseconds())
	fmt.Fprintf(w, "%v\t%d\t%s\t%.2f\t%.2f..%.2f\t%.2f\t%.2f\t", c, p, sizeString(size), us(median),
		us(times[0][0]), us(times[0][len(times[0])-1]), algbw, algbw*busFactor(c, p))
	best := time.Duration(0)
	for _, list := range times[1:] {
		if m := list[len(list)/2]; best == 0 || m < best {
			best = m
		}
	}
	if best > 0 {
		fmt.Fprintf(w, "%.2f\t%.2f\t\n", us(best), float64(median)/float64(best))
	} else {
		fmt.Fprint(w, "-\t-\t\n")
	}
	return nil
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// busFactor is that of nccl-tests (doc/PERFORMANCE.md).
func busFactor(c kolo.Collective, p int) float64 {
	n := float64(p)
	switch c {
	case kolo.AllReduce:
		return 2 * (n - 1) / n
	case kolo.AllGather, kolo.ReduceScatter, kolo.AllToAll, kolo.Gather, kolo.Scatter:
		return (n - 1) / n
	}
	return 1
}

// team is a set of ranks that repeat one collective.
type team interface {
	// repeat does the collective n times on all ranks and returns the time of the
	// slowest.
	repeat(n int) (time.Duration, error)
	close() error
}

// measure times the teams in turn and returns for each its sorted times per call.
func measure(teams []team, o options) ([][]time.Duration, error) {
	times, count := make([][]time.Duration, len(teams)), make([]int, len(teams))
	for i, t := range teams {
		n := 1
		for { // find the number of calls that fills a round; this warms up too
			d, err := t.repeat(n)
			if err != nil {
				return nil, err
			}
			if d > o.round/4 || n >= 1<<20 {
				count[i] = max(1, int(float64(n)*float64(o.round)/float64(max(d, 1))))
				break
			}
			n *= 2
		}
	}
	for range o.rounds {
		for i, t := range teams {
			d, err := t.repeat(count[i])
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], d/time.Duration(count[i]))
		}
	}
	for _, list := range times {
		slices.Sort(list)
	}
	return times, nil
}

// koloTeam repeats a collective of the runtime.
type koloTeam struct {
	orders []chan int
	result chan time.Duration
	done   chan error
}

func newTeam(ctx context.Context, o options, c kolo.Collective, p int, size int64) (team, error) {
	t := &koloTeam{result: make(chan time.Duration, p), done: make(chan error, 1)}
	for range p {
		t.orders = append(t.orders, make(chan int, 1))
	}
	cfg := rank.Config{Algorithm: o.algorithm}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	// ended by close
	go func() {
		t.done <- cfg.Run(ctx, p, func(ctx context.Context, w *rank.World) error { return t.work(ctx, w, c, size) })
	}()
	return t, nil
}

// work is one rank: it does as many calls as it is told, again and again.
func (t *koloTeam) work(ctx context.Context, w *rank.World, c kolo.Collective, size int64) error {
	r := request(c, w, size)
	g := w.Group()
	if err := rank.Do(ctx, g, r); err != nil { // bring-up
		return err
	}
	for n := range t.orders[w.Rank()] {
		start := time.Now()
		for range n {
			if err := rank.Do(ctx, g, r); err != nil {
				return err
			}
		}
		t.result <- time.Since(start)
	}
	return nil
}

// request is the call of one rank, with its buffers.
func request(c kolo.Collective, w *rank.World, size int64) rank.Request {
	whole, part := rank.Alloc[float32](int(size/4)), rank.Alloc[float32](int(size/4)/w.Size())
	other := rank.Alloc[float32](int(size / 4))
	r := rank.Request{Collective: c}
	switch c {
	case kolo.AllReduce:
		r.In, r.Out = rank.Of(whole), rank.Of(whole)
	case kolo.Broadcast:
		r.Out = rank.Of(whole)
	case kolo.Reduce, kolo.AllToAll:
		r.In, r.Out = rank.Of(whole), rank.Of(other)
	case kolo.AllGather, kolo.Gather:
		r.In, r.Out = rank.Of(part), rank.Of(whole)
	case kolo.ReduceScatter, kolo.Scatter:
		r.In, r.Out = rank.Of(whole), rank.Of(part)
	}
	return r
}

func (t *koloTeam) repeat(n int) (slowest time.Duration, err error) {
	for _, c := range t.orders {
		c <- n
	}
	for range t.orders {
		select {
		case d := <-t.result:
			slowest = max(slowest, d)
		case err := <-t.done:
			t.done <- err
			return 0, err
		}
	}
	return slowest, nil
}

func (t *koloTeam) close() error {
	for _, c := range t.orders {
		close(c)
	}
	return <-t.done
}
