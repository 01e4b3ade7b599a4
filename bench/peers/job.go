package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// maxRanks is what the C programs have room for.
const maxRanks = 64

// collectives are those that every program can do.
var collectives = []kolo.Collective{
	kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Broadcast, kolo.AllToAll, kolo.Barrier,
}

// job is the task of one process: one collective of so many ranks, at several sizes.
type job struct {
	collective kolo.Collective
	ranks      int
	sizes      []int64       // bytes of the whole vector, multiples of 4*ranks
	budget     time.Duration // of one repetition
	repeats    int           // repetitions, whose median counts
	think      time.Duration // work between the calls
	limit      time.Duration // whole seconds, after which the process ends itself
	threads    int           // of the floors
	separated  int           // 1: also with a barrier before each call
	between    string        // the transport between ranks that are processes; empty: they are goroutines
	bind       int           // 1: each of those is bound to a core of its own
}

// args are the job as arguments; native/cases.h reads the same.
func (j job) args() []string {
	sizes := make([]string, len(j.sizes))
	for i, s := range j.sizes {
		sizes[i] = strconv.FormatInt(s, 10)
	}
	list := []string{
		"collective=" + j.collective.String(),
		fmt.Sprintf("ranks=%d", j.ranks),
		"sizes=" + strings.Join(sizes, ","),
		fmt.Sprintf("budget_us=%d", j.budget.Microseconds()),
		fmt.Sprintf("repeats=%d", j.repeats),
		fmt.Sprintf("think_ns=%d", j.think.Nanoseconds()),
		fmt.Sprintf("limit_s=%d", int64(j.limit.Seconds())),
		fmt.Sprintf("threads=%d", j.threads),
		fmt.Sprintf("separated=%d", j.separated),
	}
	if j.between != "" { // for parts of this program only
		list = append(list, "between="+j.between, fmt.Sprintf("bind=%d", j.bind))
	}
	return list
}

// parseJob is the inverse of args.
func parseJob(args []string) (job, error) {
	var j job
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		if err := j.set(name, value); err != nil {
			return j, fmt.Errorf("argument %q: %w", a, err)
		}
	}
	if j.ranks < 1 || j.ranks > maxRanks || len(j.sizes) == 0 || j.budget <= 0 || j.repeats < 1 {
		return j, fmt.Errorf("ranks, sizes, budget_us or repeats is missing or out of range")
	}
	return j, nil
}

func (j *job) set(name, value string) (err error) {
	switch name {
	case "collective":
		j.collective, err = parseCollective(value)
		return err
	case "between":
		j.between = value
		return nil
	case "sizes":
		for s := range strings.SplitSeq(value, ",") {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is no size", s)
			}
			j.sizes = append(j.sizes, n)
		}
		return nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no count", value)
	}
	switch name {
	case "ranks":
		j.ranks = n
	case "repeats":
		j.repeats = n
	case "threads":
		j.threads = n
	case "bind":
		j.bind = n
	case "separated":
		j.separated = n
	case "budget_us":
		j.budget = time.Duration(n) * time.Microsecond
	case "think_ns":
		j.think = time.Duration(n)
	case "limit_s":
		j.limit = time.Duration(n) * time.Second
	default:
		return fmt.Errorf("no such argument")
	}
	return nil
}

func parseCollective(name string) (kolo.Collective, error) {
	for _, c := range collectives {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("%q is none of the collectives %v", name, collectives)
}

// whole is size rounded up so that every rank's part has whole elements; 0 for the
// collective that has no data.
func whole(c kolo.Collective, ranks int, size int64) int64 {
	if c == kolo.Barrier {
		return 0
	}
	unit := int64(4 * ranks)
	return max(1, (size+unit-1)/unit) * unit
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
	if err != nil || n < 1 || n > maxSize>>shift {
		return 0, fmt.Errorf("%q is no size from 1 to %s", s, sizeString(maxSize))
	}
	return n << shift, nil
}

// maxSize keeps the number of elements in an int of C.
const maxSize = 1 << 30

func sizeString(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if s := 30 - 10*i; n >= 1<<s && n%(1<<s) == 0 {
			return fmt.Sprintf("%d %s", n>>s, unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}
