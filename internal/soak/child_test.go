package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kolo-ccl/kolo/cluster"
)

// A world whose kind begins with a number sign has processes of the operating system: this
// test binary again, each with its part of the ranks, which play the script as it is.

const childEnv = "KOLO_SOAK_PROCESS"

// playApart starts the processes of a script and waits for them.
func playApart(s *script) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*callTimeout)
	defer cancel()
	at, err := cluster.Serve("127.0.0.1:0", nil)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return errors.Join(err, at.Close())
	}
	errs := make([]error, len(s.world.sizes))
	var wg sync.WaitGroup
	for i := range s.world.sizes {
		c := exec.CommandContext(ctx, exe)
		c.Env = append(os.Environ(), fmt.Sprint(childEnv, "=", i), "KOLO_SOAK_AT="+at.Address(), fmt.Sprint("KOLO_SOAK_SEED=", s.seed),
			"KOLO_SOAK_WORLD="+s.world.kind, "KOLO_SOAK_STEPS="+cmp.Or(joined(s.steps()), "none"))
		wg.Go(func() { // ends with the child
			if out, err := c.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("process %d: %w\n%s", i, err, out)
			}
		})
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), at.Close())
}

func joined(ids []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

// child plays one process's part of a script and returns the exit code.
func child() int {
	process, err := strconv.Atoi(os.Getenv(childEnv))
	var s *script
	if err == nil {
		s, err = given(os.Getenv("KOLO_SOAK_SEED"), os.Getenv("KOLO_SOAK_WORLD"), os.Getenv("KOLO_SOAK_STEPS"))
	}
	if err == nil {
		err = playPart(s, process, os.Getenv("KOLO_SOAK_AT"))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// given is a script by its seed, world and the numbers of its steps, if not all.
func given(seed, world, steps string) (*script, error) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return nil, err
	}
	s := ofSeed(n, world)
	if steps != "" {
		keep := strings.Split(steps, ",")
		s = s.only(func(st step) bool { return slices.Contains(keep, strconv.Itoa(st.id)) })
	}
	return s, nil
}
