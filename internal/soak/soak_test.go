package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// play plays a script and returns what went wrong first, with what the others say.
func play(s *script) error {
	if s.world.apart() {
		return playApart(s)
	}
	return playPart(s, 0, "")
}

// playPart plays the part of a script of the ranks that are here.
func playPart(s *script, process int, address string) (err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	o, err := s.world.open(ctx, s.seed, process, address)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	watchdog := time.AfterFunc(4*callTimeout, func() { // a hang is a failure with all stacks
		debug.SetTraceback("all")
		panic(fmt.Sprintf("soak: nothing moves in %v", s))
	})
	defer watchdog.Stop()
	t := &theater{images: map[[2]int]*shared{}}
	var mu sync.Mutex
	var errs []error
	var wg, ends sync.WaitGroup
	note := func(r int, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && (len(errs) == 0 || context.Cause(ctx) == nil) {
			errs = append(errs, fmt.Errorf("rank %d: %w", r, err))
			cancel(errors.New("another rank has failed"))
		}
	}
	looking, stop := context.WithCancel(context.Background())
	if s.world.watched {
		ends.Go(func() { note(-1, watch(looking, o.worlds)) }) // ends by stop
	}
	for r, w := range o.worlds {
		if w == nil {
			continue // of another process
		}
		var lanes sync.WaitGroup
		var last *player
		for i := range s.lanes {
			p := &player{ctx: ctx, s: s, w: w, lane: i, t: t, rng: rand.New(rand.NewPCG(s.seed+uint64(r), uint64(i)))}
			if o.devices != nil {
				p.device = o.devices[r]
			}
			lanes.Go(func() { note(r, p.play()) }) // ends with the script
			last = p
		}
		wg.Go(func() { // ends with the script
			if lanes.Wait(); ctx.Err() == nil {
				note(r, last.shrink())
			}
		})
	}
	wg.Wait()
	stop()
	ends.Wait()
	if err := o.close(); err != nil && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("close: %w", err))
	}
	return errors.Join(errs...)
}

// shorten cuts a script that fails down to fewer steps that still do, in some time.
func shorten(s *script, patience time.Duration) (*script, error) {
	end := time.Now().Add(patience)
	fails := func(c *script) error {
		for range 3 {
			if err := play(c); err != nil {
				return err
			}
		}
		return nil
	}
	var last error
	for size := len(s.steps()) / 2; size > 0; size /= 2 {
		for from := 0; from < len(s.steps()) && time.Now().Before(end); {
			cut := s.steps()[from:min(from+size, len(s.steps()))]
			c := s.only(func(st step) bool { return !slices.Contains(cut, st.id) })
			if err := fails(c); err != nil {
				s, last = c, err
			} else {
				from += size
			}
		}
	}
	return s, last
}

// playOne plays the script of a seed, and shortens it if it fails.
func playOne(t *testing.T, s *script) {
	err := play(s)
	if err == nil {
		return
	}
	t.Errorf("%v\n%v", s, err)
	if short, err := shorten(s, 40*time.Second); err != nil {
		t.Errorf("in short:\n%v\n%v", short, err)
	}
}

// Every byte of every rank is what it must be, whatever is called in whatever world.
func TestSoak(t *testing.T) {
	world := os.Getenv("KOLO_SOAK_WORLD")
	if text := os.Getenv("KOLO_SOAK_SEED"); text != "" {
		s, err := given(text, world, os.Getenv("KOLO_SOAK_STEPS"))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			playOne(t, s)
			if t.Failed() {
				return
			}
		}
		return
	}
	if text := os.Getenv("KOLO_SOAK"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		soak(t, d, world)
		return
	}
	for _, k := range slices.Compact(kinds()) {
		t.Run(k, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			playOne(t, ofSeed(seed, k))
		})
	}
}

// soak plays scripts for a time.
func soak(t *testing.T, d time.Duration, world string) {
	played := map[string]int{}
	for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); {
		s := ofSeed(rand.Uint64(), world)
		played[s.world.kind]++
		playOne(t, s)
	}
	t.Logf("played %v", played)
}
