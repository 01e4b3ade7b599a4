package cluster

import (
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
