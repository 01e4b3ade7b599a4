package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxOutput is the most bytes that a process may write; more is dropped.
const maxOutput = 1 << 20

// grace is how long a process that is told to end may take.
const grace = 2 * time.Second

// bounded keeps the first maxOutput bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))]) // never fails
	}
	return len(p), nil
}

// newCommand is a process with a group of its own, so that all of it can be ended.
func newCommand(ctx context.Context, argv []string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = ownGroup()
	c.Cancel = func() error { return askGroup(c.Process) }
	c.WaitDelay = grace
	return c
}

// runProcess runs a command until it ends, or for at most limit, and leaves nothing of
// it behind. The output so far is returned with the error, too.
func runProcess(ctx context.Context, limit time.Duration, argv []string) (*bytes.Buffer, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out, errs bounded
	c := newCommand(limited, argv)
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		return &out.Buffer, err
	}
	err := c.Wait()
	endGroup(c.Process)
	switch {
	case ctx.Err() != nil:
		return &out.Buffer, ctx.Err()
	case limited.Err() != nil:
		return &out.Buffer, fmt.Errorf("stopped: not done within %v (-limit)", limit)
	case err != nil:
		return &out.Buffer, fmt.Errorf("%w%s", err, remarks(errs.String()))
	}
	return &out.Buffer, nil
}

// maxRemarks is the most bytes of a failed process's messages that are passed on.
const maxRemarks = 240

// remarks are how a failed process's messages begin, on one line.
func remarks(text string) string {
	words := slices.DeleteFunc(strings.Fields(text), func(w string) bool { return strings.Trim(w, "-") == "" })
	if len(words) == 0 {
		return ""
	}
	line := strings.ToValidUTF8(strings.Join(words, " "), "?")
	if len(line) > maxRemarks {
		line = strings.ToValidUTF8(line[:maxRemarks], "") + "..."
	}
	return ": " + line
}

// startBusy takes the first core that this process may use away, until the returned
// function is called.
func startBusy(ctx context.Context) (end func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pin, err := exec.LookPath("taskset")
	if err != nil {
		return nil, fmt.Errorf("no taskset to pin a process: install util-linux")
	}
	list, err := coreList(ctx)
	if err != nil {
		return nil, err
	}
	c := newCommand(ctx, []string{pin, "-c", strconv.Itoa(list[0]), exe, "part", "busy"})
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func() {
		endGroup(c.Process)
		_ = c.Wait() // it was killed
	}, nil
}

// coreList is this process's list of processors, in order; at least one.
func coreList(ctx context.Context) (list []int, err error) {
	text, err := output(ctx, "taskset", "-cp", strconv.Itoa(os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("which cores this process may use: %w", err)
	}
	for item := range strings.SplitSeq(strings.TrimSpace(text[strings.LastIndex(text, ":")+1:]), ",") {
		from, to, several := strings.Cut(item, "-")
		if !several {
			to = from
		}
		a, err := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("which cores this process may use: %w", err)
		}
		for ; a <= b; a++ {
			list = append(list, a)
		}
	}
	return list, nil
}

// bound are commands that begin on a core of their own: what is put in front of each.
func bound(ctx context.Context, ranks int) (front [][]string, err error) {
	cores, err := coreList(ctx)
	if err == nil && len(cores) < ranks {
		err = fmt.Errorf("%d cores for %d processes", len(cores), ranks)
	}
	if err != nil {
		return nil, fmt.Errorf("-bind: %w", err)
	}
	for r := range ranks {
		front = append(front, []string{"taskset", "-c", strconv.Itoa(cores[r])})
	}
	return front, nil
}
