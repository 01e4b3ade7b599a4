package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// result is one RES line: the times of one case in one process. The line is
//
//	RES program variant collective ranks bytes back_to_back_us separated_us calls
//
// with a dash for a time that was not measured.
type result struct {
	program, variant string
	collective       kolo.Collective
	ranks            int
	size             int64
	times            [manners]float64 // microseconds per call; NaN: not measured
	calls            int
}

// manner is a way to repeat a call.
type manner int

const (
	backToBack manner = iota // call after call
	separated                // a barrier before each call, which does not count
	manners    = iota
)

func (m manner) String() string { return [manners]string{"back to back", "separated"}[m] }

func (r result) String() string {
	list := [manners]string{}
	for i, t := range r.times {
		list[i] = "-"
		if t > 0 { // not for NaN
			list[i] = strconv.FormatFloat(t, 'f', 4, 64)
		}
	}
	return fmt.Sprintf("RES %s %s %v %d %d %s %s %d", r.program, r.variant, r.collective, r.ranks, r.size,
		list[backToBack], list[separated], r.calls)
}

// bad writes that the case's result is wrong.
func (r result) bad(err error, w io.Writer) error {
	_, err = fmt.Fprintf(w, "BAD %s %s %v %d %d %v\n", r.program, r.variant, r.collective, r.ranks, r.size, err)
	return err
}

// parseOutput reads what a process has written. Lines that do not begin with RES or BAD
// are somebody's remarks. A BAD line, which tells of a wrong result, and a RES line that
// is not understood are errors; the results before and after them are returned all the
// same.
func parseOutput(r io.Reader) (list []result, problems []string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "RES "):
			res, err := parseResult(line)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: %v", line, err))
				continue
			}
			list = append(list, res)
		case strings.HasPrefix(line, "BAD "):
			problems = append(problems, strings.TrimPrefix(line, "BAD "))
		}
	}
	if err := lines.Err(); err != nil {
		problems = append(problems, fmt.Sprintf("read output: %v", err))
	}
	return list, problems
}

func parseResult(line string) (r result, err error) {
	f := strings.Fields(line)
	if len(f) != 9 {
		return r, fmt.Errorf("%d fields, want 9", len(f))
	}
	r.program, r.variant = f[1], f[2]
	if r.collective, err = parseCollective(f[3]); err != nil {
		return r, err
	}
	if r.ranks, err = strconv.Atoi(f[4]); err != nil || r.ranks < 1 {
		return r, fmt.Errorf("%q is no number of ranks", f[4])
	}
	if r.size, err = strconv.ParseInt(f[5], 10, 64); err != nil || r.size < 0 {
		return r, fmt.Errorf("%q is no size", f[5])
	}
	for i, s := range f[6:8] {
		if r.times[i], err = parseTime(s); err != nil {
			return r, err
		}
	}
	if r.calls, err = strconv.Atoi(f[8]); err != nil || r.calls < 1 {
		return r, fmt.Errorf("%q is no number of calls", f[8])
	}
	return r, nil
}

func parseTime(s string) (float64, error) {
	if s == "-" {
		return math.NaN(), nil
	}
	t, err := strconv.ParseFloat(s, 64)
	if err != nil || !(t > 0) || math.IsInf(t, 0) {
		return 0, fmt.Errorf("%q is no time", s)
	}
	return t, nil
}
