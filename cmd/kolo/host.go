package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/report"
)

// fits says whether the host has the memory for a test, where it tells.
func (a *app) fits(c *perf.Config) error {
	need, err := c.Memory()
	if err != nil {
		return err
	}
	ranks := c.Ranks
	if c.Worlds != nil {
		ranks = len(c.Worlds)
	}
	if have, ok := availableMemory(); ok && need > have {
		return fmt.Errorf("%d ranks of %s need %s of memory and the host has %s; take a smaller -e, fewer ranks, or --inplace in",
			ranks, c.Operator.Name, mebibytes(need), mebibytes(have))
	}
	return nil
}

// maxInput is the largest file that is read, but for a topology.
const maxInput = 256 << 20

// readFile reads a file that is no larger than a limit: what is named may be a device, which
// says that it is empty and has no end.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s has more than %s", kolo.ErrLimit, name, mebibytes(limit))
	}
	return b, nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

// availableMemory is what Linux says can be had without swapping.
func availableMemory() (int64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false // another system: it will say so itself
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// devices lists where the ranks run.
func devices(members []cluster.Member) []report.Device {
	var list []report.Device
	for i := range members {
		m := &members[i]
		for k, r := range m.Ranks {
			list = append(list, report.Device{Rank: int(r), PID: m.PID, Host: hostName(m), Device: k, Info: device()})
		}
	}
	slices.SortFunc(list, func(a, b report.Device) int { return a.Rank - b.Rank })
	return list
}

// arguments are the command and the flags that were given.
func (a *app) arguments(f *testFlags, c *perf.Config) []string {
	list := []string{"kolo", "test", c.Operator.Name}
	f.set.Visit(func(flag *pflag.Flag) {
		list = append(list, "--"+flag.Name+"="+flag.Value.String())
	})
	return list
}

// environment is what a test looks at, and what the Go runtime does.
func (a *app) environment() []string {
	list := []string{}
	for _, name := range []string{"HCCL_ALGO", "HCCL_EXEC_TIMEOUT", "HCCL_DETERMINISTIC", "RANK", "WORLD_SIZE", "GOMAXPROCS", "GOGC", "GODEBUG"} {
		if v := a.getenv(name); v != "" {
			list = append(list, name+"="+v)
		}
	}
	return list
}

// algorithmName is the algorithm that was asked for.
func algorithmName(c *perf.Config) string {
	if c.Rank.Algorithm != "" {
		return c.Rank.Algorithm
	}
	return "chosen by cost"
}
