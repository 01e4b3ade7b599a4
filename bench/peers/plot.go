package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// plot is panels side by side, with the same logarithmic axes: sizes and times.
type plot struct {
	title, subtitle string
	panels          []panel
}

type panel struct {
	title string
	lines []line
}

type line struct {
	name   string
	points []point
}

type point struct {
	size            int64
	us, least, most float64
}

// style is how a program is drawn. The colours can be told apart by the colour-blind, and
// the markers without colour.
type style struct{ colour, dash, marker string }

var styles = map[string]style{
	"kolo":     {"#0072b2", "", "circle"},
	"plain":    {"#d55e00", "", "square"},
	"openmpi":  {"#009e73", "", "triangle"},
	"gloo":     {"#cc79a7", "", "diamond"},
	"floor":    {"#999999", "2 3", "cross"},
	"one-pass": {"#333333", "6 3", "bar"},
}

// Layout, in pixels.
const (
	panelWidth, panelHeight = 490, 360
	left, right             = 66, 14
	top, bottom             = 104, 46
)

// axes map sizes and times to pixels within a panel.
type axes struct {
	lowSize, highSize float64 // log2
	lowTime, highTime float64 // log10 us, whole decades
}

func (a axes) x(size int64) float64 {
	return (math.Log2(float64(size)) - a.lowSize) / (a.highSize - a.lowSize) * panelWidth
}

func (a axes) y(us float64) float64 {
	return panelHeight - (math.Log10(us)-a.lowTime)/(a.highTime-a.lowTime)*panelHeight
}

// svg is the picture, or nothing if there is nothing to draw.
func (p plot) svg() string {
	a := p.axes()
	if a.highTime == a.lowTime {
		return ""
	}
	width := len(p.panels)*(left+panelWidth+right) + right
	width = max(width, 640)
	height := top + panelHeight + bottom
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	label(&s, 16, 26, "start", `font-size="16" font-weight="bold"`, p.title)
	label(&s, 16, 44, "start", `fill="#555555"`, p.subtitle)
	p.legend(&s)
	for i, panel := range p.panels {
		fmt.Fprintf(&s, `<g transform="translate(%d %d)">`+"\n", left+i*(left+panelWidth+right), top)
		a.frame(&s, panel.sizes())
		label(&s, panelWidth/2, -10, "middle", `font-weight="bold"`, panel.title)
		for _, l := range slices.Backward(panel.lines) { // ours on top
			a.draw(&s, l)
		}
		s.WriteString("</g>\n")
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// axes hold all points; they are empty if there are none.
func (p plot) axes() (a axes) {
	least, most := math.Inf(1), 0.0
	var sizes []int64
	for _, panel := range p.panels {
		sizes = append(sizes, panel.sizes()...)
		for _, l := range panel.lines {
			for _, q := range l.points {
				least, most = min(least, q.least), max(most, q.most)
			}
		}
	}
	if len(sizes) == 0 {
		return a
	}
	a.lowSize, a.highSize = math.Log2(float64(slices.Min(sizes)))-0.7, math.Log2(float64(slices.Max(sizes)))+0.7
	a.lowTime, a.highTime = math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	if a.highTime == a.lowTime {
		a.highTime++
	}
	return a
}

// sizes are the different ones of a panel, sorted.
func (p panel) sizes() (list []int64) {
	for _, l := range p.lines {
		for _, q := range l.points {
			list = append(list, q.size)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// frame draws the border, the grid and the labels of the axes.
func (a axes) frame(s *strings.Builder, sizes []int64) {
	for d := a.lowTime; d <= a.highTime; d++ {
		y := a.y(math.Pow(10, d))
		fmt.Fprintf(s, `<path d="M0 %.1fH%d" stroke="#dddddd"/>`+"\n", y, panelWidth)
		label(s, -8, y+4, "end", "", timeString(d))
		for n := 2.0; n < 10 && d < a.highTime; n++ {
			fmt.Fprintf(s, `<path d="M0 %.1fh4" stroke="#999999"/>`+"\n", a.y(n*math.Pow(10, d)))
		}
	}
	last := math.Inf(-1)
	for _, size := range sizes {
		x := a.x(size)
		fmt.Fprintf(s, `<path d="M%.1f 0V%d" stroke="#eeeeee"/>`+"\n", x, panelHeight)
		if x-last >= 34 { // room for the label
			label(s, x, panelHeight+17, "middle", `font-size="10"`, sizeString(size))
			last = x
		}
	}
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="none" stroke="#666666"/>`+"\n", panelWidth, panelHeight)
	label(s, panelWidth/2, panelHeight+36, "middle", `fill="#555555"`, "size of the whole vector")
}

// draw is one program's line, with its ranges and markers.
func (a axes) draw(s *strings.Builder, l line) {
	st := styleOf(l.name)
	var path strings.Builder
	for i, q := range l.points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], a.x(q.size), a.y(q.us))
	}
	fmt.Fprintf(s, `<g stroke="%s" fill="%s"><title>%s</title>`+"\n", st.colour, st.colour, html.EscapeString(l.name))
	fmt.Fprintf(s, `<path d="%s" fill="none" stroke-width="2" stroke-dasharray="%s"/>`+"\n", path.String(), st.dash)
	for _, q := range l.points {
		x := a.x(q.size)
		fmt.Fprintf(s, `<path d="M%.1f %.1fV%.1f" stroke-opacity="0.45"/>`, x, a.y(q.least), a.y(q.most))
		s.WriteString(mark(st.marker, x, a.y(q.us)))
	}
	s.WriteString("</g>\n")
}

// legend is a row above the panels.
func (p plot) legend(s *strings.Builder) {
	var names []string
	for _, panel := range p.panels {
		for _, l := range panel.lines {
			if !slices.Contains(names, l.name) {
				names = append(names, l.name)
			}
		}
	}
	for i, name := range names {
		st, x := styleOf(name), 16+112*float64(i)
		fmt.Fprintf(s, `<g stroke="%s" fill="%s"><path d="M%.1f 66h28" stroke-width="2" stroke-dasharray="%s"/>%s</g>`+"\n",
			st.colour, st.colour, x, st.dash, mark(st.marker, x+14, 66))
		label(s, x+36, 70, "start", "", name)
	}
}

func styleOf(name string) style {
	if st, ok := styles[name]; ok {
		return st
	}
	return style{"#56b4e9", "", "circle"}
}

func mark(kind string, x, y float64) string {
	switch kind {
	case "square":
		return fmt.Sprintf(`<rect x="%.1f" y="%.1f" width="7" height="7" stroke="none"/>`+"\n", x-3.5, y-3.5)
	case "triangle":
		return fmt.Sprintf(`<path d="M%.1f %.1fl4.5 8h-9z" stroke="none"/>`+"\n", x, y-5)
	case "diamond":
		return fmt.Sprintf(`<path d="M%.1f %.1fl4.5 4.5l-4.5 4.5l-4.5 -4.5z" stroke="none"/>`+"\n", x, y-4.5)
	case "cross":
		return fmt.Sprintf(`<path d="M%.1f %.1fl6 6m0 -6l-6 6" stroke-width="1.5"/>`+"\n", x-3, y-3)
	case "bar":
		return fmt.Sprintf(`<path d="M%.1f %.1fh8" stroke-width="3"/>`+"\n", x-4, y)
	}
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="4" stroke="none"/>`+"\n", x, y)
}

func label(s *strings.Builder, x, y float64, anchor, attributes, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, attributes, html.EscapeString(text))
}

// timeString is 10^decade microseconds.
func timeString(decade float64) string {
	units := []string{"ns", "µs", "ms", "s"}
	d := int(decade) + 3 // of nanoseconds
	if d < 0 {
		return fmt.Sprintf("10^%d ns", d)
	}
	u := min(d/3, len(units)-1)
	return fmt.Sprintf("%.0f %s", math.Pow(10, float64(d-3*u)), units[u])
}
