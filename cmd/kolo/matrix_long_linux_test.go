//go:build long

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
)

// Every operator between four processes of two hosts, by shm on a host and tcp between them.
func TestEveryOperatorByTwoTransports(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	names := hosts(t, 1500)
	var lines []string
	for _, o := range perf.Operators() {
		lines = append(lines, fmt.Sprintf("test %s -b 52 -e 1100K -f 145 -n 2 -w 1 -r 1 --inplace %s", o.Name, buffers(o)))
	}
	for i, line := range slices.Concat(lines, sampled(t)) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var out, errs [4]bytes.Buffer
		var list [4]*exec.Cmd
		for r := range list { // ranks 0 and 1 on the first host; the ports are the name space's own
			c := exec.CommandContext(ctx, "ip", slices.Concat([]string{"netns", "exec", names[r/2], exe}, strings.Fields(line))...)
			c.Env = append(os.Environ(), asMain+"=1", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("RANK=%d", r), "WORLD_SIZE=4", "MASTER_ADDR=10.77.0.1", fmt.Sprintf("MASTER_PORT=%d", 29600+i))
			c.Stdout, c.Stderr, list[r] = &out[r], &errs[r], c
			require.NoError(t, c.Start())
		}
		for r, c := range list {
			require.NoError(t, c.Wait(), "%s: rank %d: %s", line, r, errs[r].String())
		}
		cancel()
		require.NotContains(t, out[0].String(), "failed", line)
		if i < len(lines) {
			require.GreaterOrEqual(t, strings.Count(out[0].String(), "success"), 3, "%s: %s", line, out[0].String())
		}
	}
}
