package plan

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// String is the choice in a line, as "fabric for AllReduce of 1 MiB by 8 ranks in 1
// server: the medium does it ...".
func (ch Choice) String() string {
	return fmt.Sprintf("%s for %s: %s", ch.Algorithm, ch.subject(), ch.Why)
}

// subject is what is chosen for.
func (ch Choice) subject() string {
	s := ch.Collective.String()
	if ch.Size > 0 {
		s += " of " + amount(float64(ch.Size))
	}
	if ch.topology != nil {
		s += " by " + ch.topology.shape()
	}
	return s
}

// Explain is the whole table: what was chosen for what and on which figures, then
// every algorithm with its cost and why it won, lost or does not serve.
func (ch Choice) Explain() string {
	var b strings.Builder
	how := ch.Policy.Method.String()
	if ch.Policy.Reproducible {
		how += ", reproducible"
	}
	fmt.Fprintf(&b, "%s (%s): %s\n", ch.subject(), how, ch.Algorithm)
	if ch.topology != nil {
		fmt.Fprintf(&b, "%v\n", ch.topology)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.TabIndent)
	fmt.Fprintln(w, "  algorithm\tcost\trounds\tbytes\tfolded\twhy")
	for _, r := range ch.Rows {
		mark := ' '
		if r.Name == ch.Algorithm {
			mark = '>'
		}
		if !r.Serves || r.Cost == NoCost {
			fmt.Fprintf(w, "%c %s\t-\t-\t-\t-\t%s\n", mark, r.Name, r.Why)
			continue
		}
		fmt.Fprintf(w, "%c %s\t%s\t%.4g\t%s\t%s\t%s\n", mark, r.Name, duration(r.Cost), r.Rounds, amount(r.Bytes), amount(r.Reduced), r.Why)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}

// duration is d with three digits, as "1.35us" or "12ms".
func duration(d time.Duration) string {
	x, unit := float64(d), "ns"
	for _, u := range []string{"us", "ms", "s"} {
		if x < 999.5 {
			break
		}
		x, unit = x/1000, u
	}
	if x >= 999.5 {
		return fmt.Sprintf("%.0f%s", x, unit)
	}
	return fmt.Sprintf("%.3g%s", x, unit)
}

// amount is a number of bytes with three digits or so, as "8 B" or "1.75 MiB".
func amount(x float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; x >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if x >= 1000 {
		return fmt.Sprintf("%.0f %s", x, units[i])
	}
	return fmt.Sprintf("%.3g %s", x, units[i])
}
