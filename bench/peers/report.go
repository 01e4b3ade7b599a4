package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/kolo-ccl/kolo"
)

// shown are the programs in the order of the tables. Ours is first.
var shown = []string{"kolo", "plain", "openmpi", "gloo", "floor", "one-pass"}

// report is everything that is said about a meeting.
type report struct {
	options
	host    []string
	samples samples
	notes   []string
}

// write puts the text to w, and text, tables and plots to the directory.
func (r report) write(w io.Writer) error {
	text := r.text()
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	files := map[string]string{"peers.txt": text}
	for _, m := range r.measured() {
		for _, c := range r.collectives {
			if s := r.chart(c, m); s != "" {
				files[strings.ToLower(c.String())+map[manner]string{separated: "-separated"}[m]+".svg"] = s
			}
		}
	}
	var errs []error
	for name, content := range files {
		errs = append(errs, os.WriteFile(filepath.Join(r.out, name), []byte(content), 0o644))
	}
	errs = append(errs, r.table("peers.csv", r.summary()), r.table("samples.csv", r.each()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nwritten to %s: peers.txt, peers.csv, samples.csv (every round) and the plots (svg)\n", r.out)
	return err
}

// measured are the manners that have samples.
func (r report) measured() (list []manner) {
	for m := range manner(manners) {
		for k := range r.samples {
			if k.manner == m {
				list = append(list, m)
				break
			}
		}
	}
	return list
}

// present are the programs that have samples.
func (r report) present() (list []string) {
	for _, name := range shown {
		for k := range r.samples {
			if k.program == name {
				list = append(list, name)
				break
			}
		}
	}
	return list
}

func (r report) text() string {
	var s strings.Builder
	where := "ranks in one process"
	if r.between != "" {
		where = "processes joined by " + r.between
	}
	fmt.Fprintf(&s, "collectives of %s beside other programs\n\n%s\n", where, strings.Join(r.host, "\n"))
	fmt.Fprintf(&s, "rounds: %d, each a process of every program for a collective and number of ranks; %d repetitions of about %v in each\n",
		r.rounds, r.repeats, r.budget)
	if r.rounds < minRounds {
		fmt.Fprintf(&s, "ONLY %d ROUNDS: not to be quoted, it takes %d\n", r.rounds, minRounds)
	}
	if r.busy {
		s.WriteString("busy: another process spins on one core all the time; the floors share out their work as if it did not, so they are no bound\n")
	}
	if r.bind {
		s.WriteString("bind: each process of kolo has a core of its own where there is one for each, as those of Open MPI have\n")
	}
	for _, n := range r.notes {
		fmt.Fprintf(&s, "note: %s\n", n)
	}
	fmt.Fprintf(&s, "\n%s", r.definitions())
	for _, m := range r.measured() {
		fmt.Fprintf(&s, "\n%s\n\n", r.title(m))
		r.rows(&s, m)
	}
	return s.String()
}

func (r report) title(m manner) string {
	if m == backToBack && r.think > 0 {
		return fmt.Sprintf("back to back, with %v of work of each rank before each call, whose own time is taken off", r.think)
	}
	return m.String()
}

// definitions say what is measured.
func (r report) definitions() string {
	return strings.Join([]string{
		"size: bytes of one rank's whole vector of float32, rounded up to 4 bytes for each rank's part: the buffer of AllReduce and",
		"  Broadcast, the result of AllGather, the input of ReduceScatter, all that a rank sends in AllToAll",
		"sum: AllReduce and ReduceScatter add; AllReduce is in place (Open MPI also from one buffer to another), Broadcast has one",
		"  buffer, the others have an input and an output; all buffers begin on a page, and ask for huge pages",
		"back to back: N calls / N, of the slowest rank; separated: the mean time of a call after a barrier, of the slowest rank",
		"time: us, the median of the rounds (least..most); of the variants of plain, of Open MPI and of the floors the fastest counts",
		"ratio: time of kolo / time of the other in the same round, the median (least..most); below 1 kolo is faster",
		fmt.Sprintf("floor: %d threads, nobody waits: blocks summed in scratch and copied; one-pass: loaded once, stored everywhere; the floors", r.threads),
		"  do not synchronize, so small sizes say nothing, and they have one time for back to back and separated",
	}, "\n") + "\n"
}

// cases are the keys of the rows, without a program.
func (r report) cases(m manner) (list []key) {
	for _, c := range r.collectives {
		for _, p := range r.ranks {
			for _, s := range r.sizes {
				k := key{collective: c, ranks: p, size: whole(c, p, s), manner: m}
				if !slices.Contains(list, k) {
					list = append(list, k)
				}
			}
		}
	}
	return list
}

// of is the fastest variant of a program at a case.
func (r report) of(k key, program string) (key, bool) {
	k.program = program
	return r.samples.best(k)
}

func (r report) rows(to io.Writer, m manner) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "collective\tranks\tsize\t")
	names := r.present()
	for _, name := range names {
		fmt.Fprintf(w, "%s us\t", name)
		if name != shown[0] {
			fmt.Fprint(w, "ratio\t")
		}
	}
	fmt.Fprintln(w)
	for _, k := range r.cases(m) {
		cells, some := "", false
		ours, _ := r.of(k, shown[0])
		for _, name := range names {
			theirs, ok := r.of(k, name)
			some = some || ok
			cells += cell(spreadOf(values(r.samples[theirs])), 3)
			if name != shown[0] {
				cells += cell(ratios(r.samples[ours], r.samples[theirs]), 3)
			}
		}
		if some {
			fmt.Fprintf(w, "%v\t%d\t%s\t%s\n", k.collective, k.ranks, sizeString(k.size), cells)
		}
	}
	w.Flush() // to memory
}

// cell is a spread in so many significant digits.
func cell(s spread, digits int) string {
	if s.count == 0 {
		return "-\t"
	}
	return fmt.Sprintf("%s (%s..%s)\t", number(s.median, digits), number(s.low, digits), number(s.high, digits))
}

// number has so many significant digits, all digits before the point, and no exponent.
func number(x float64, digits int) string {
	decimals := 0
	if x > 0 {
		decimals = digits - 1 - int(math.Floor(math.Log10(x)))
	}
	return strconv.FormatFloat(x, 'f', min(max(decimals, 0), 4), 64)
}

// summary is the table of all variants, with a header.
func (r report) summary() [][]string {
	list := [][]string{strings.Split("collective,ranks,bytes,manner,program,variant,fastest,rounds,median_us,least_us,most_us,ratio_median,ratio_least,ratio_most", ",")}
	for _, k := range r.keys() {
		ours, _ := r.of(k, shown[0])
		best, _ := r.of(k, k.program)
		s, q := spreadOf(values(r.samples[k])), ratios(r.samples[ours], r.samples[k])
		row := append(columns(k), strconv.FormatBool(k == best), strconv.Itoa(s.count), exact(s.median), exact(s.low), exact(s.high))
		if q.count > 0 {
			row = append(row, exact(q.median), exact(q.low), exact(q.high))
		} else {
			row = append(row, "", "", "")
		}
		list = append(list, row)
	}
	return list
}

// each is the table of all samples, with a header.
func (r report) each() [][]string {
	list := [][]string{strings.Split("collective,ranks,bytes,manner,program,variant,round,us", ",")}
	for _, k := range r.keys() {
		for round := range r.rounds {
			if t, ok := r.samples[k][round]; ok {
				list = append(list, append(columns(k), strconv.Itoa(round), exact(t)))
			}
		}
	}
	return list
}

// keys are sorted as in the text.
func (r report) keys() (list []key) {
	for k := range r.samples {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b key) int {
		return slices.Compare(r.order(a), r.order(b))
	})
	return list
}

func (r report) order(k key) []string {
	at := func(i int) string { return fmt.Sprintf("%12d", i) }
	return []string{
		at(int(k.manner)), at(slices.Index(r.collectives, k.collective)), at(k.ranks), at(int(k.size)),
		at(slices.Index(shown, k.program)), k.variant,
	}
}

func columns(k key) []string {
	return []string{k.collective.String(), strconv.Itoa(k.ranks), strconv.FormatInt(k.size, 10), k.manner.String(), k.program, k.variant}
}

func exact(x float64) string { return strconv.FormatFloat(x, 'g', 5, 64) }

// table writes a file of comma-separated values.
func (r report) table(name string, rows [][]string) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	return errors.Join(w.WriteAll(rows), f.Close())
}

// chart is the plot of a collective, with a panel for each number of ranks; empty if it
// has no sizes.
func (r report) chart(c kolo.Collective, m manner) string {
	plot := plot{
		title:    fmt.Sprintf("%v, float32, %s", c, r.title(m)),
		subtitle: fmt.Sprintf("%s; medians and ranges of %d rounds", strings.TrimPrefix(r.host[0], "processor: "), r.rounds),
	}
	for _, p := range r.ranks {
		panel := panel{title: fmt.Sprintf("%d ranks", p)}
		for _, name := range r.present() {
			line := line{name: name}
			for _, k := range r.cases(m) {
				if k.collective != c || k.ranks != p || k.size == 0 {
					continue
				}
				if have, ok := r.of(k, name); ok {
					s := spreadOf(values(r.samples[have]))
					line.points = append(line.points, point{k.size, s.median, s.low, s.high})
				}
			}
			if len(line.points) > 0 {
				panel.lines = append(panel.lines, line)
			}
		}
		if len(panel.lines) > 0 {
			plot.panels = append(plot.panels, panel)
		}
	}
	return plot.svg()
}
