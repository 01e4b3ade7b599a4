package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCPUs is what a unix.CPUSet holds.
const maxCPUs = 1024

// usable are the cores that this process may use, by their first thread.
func usable() ([]core, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("which processors may be used: %w", err)
	}
	return coresOf(&set, func(cpu int) string {
		b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		if err != nil {
			return "" // each thread counts as a core
		}
		return strings.TrimSpace(string(b))
	}), nil
}

// coresOf groups the processors of a set by core: those of which siblings says the same.
func coresOf(set *unix.CPUSet, siblings func(cpu int) string) (list []core) {
	at := map[string]int{}
	for cpu := range maxCPUs {
		if !set.IsSet(cpu) {
			continue
		}
		name := siblings(cpu)
		if name == "" {
			name = strconv.Itoa(cpu)
		}
		i, ok := at[name]
		if !ok {
			i = len(list)
			at[name] = i
			list = append(list, nil)
		}
		list[i] = append(list[i], cpu)
	}
	return list
}

// startOn starts a process that may use some processors only: it begins with those of the thread
// that starts it.
func startOn(c *exec.Cmd, cpus core) error {
	if len(cpus) == 0 {
		return c.Start()
	}
	var all, some unix.CPUSet
	for _, cpu := range cpus {
		some.Set(cpu)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("processors of the launcher: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		return fmt.Errorf("bind to processors %v: %w", cpus, err)
	}
	err := c.Start()
	if back := unix.SchedSetaffinity(0, &all); back != nil && err == nil {
		kill(c.Process.Pid)
		_ = c.Wait() // it was killed
		err = back
	} else if back != nil {
		err = errors.Join(err, back)
	}
	return err
}
