package cluster

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// maxProcessors is more than the numbers of a machine's processors: Linux has at most 8192.
const maxProcessors = 8192

// allowed is the processors that this process may use, as Linux writes them, "0-3,8"; "" where
// that is not known. Launchers bind processes to some of a machine's, and containers have some.
func allowed() string {
	if runtime.GOOS != "linux" {
		return ""
	}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(list)
		}
	}
	return ""
}

// addProcessors marks the processors of a list in set, and says whether it is one.
func addProcessors(set *[maxProcessors]bool, list string) bool {
	for item := range strings.SplitSeq(list, ",") {
		from, to, several := strings.Cut(item, "-")
		if !several {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return false
		}
		b, err := strconv.ParseUint(to, 10, 32)
		if err != nil || b < a || b >= maxProcessors {
			return false
		}
		for ; a <= b; a++ {
			set[a] = true
		}
	}
	return true
}

// cores is how many processors the processes of a process's machine may use between them: where
// each is bound to some of its own, those of all. 0: it is not known.
func (r *roster) cores(of int) int {
	var set [maxProcessors]bool
	known, most := true, 0
	for q := range r.Members {
		if h := &r.Members[q].Host; h.Machine == r.Members[of].Host.Machine {
			most = max(most, h.Cores)
			known = known && addProcessors(&set, h.Processors)
		}
	}
	n := 0
	for _, in := range set {
		if in {
			n++
		}
	}
	if !known || n < most { // a limit of another kind, or a list that is none
		return most
	}
	return n
}

// load is the load of a minute, 0 where it is not known.
func load() float64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	x, err := strconv.ParseFloat(first, 64)
	if err != nil || !(x >= 0) {
		return 0
	}
	return math.Round(x*10) / 10
}

// loadSlack is how much more load than processors there may be where nobody waits.
const loadSlack = 0.5

// crowd says how much more there is to run than processors on a process's machine, or "": what is
// measured there is then the time of the scheduler, and no fault of a link.
func (r *roster) crowd(of int) string {
	here, load := 0, 0.0
	for q := range r.Members {
		if h := &r.Members[q].Host; h.Machine == r.Members[of].Host.Machine {
			here, load = here+1, max(load, h.Load)
		}
	}
	cores := r.cores(of)
	if cores == 0 || float64(here)+load <= float64(cores)+loadSlack {
		return ""
	}
	return fmt.Sprintf("host %s is crowded: %d processes, and a load of %.1f before, on %d processors", cmp.Or(r.Members[of].Host.Name, "without a name"), here, load, cores)
}

// crowds are those of all machines.
func (r *roster) crowds() (list []string) {
	seen := map[string]bool{}
	for q := range r.Members {
		if m := r.Members[q].Host.Machine; !seen[m] {
			seen[m] = true
			if text := r.crowd(q); text != "" {
				list = append(list, text)
			}
		}
	}
	return list
}
