package launch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
)

// process runs one process to its end; nil if it ended well.
func (j *Job) process(stop context.Context, p place, k *keeper, out, errs *sink) *Failure {
	c := j.command(stop, p)
	o, e := out.lines(j.label(p.rank)), errs.lines(j.label(p.rank))
	defer o.flush()
	defer e.flush()
	c.Stdout, c.Stderr = o, e
	c.Cancel = func() error { return interrupt(c.Process) }
	c.WaitDelay = j.Grace
	alone(c)
	if stop.Err() != nil {
		return &Failure{Rank: p.rank, Host: p.host.Name, Code: 1, Err: context.Cause(stop)}
	}
	if p.host.Name != "" {
		in, err := c.StdinPipe() // open until the process has ended
		if err != nil {
			return &Failure{Rank: p.rank, Host: p.host.Name, Code: 1, Err: err}
		}
		defer in.Close()
	}
	if err := startOn(c, p.on); err != nil {
		return &Failure{Rank: p.rank, Host: p.host.Name, Code: 127, Err: fmt.Errorf("start: %w", err)}
	}
	pid := c.Process.Pid
	k.begun(pid)
	err := c.Wait()
	kill(pid) // what it has started and left behind
	k.ended(pid)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = fmt.Errorf("it has ended, but what it had started kept its output for %v and was killed: %w", j.Grace, err)
	}
	if err == nil {
		return nil
	}
	f := &Failure{Rank: p.rank, Host: p.host.Name, Pid: pid, Code: 1, Err: err}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		f.Code = codeOf(exit.ProcessState)
	}
	if stop.Err() != nil {
		f.Err = fmt.Errorf("%w (%w)", context.Cause(stop), err)
	}
	return f
}

func (j *Job) label(rank int) string {
	if j.Prefix == "" {
		return ""
	}
	return fmt.Sprintf(j.Prefix, rank)
}

// command is the process of a place, here or behind the remote shell.
func (j *Job) command(stop context.Context, p place) *exec.Cmd {
	env := j.environment(p)
	if p.host.Name == "" {
		c := exec.CommandContext(stop, j.Args[0], j.Args[1:]...)
		c.Env = append(os.Environ(), env...)
		return c
	}
	var line strings.Builder
	line.WriteString("exec 3<&0; ")
	if dir, err := os.Getwd(); err == nil { // the directory of the same name, if there is one
		fmt.Fprintf(&line, "cd %s 2>/dev/null; ", quote(dir))
	}
	line.WriteString("env")
	for _, e := range env {
		line.WriteString(" " + quote(e))
	}
	for _, a := range j.Args {
		line.WriteString(" " + quote(a))
	}
	fmt.Fprintf(&line, onEOF, int(math.Ceil(j.Grace.Seconds())))
	args := append(append([]string{}, j.Shell[1:]...), p.host.Name, line.String())
	return exec.CommandContext(stop, j.Shell[0], args...)
}

// onEOF lets a program of another host, whose line it ends, run until its end or until
// the remote shell's input does: that ends with the launcher, or when it asks. What does not
// end in some seconds then is killed.
const onEOF = ` </dev/null 3<&- & p=$!; { cat <&3; kill -TERM $p; sleep %d; kill -KILL $p; } >/dev/null 2>&1 & w=$!; wait $p; r=$?; kill $w 2>/dev/null; exit $r`

// quote makes one word for a POSIX shell of s.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
