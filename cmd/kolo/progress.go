package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress is one line on a terminal that says how far a run is. All methods are
// for one goroutine at a time; those of a nil progress do nothing.
type progress struct {
	w     io.Writer
	total int
	done  int
	start time.Time
	now   func() time.Time
	width int // of what stands there
}

// barWidth is the length of the bar in characters.
const barWidth = 24

// begin shows the line, with what is being done.
func (p *progress) begin(what string) {
	if p == nil {
		return
	}
	filled := barWidth * p.done / max(p.total, 1)
	line := fmt.Sprintf("[%s%s] %d/%d  %s%s", strings.Repeat("=", filled), strings.Repeat(" ", barWidth-filled),
		p.done, p.total, what, p.left())
	p.show(line)
}

// end counts one more as done and takes the line away.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.done++
	p.clear()
}

// clear takes the line away, to make room for other output.
func (p *progress) clear() {
	if p != nil && p.width > 0 {
		p.show("")
	}
}

// show replaces the line.
func (p *progress) show(line string) {
	blank := max(p.width-len(line), 0)
	text := "\r" + line + strings.Repeat(" ", blank)
	if line == "" {
		text += "\r"
	}
	_, _ = io.WriteString(p.w, text) // a terminal that is gone shows nothing
	p.width = len(line)
}

// left says how long the rest may take. Sizes grow, and so does the estimate.
func (p *progress) left() string {
	if p.done == 0 {
		return ""
	}
	d := p.now().Sub(p.start) / time.Duration(p.done) * time.Duration(p.total-p.done)
	return fmt.Sprintf("  %v left or more", d.Round(time.Second))
}
