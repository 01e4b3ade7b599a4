package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// maxFailures is how often a program may fail at a collective and number of ranks before
// the remaining rounds leave it out there.
const maxFailures = 2

// meeting is the rounds of all programs.
type meeting struct {
	options
	parts     []part
	samples   samples
	failures  map[turn]int
	notes     notes // what could not be measured, and why
	available int64 // bytes of memory
}

// turn is a program's turn in every round.
type turn struct {
	program    string
	collective kolo.Collective
	ranks      int
}

func newMeeting(o options, parts []part) *meeting {
	return &meeting{
		options: o, parts: parts, samples: samples{}, failures: map[turn]int{},
		notes: notes{places: map[string][]string{}}, available: availableMemory(),
	}
}

// measure runs all rounds. Within a round the programs take turns at each collective and
// number of ranks, in an order drawn anew each time.
func (m *meeting) measure(ctx context.Context) error {
	start, rng := time.Now(), rand.New(rand.NewPCG(1, 2))
	for round := range m.rounds {
		for _, ranks := range m.ranks {
			for _, c := range m.collectives {
				j, ok := m.job(c, ranks)
				if !ok {
					continue
				}
				for _, i := range rng.Perm(len(m.parts)) {
					if err := m.take(ctx, round, m.parts[i], j); err != nil {
						return err
					}
				}
				fmt.Fprintf(os.Stderr, "peers: round %d of %d, %d ranks, %v, %v\n", round+1, m.rounds, ranks, c,
					time.Since(start).Round(time.Second))
			}
		}
	}
	return nil
}

// job is the task for all programs: the sizes that fit the memory.
func (m *meeting) job(c kolo.Collective, ranks int) (job, bool) {
	j := job{collective: c, ranks: ranks, budget: m.budget, repeats: m.repeats, think: m.think, limit: (m.limit + 2*grace).Truncate(time.Second), threads: m.threads}
	if m.separated && m.think == 0 {
		j.separated = 1
	}
	for _, s := range m.sizes {
		s = whole(c, ranks, s)
		if need := 2*s*int64(ranks) + 256<<20; m.available > 0 && need > m.available/10*8 {
			m.notes.add("left out, as two buffers a rank do not fit the memory", fmt.Sprintf("%s on %d ranks", sizeString(s), ranks))
			continue
		}
		if !slices.Contains(j.sizes, s) {
			j.sizes = append(j.sizes, s)
		}
	}
	return j, len(j.sizes) > 0
}

// take is one process. Its failure is noted; only the end of ctx is an error.
func (m *meeting) take(ctx context.Context, round int, p part, j job) error {
	t := turn{p.name, j.collective, j.ranks}
	if m.failures[t] >= maxFailures {
		return nil
	}
	out, err := runProcess(ctx, m.limit, p.command(j))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	list, problems := parseOutput(out)
	for _, r := range list {
		if r.collective != j.collective || r.ranks != j.ranks || !slices.Contains(j.sizes, r.size) {
			problems = append(problems, fmt.Sprintf("%v was not asked for", r))
			continue
		}
		m.samples.add(round, r)
	}
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, s := range problems {
		m.notes.add(p.name+": "+s, fmt.Sprintf("%v on %d ranks", j.collective, j.ranks))
	}
	if len(problems) > 0 {
		m.failures[t]++
	}
	return nil
}

// notes are remarks, each once, with the places where it was made.
type notes struct {
	texts  []string // in the order in which they came
	places map[string][]string
}

// add keeps a remark; an empty place is none.
func (n *notes) add(text, place string) {
	if !slices.Contains(n.texts, text) {
		n.texts = append(n.texts, text)
		fmt.Fprintln(os.Stderr, "peers:", text, place)
	}
	if place != "" && !slices.Contains(n.places[text], place) {
		n.places[text] = append(n.places[text], place)
	}
}

// lines are the remarks with their places.
func (n *notes) lines() (list []string) {
	for _, text := range n.texts {
		if p := n.places[text]; len(p) > 0 {
			text += " (" + strings.Join(p, ", ") + ")"
		}
		list = append(list, text)
	}
	return list
}
