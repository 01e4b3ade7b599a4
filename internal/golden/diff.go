package golden

import (
	"fmt"
	"strings"
)

const (
	maxShown   = 80      // lines of a diff that are printed
	maxCells   = 4 << 20 // lines of one text times lines of the other that are aligned
	around     = 3       // equal lines printed before and after a change
	endMissing = "\\ no newline at the end"
)

// edit is one line of a diff.
type edit struct {
	sign byte // ' ' in both, '-' only wanted, '+' only got
	line string
}

// diff shows the lines in which two texts differ, with a few equal ones around
// them. It is empty for equal texts.
func diff(want, got string) string {
	if want == got {
		return ""
	}
	return show(edits(split(want), split(got)))
}

// split cuts a text into lines. A last line without its newline is marked, so that
// it differs from one that has it.
func split(s string) []string {
	if s == "" {
		return nil
	}
	lines := strings.Split(s, "\n")
	if last := len(lines) - 1; lines[last] == "" {
		return lines[:last]
	}
	return append(lines, endMissing)
}

// edits aligns two lists of lines. What both begin and end with is set aside; the
// rest is aligned by its longest common subsequence, or, if it is too long for that,
// shown as replaced.
func edits(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	all := mark(nil, ' ', a[:head])
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(x)*len(y) > maxCells {
		all = mark(mark(all, '-', x), '+', y)
	} else {
		all = align(all, x, y)
	}
	return mark(all, ' ', a[len(a)-tail:])
}

func mark(all []edit, sign byte, lines []string) []edit {
	for _, l := range lines {
		all = append(all, edit{sign, l})
	}
	return all
}

// align appends the shortest edit of a into b.
func align(all []edit, a, b []string) []edit {
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			all = append(all, edit{' ', a[i]})
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			all = append(all, edit{'-', a[i]})
			i++
		default:
			all = append(all, edit{'+', b[j]})
			j++
		}
	}
	return mark(mark(all, '-', a[i:]), '+', b[j:])
}

// show prints the changes, each stretch under the number of its first wanted line.
func show(all []edit) string {
	near := make([]bool, len(all))
	for i, e := range all {
		if e.sign != ' ' {
			for k := max(0, i-around); k <= min(len(all)-1, i+around); k++ {
				near[k] = true
			}
		}
	}
	var out strings.Builder
	line, shown := 1, 0
	for i, e := range all {
		if near[i] {
			if shown == maxShown {
				out.WriteString("... and more\n")
				break
			}
			if i == 0 || !near[i-1] {
				fmt.Fprintf(&out, "line %d:\n", line)
			}
			fmt.Fprintf(&out, "%c %s\n", e.sign, e.line)
			shown++
		}
		if e.sign != '+' {
			line++
		}
	}
	return out.String()
}
