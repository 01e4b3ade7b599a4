package survey

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// maxShown is how many processes a matrix is drawn for.
const maxShown = 16

// String is the survey for people: who is where, what kinds of links there are, and from
// process to process which.
func (s *Survey) String() string {
	var b strings.Builder
	names, ranks := s.hosts()
	for i, n := range names {
		p := &s.Places[ranks[n][0]]
		fmt.Fprintf(&b, "host %s", serverID(n, i))
		if p.Rack != "" {
			fmt.Fprintf(&b, " in rack %s", p.Rack)
		}
		if len(p.Addresses) > 0 {
			fmt.Fprintf(&b, " (%s)", p.Addresses[0])
		}
		processes := map[int]bool{}
		for _, r := range ranks[n] {
			processes[s.Places[r].Process] = true
		}
		fmt.Fprintf(&b, ": rank %s, processes: %d\n", kolo.RankList(ranks[n]), len(processes))
	}
	for _, c := range s.Classes() {
		fmt.Fprintf(&b, "%-5v between ranks that share %s: %d measured", c.Link, shared(c.Distance), c.Count)
		if c.Count > 0 {
			fmt.Fprintf(&b, ", latency %v to %v, bandwidth %s to %s", c.Latency[0], c.Latency[2], kolo.RateString(c.Bandwidth[0]), kolo.RateString(c.Bandwidth[2]))
		}
		if c.Lost > 0 {
			fmt.Fprintf(&b, ", %d LOST", c.Lost)
		}
		b.WriteString("\n")
	}
	b.WriteString(s.Matrix())
	return b.String()
}

// Matrix is a table of the links from process to process, rows send; for more than 16
// processes it is empty.
func (s *Survey) Matrix() string {
	x := s.index()
	if len(x.lead) > maxShown || len(x.lead) < 2 {
		return ""
	}
	var leads []kolo.Rank
	for r := range s.Places {
		if x.lead[s.Places[r].Process] == kolo.Rank(r) {
			leads = append(leads, kolo.Rank(r))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s", "from\\to")
	for _, r := range leads {
		fmt.Fprintf(&b, " %-18s", fmt.Sprintf("rank %d", r))
	}
	for _, from := range leads {
		fmt.Fprintf(&b, "\n%-9s", fmt.Sprintf("rank %d", from))
		for _, to := range leads {
			cell := "-"
			switch w, ok := x.between(from, to); {
			case from == to || !ok:
			case w.Lost != "":
				cell = "LOST"
			default:
				cell = fmt.Sprintf("%v %s", w.Edge.Link, kolo.RateString(w.Edge.Bandwidth))
			}
			fmt.Fprintf(&b, " %-18s", cell)
		}
	}
	var lines []string
	for line := range strings.Lines(b.String() + "\n") {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}
