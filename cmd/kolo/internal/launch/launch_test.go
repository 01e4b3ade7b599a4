package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if script := os.Getenv(launcherEnv); script != "" { // this is the launcher that a test kills
		j := &Job{Args: []string{"sh", "-c", script}, Hosts: []Host{{"", 2}}, Grace: time.Second, Out: os.Stdout, Now: time.Now}
		fmt.Fprintln(os.Stderr, j.Run(context.Background()))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// launcherEnv names the script of a launcher of its own.
const launcherEnv = "KOLO_TEST_LAUNCHER"

// Nothing is left when the launcher is killed, also nothing that its processes have started.
func TestKilledLauncherLeavesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no groups of processes here")
	}
	shell(t, 0, "")
	for name, end := range map[string]func(c *exec.Cmd, out io.Closer) error{
		"killed":                  func(c *exec.Cmd, _ io.Closer) error { return c.Process.Kill() },
		"nobody reads its output": func(_ *exec.Cmd, out io.Closer) error { return out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := exec.Command(os.Args[0], "-test.run=^$")
			c.Env = append(os.Environ(), launcherEnv+`=sleep 100 & echo $!; while :; do echo on; sleep 0.01; done`)
			out, err := c.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, c.Start())
			var pids []int
			for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
				if pid, err := strconv.Atoi(lines.Text()); err == nil {
					pids = append(pids, pid)
				}
			}
			require.Len(t, pids, 2)
			require.NoError(t, end(c, out))
			_ = c.Wait() // killed
			for _, pid := range pids {
				require.Eventually(t, func() bool { return ended(pid) }, 20*time.Second, 10*time.Millisecond)
			}
		})
	}
}

// ended says whether a process is gone, or a zombie that nobody waits for.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		_, state, _ := strings.Cut(string(b), ") ")
		return strings.HasPrefix(state, "Z")
	}
	return syscall.Kill(pid, 0) != nil
}

// What a process has left behind with its output is ended, and that is said.
func TestOutputThatIsKept(t *testing.T) {
	j, r := shell(t, 1, `sleep 100 & echo $!`)
	j.Grace, j.Prefix = 100*time.Millisecond, ""
	err := j.Run(t.Context())
	require.ErrorIs(t, err, exec.ErrWaitDelay)
	require.ErrorContains(t, err, "it has ended, but what it had started kept its output for 100ms and was killed")
	pid, err := strconv.Atoi(strings.TrimSpace(r.out.String()))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return ended(pid) }, 20*time.Second, 10*time.Millisecond)
}

// ran is what a job wrote.
type ran struct{ out, err, log bytes.Buffer }

// shell is a job of n processes of this machine that run a script.
func shell(t *testing.T, n int, script string) (*Job, *ran) {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh here")
	}
	r := &ran{}
	return &Job{Args: []string{"sh", "-c", script}, Hosts: []Host{{"", n}}, Port: 1234, Patience: 10 * time.Millisecond,
		Grace: 5 * time.Second, Out: &r.out, Err: &r.err, Log: &r.log, Prefix: "[%d] ", Now: time.Now}, r
}

func sorted(s string) []string {
	return slices.Sorted(strings.Lines(s))
}

func TestEveryProcessKnowsItsPlace(t *testing.T) {
	j, r := shell(t, 3, `echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $MORE; echo e$RANK >&2; printf end`)
	j.Env = []string{"MORE=a b'c"}
	require.NoError(t, j.Run(t.Context()))
	var out, errs []string
	for i := range 3 {
		out = append(out, fmt.Sprintf("[%d] %d/3 %d/3 127.0.0.1:1234 a b'c\n", i, i, i), fmt.Sprintf("[%d] end\n", i))
		errs = append(errs, fmt.Sprintf("[%d] e%d\n", i, i))
	}
	slices.Sort(out)
	require.Equal(t, out, sorted(r.out.String()))
	require.Equal(t, errs, sorted(r.err.String()))
	require.Empty(t, r.log.String())
}

// A process fails: it is named, the others are asked to end, and what ignores that is
// killed, together with what it has started.
func TestFailureEndsTheOthers(t *testing.T) {
	for name, c := range map[string]struct {
		script, text string
		code         int
	}{
		"exit":     {`[ $RANK = 1 ] && exit 7; sleep 100`, `rank 1 \(pid \d+\): exit status 7`, 7},
		"signal":   {`[ $RANK = 1 ] && kill -9 $$; sleep 100`, `rank 1 \(pid \d+\): signal: killed`, 137},
		"stubborn": {`trap '' TERM; [ $RANK = 1 ] && exit 3; sleep 100 & wait; sleep 100`, `rank 1 \(pid \d+\): exit status 3`, 3},
	} {
		t.Run(name, func(t *testing.T) {
			j, r := shell(t, 4, c.script)
			j.Grace = 200 * time.Millisecond
			begun := time.Now()
			err := j.Run(t.Context())
			var f *Failure
			require.ErrorAs(t, err, &f)
			require.Regexp(t, "^"+c.text+"$", err.Error())
			require.Equal(t, 1, f.Rank)
			require.Equal(t, c.code, f.Code)
			require.Regexp(t, c.text+` after .*\n.*asking the other 3 to end\n$`, r.log.String())
			require.Less(t, time.Since(begun), 20*time.Second)
		})
	}
}

// The others have time to say what they saw.
func TestTheOthersHavePatience(t *testing.T) {
	noticed := filepath.Join(t.TempDir(), "noticed")
	j, r := shell(t, 2, `[ $RANK = 1 ] && exit 7; while ! [ -e `+quote(noticed)+` ]; do sleep 0.01; done; echo rank 1 is gone; exit 5`)
	j.Patience = 10 * time.Minute
	j.Log = &doorbellTo{&r.log, func() { // that rank 1 has failed
		if err := os.WriteFile(noticed, nil, 0o600); err != nil {
			t.Error(err)
		}
	}}
	err := j.Run(t.Context())
	require.ErrorContains(t, err, "exit status 7")
	require.Equal(t, "[0] rank 1 is gone\n", r.out.String())
	require.Regexp(t, `rank 1 .*exit status 7 after .*\n.*rank 0 .*exit status 5 after .*\n$`, r.log.String())
}

func TestKeepGoing(t *testing.T) {
	j, r := shell(t, 3, `[ $RANK = 1 ] && exit 7; echo done`)
	j.KeepGoing = true
	require.ErrorContains(t, j.Run(t.Context()), "rank 1")
	require.Equal(t, []string{"[0] done\n", "[2] done\n"}, sorted(r.out.String()))
}

// The end of the context ends all.
func TestCanceledJob(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop it")
	j, r := shell(t, 3, `echo up; sleep 100`)
	up := &doorbell{want: 3, ring: func() { cancel(stop) }}
	j.Out = up
	err := j.Run(ctx)
	require.ErrorIs(t, err, kolo.ErrCanceled)
	require.ErrorIs(t, err, stop)
	require.Regexp(t, `^kolo run: rank \d \(pid \d+\): asked to end: stop it \(.*\) after .*\n$`, r.log.String())
}

// doorbell rings when it has got so many lines.
type doorbell struct {
	want int
	ring func()
}

func (d *doorbell) Write(p []byte) (int, error) {
	d.want -= bytes.Count(p, []byte("\n"))
	if d.want == 0 {
		d.ring()
	}
	return len(p), nil
}

func TestProgramThatIsNotThere(t *testing.T) {
	j, _ := shell(t, 2, "")
	j.Args = []string{filepath.Join(t.TempDir(), "nothing")}
	var f *Failure
	require.ErrorAs(t, j.Run(t.Context()), &f)
	require.Equal(t, 127, f.Code)
	require.ErrorIs(t, f, os.ErrNotExist)
}

// Other hosts are reached through a remote shell, which here is one of this machine.
func TestRemoteShell(t *testing.T) {
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote")
	require.NoError(t, os.WriteFile(remote, []byte("#!/bin/sh\necho \"to $2\" >&2\nexec sh -c \"$3\"\n"), 0o755))
	j, r := shell(t, 1, `echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $ODD"; [ $RANK != 2 ] || exit 9`)
	j.Hosts = []Host{{"a", 2}, {"", 1}, {"b", 1}, {"a", 1}}
	j.Shell = []string{remote, "-q"}
	j.Master = "a"
	j.Env = []string{`ODD=$HOME "'x`}
	j.KeepGoing = true
	err := j.Run(t.Context())
	require.ErrorContains(t, err, "rank 2 (pid ")
	var want []string
	for i, local := range []string{"0/3", "1/3", "0/1", "0/1", "2/3"} {
		want = append(want, fmt.Sprintf("[%d] %d/5 %s a $HOME \"'x\n", i, i, local))
	}
	require.Equal(t, want, sorted(r.out.String()))
	require.Equal(t, []string{"[0] to a\n", "[1] to a\n", "[3] to b\n", "[4] to a\n"}, sorted(r.err.String()))
}

// What a remote shell has started ends with it, also what does not heed the signal.
func TestRemoteProgramEndsWithItsShell(t *testing.T) {
	for name, script := range map[string]string{"obedient": `echo $$; exec sleep 100`, "stubborn": `trap '' TERM; echo $$; while :; do sleep 0.1; done`} {
		t.Run(name, func(t *testing.T) { testRemoteProgramEnds(t, script) })
	}
}

func testRemoteProgramEnds(t *testing.T, script string) {
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote")
	// Like sshd, it puts the command into a session of its own.
	require.NoError(t, os.WriteFile(remote, []byte("#!/bin/sh\nexec setsid -w sh -c \"$2\"\n"), 0o755))
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid here")
	}
	ctx, cancel := context.WithCancel(t.Context())
	j, _ := shell(t, 1, script)
	j.Hosts, j.Shell = []Host{{"far", 1}}, []string{remote}
	j.Grace = 100 * time.Millisecond
	var text bytes.Buffer
	j.Prefix, j.Out = "", &doorbellTo{&text, cancel}
	require.Error(t, j.Run(ctx))
	pid, err := strconv.Atoi(strings.TrimSpace(text.String()))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return ended(pid) }, 20*time.Second, 10*time.Millisecond)
}

type doorbellTo struct {
	to   *bytes.Buffer
	ring func()
}

func (d *doorbellTo) Write(p []byte) (int, error) {
	defer d.ring()
	return d.to.Write(p)
}

func TestHostFile(t *testing.T) {
	list, err := ParseHosts("a slots=2 # the first\n\n  b:3\nfe80::1 \n")
	require.NoError(t, err)
	require.Equal(t, []Host{{"a", 2}, {"b", 3}, {"fe80::1", 1}}, list)
	for text, want := range map[string]string{
		"":            "names no host",
		"a slots=0":   `line 1: "0" slots`,
		"\na slot=1":  `line 2: "slot=1"`,
		"a:x":         `"x" slots`,
		"-oProxy=x 1": "no name",
	} {
		_, err := ParseHosts(text)
		if text == "-oProxy=x 1" {
			_, err = ParseHosts("-oProxy=x")
		}
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, want)
	}
}

func TestSpread(t *testing.T) {
	hosts := []Host{{"a", 2}, {"b", 3}}
	list, err := Spread(hosts, 4)
	require.NoError(t, err)
	require.Equal(t, []Host{{"a", 2}, {"b", 2}}, list)
	list, err = Spread(hosts, 0)
	require.NoError(t, err)
	require.Equal(t, hosts, list)
	_, err = Spread(hosts, 6)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func TestJobsThatAreRefused(t *testing.T) {
	good := func() Job { return Job{Args: []string{"true"}, Hosts: []Host{{"", 1}}, Now: time.Now} }
	for want, change := range map[string]func(*Job){
		"no program":      func(j *Job) { j.Args = nil },
		"no host":         func(j *Job) { j.Hosts = nil },
		"no remote shell": func(j *Job) { j.Hosts = []Host{{"x", 1}} },
		"port 70000":      func(j *Job) { j.Port = 70000 },
		`"A B=1"`:         func(j *Job) { j.Env = []string{"A B=1"} },
		`"A"`:             func(j *Job) { j.Env = []string{"A"} },
	} {
		j := good()
		change(&j)
		err := j.Run(t.Context())
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.Regexp(t, regexp.QuoteMeta(want), err.Error())
	}
}

// Lines come whole, whatever pieces they are written in; a line that does not end is
// cut, and nothing is lost.
func TestLinesAreKeptTogether(t *testing.T) {
	text := strings.Repeat("ab\n\nlong "+strings.Repeat("x", 100)+"\n", 50) + strings.Repeat("y", maxLine+10)
	for _, piece := range []int{1, 2, 3, 64, 1000, len(text)} {
		var b bytes.Buffer
		l := newSink(&b).lines("> ")
		for rest := text; rest != ""; {
			n := min(piece, len(rest))
			k, err := l.Write([]byte(rest[:n]))
			require.NoError(t, err)
			require.Equal(t, n, k)
			rest = rest[n:]
		}
		l.flush()
		var got strings.Builder
		for line := range strings.Lines(b.String()) {
			body, ok := strings.CutPrefix(line, "> ")
			require.True(t, ok)
			got.WriteString(body)
		}
		require.Equal(t, strings.ReplaceAll(text, "\n", ""), strings.ReplaceAll(got.String(), "\n", ""), "pieces of %d", piece)
	}
}
