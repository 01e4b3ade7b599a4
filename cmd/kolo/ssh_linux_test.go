package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sshd starts a server of ssh on loopback that lets this user in, and is the remote shell to
// reach it by.
func sshd(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("sshd")
	if err != nil {
		if server, err = exec.LookPath("/usr/sbin/sshd"); err != nil {
			t.Skip("no sshd (package openssh-server)")
		}
	}
	for _, p := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("no %s (package openssh-client)", p)
		}
	}
	if os.Getuid() == 0 {
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // where it shuts its unprivileged part in
	}
	me, err := user.Current()
	require.NoError(t, err)
	dir, port := t.TempDir(), 0
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, key := range []string{"host", "user"} {
		b, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput()
		require.NoError(t, err, "%s", b)
	}
	public, err := os.ReadFile(at("user.pub"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at("allowed"), public, 0o600))
	port, err = freePort()
	require.NoError(t, err)
	config := fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\n"+
		"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nAllowUsers %s\n", port, at("host"), at("allowed"), me.Username)
	require.NoError(t, os.WriteFile(at("config"), []byte(config), 0o600))
	log, err := os.Create(at("log"))
	require.NoError(t, err)
	c := exec.CommandContext(context.Background(), server, "-D", "-e", "-f", at("config"))
	c.Stderr = log
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = c.Wait()                          // by that signal
		require.NoError(t, log.Close())
		if text, err := os.ReadFile(at("log")); err == nil && t.Failed() {
			t.Logf("sshd: %s", text)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = conn.Close() // it has answered
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond, "sshd does not listen")
	shell := fmt.Sprintf("ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -i %s -p %d", at("user"), port)
	b, err := exec.CommandContext(t.Context(), "sh", "-c", shell+" 127.0.0.1 true").CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(at("log")) // for the reason
		t.Skipf("sshd lets nobody in here: %v: %s%s", err, b, log)
	}
	return shell
}

// kolo run by a real remote shell: two hosts that are this machine by two names.
func TestRunOverSSH(t *testing.T) {
	shell := sshd(t)
	hosts := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("127.0.0.1 slots=2\nlocalhost slots=1\n"), 0o644))
	exe, err := os.Executable()
	require.NoError(t, err)
	run := func(ctx context.Context, out io.Writer, flags []string, program ...string) (int, string) {
		port, err := freePort()
		require.NoError(t, err)
		var errs bytes.Buffer
		a := &app{out: out, err: &errs, getenv: func(string) string { return "" }, now: time.Now}
		args := append([]string{"run", "--hosts", hosts, "--ssh", shell, "--port", strconv.Itoa(port)}, flags...)
		return a.run(ctx, append(append(args, "--"), program...)), errs.String()
	}
	t.Run("a world", func(t *testing.T) {
		for _, transport := range []string{"shm", "tcp"} {
			var out bytes.Buffer
			code, errs := run(t.Context(), &out, []string{"--no-prefix", "-x", asMain + "=1", "-x", "GORACE=atexit_sleep_ms=0"}, exe,
				"test", "all_reduce", "-b", "8", "-e", "64K", "-f", "64", "-n", "2", "-w", "1", "--transport", transport)
			require.Zero(t, code, errs)
			require.GreaterOrEqual(t, strings.Count(out.String(), "success"), 3, out.String())
		}
	})
	t.Run("places and odd words", func(t *testing.T) {
		var out bytes.Buffer
		code, errs := run(t.Context(), &out, []string{"-x", `ODD=$HOME "'x;`}, "sh", "-c", `echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $ODD $1"`, "sh", `a b'$c`)
		require.Zero(t, code, errs)
		for rank, local := range []string{"0/2", "1/2", "0/1"} {
			require.Contains(t, out.String(), fmt.Sprintf("[%d] %[1]d/3 %s 127.0.0.1 $HOME \"'x; a b'$c\n", rank, local))
		}
	})
	t.Run("one fails", func(t *testing.T) {
		code, errs := run(t.Context(), io.Discard, []string{"--patience", "0"}, "sh", "-c", "[ $RANK != 2 ] || exit 9; exec sleep 100")
		require.NotZero(t, code)
		require.Contains(t, errs, "rank 2 on localhost")
		require.Contains(t, errs, "exit status 9")
	})
	t.Run("all end with run", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pids := &enough{lines: 3, then: cancel}
		code, _ := run(ctx, pids, []string{"--no-prefix", "--grace", "2s"}, "sh", "-c", "echo $$; exec sleep 100")
		require.NotZero(t, code)
		for _, word := range strings.Fields(pids.String()) {
			pid, err := strconv.Atoi(word)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 20*time.Second, 10*time.Millisecond, "process %d is left", pid)
		}
	})
	t.Run("no way in", func(t *testing.T) {
		code, errs := run(t.Context(), io.Discard, []string{"--ssh", "ssh -F none -o BatchMode=yes -o ConnectTimeout=5 -p 1"}, "true")
		require.NotZero(t, code)
		require.Contains(t, errs, "Connection refused")
		require.Contains(t, errs, "exit status 255")
	})
}

// enough collects lines, and does something when there are some of them.
type enough struct {
	bytes.Buffer
	lines int
	then  func()
}

func (e *enough) Write(p []byte) (int, error) {
	n, err := e.Buffer.Write(p)
	if bytes.Count(e.Bytes(), []byte("\n")) >= e.lines {
		e.then()
	}
	return n, err
}
