package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/internal/netlab"

	"github.com/stretchr/testify/require"
)

// hosts makes two network name spaces with a cable of an MTU between them.
func hosts(t *testing.T, mtu int) [2]string {
	if os.Geteuid() != 0 {
		t.Skip("network name spaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip here")
	}
	var names [2]string
	ip := func(args string) {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", args, out)
	}
	for i := range names {
		names[i] = fmt.Sprintf("kolo-cmd-%d-%d", os.Getpid(), i)
		if out, err := exec.Command("ip", "netns", "add", names[i]).CombinedOutput(); err != nil {
			t.Skipf("no network name space can be made here: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", names[i]).Run() }) // what is left is the system's to report
	}
	ip(fmt.Sprintf("link add veth0 netns %s mtu %d type veth peer name veth0 netns %s mtu %d", names[0], mtu, names[1], mtu))
	for i, n := range names {
		ip(fmt.Sprintf("-n %s addr add 10.77.0.%d/24 dev veth0", n, i+1))
		ip("-n " + n + " link set lo up")
		ip("-n " + n + " link set veth0 up")
	}
	return names
}

func TestDoctorBetweenHosts(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for mtu, want := range map[int]string{1500: "1500 bytes come through and 9000 do not; set an MTU of 9000", 9000: "9000 bytes come through\n"} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			names := hosts(t, mtu)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var out, errs [2]bytes.Buffer
			var list [2]*exec.Cmd
			for i, n := range names { // a port may be fixed there: the name space has no others
				c := exec.CommandContext(ctx, "ip", "netns", "exec", n, exe, "doctor", "--join", "2m")
				c.Env = append(os.Environ(), asMain+"=1", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("RANK=%d", i), "WORLD_SIZE=2", "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29511")
				c.Stdout, c.Stderr, list[i] = &out[i], &errs[i], c
				require.NoError(t, c.Start())
			}
			for i, c := range list {
				require.NoError(t, c.Wait(), "rank %d: %s", i, errs[i].String())
			}
			require.Empty(t, out[1].String(), "rank 0 speaks for all")
			for _, want := range []string{want, "identity handshake: 2 of 2", "tcp RATE", "10.77.0.1 (told to others, choice 1)"} {
				require.Contains(t, varying[1].what.ReplaceAllString(out[0].String(), varying[1].by), want)
			}
			require.NotContains(t, out[0].String(), "by shm\n", "name spaces are hosts")
		})
	}
}

// A firewall lets only the rendezvous through: the doctor names the pair, and how it was tried.
func TestDoctorNamesHostsThatCannotConnect(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	l := netlab.New(t, 3, netlab.Config{})
	l.PartBut(1, 2, "29511")
	var out [3]bytes.Buffer
	var list [3]*exec.Cmd
	for i := range list {
		c := l.Command(i, exe, "doctor", "--join", "10s")
		c.Env = append(os.Environ(), asMain+"=1", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("RANK=%d", i), "WORLD_SIZE=3", "MASTER_ADDR="+l.Address(0), "MASTER_PORT=29511")
		c.Stdout, list[i] = &out[i], c
		require.NoError(t, c.Start())
	}
	for i, c := range list {
		require.Error(t, c.Wait(), "rank %d", i)
	}
	text := out[0].String()
	for _, want := range []string{"interfaces\n", "1 of 3 pairs of processes cannot connect, 2 have", "  rank 1 with rank 2: rank 2 on ", " at 10.77.0.2:"} {
		require.Contains(t, text, want)
	}
	require.Empty(t, out[1].String(), "rank 0 speaks for all")
}
