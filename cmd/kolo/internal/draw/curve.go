package draw

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"time"
)

// Curves are panels side by side: time over the number of ranks, both in powers.
type Curves struct {
	Title, Subtitle string
	Panels          []Panel
}

// Panel is a set of lines.
type Panel struct {
	Name  string
	Lines []Line
}

// Line is a time for some numbers of ranks. It has the color of its place in its
// panel.
type Line struct {
	Name  string
	Ranks []int
	Times []time.Duration
}

// The measures of curves, in pixels.
const (
	panelWidth  = 330
	panelHeight = 300
	panelGap    = 74
	panelTop    = 92
)

var lineColors = []string{"#2563b0", "#d9730d", "#2f855a", "#9f3a8c", "#b7791f", "#4a5568", "#c53030", "#2c7a7b"}

// WriteSVG draws the panels.
func (c Curves) WriteSVG(w io.Writer) error {
	b := bufio.NewWriter(w)
	wide, high := panelGap+len(c.Panels)*(panelWidth+panelGap), panelTop+panelHeight+86
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\">\n", wide, high, wide, high)
	fmt.Fprintf(b, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", wide, high)
	fmt.Fprintf(b, "<text x=\"20\" y=\"30\" font-size=\"20\" font-weight=\"bold\" fill=\"%s\">%s</text>\n", ink, html.EscapeString(c.Title))
	fmt.Fprintf(b, "<text x=\"20\" y=\"52\" font-size=\"13\" fill=\"%s\">%s</text>\n", copyColor, html.EscapeString(c.Subtitle))
	for i, p := range c.Panels {
		p.draw(b, panelGap+i*(panelWidth+panelGap))
	}
	if len(c.Panels) > 0 {
		x := panelGap
		for k, l := range c.Panels[0].Lines {
			color := lineColors[k%len(lineColors)]
			fmt.Fprintf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%d\" y=\"%d\" font-size=\"13\" fill=\"%s\">%s</text>\n",
				x, high-22, x+24, high-22, color, x+32, high-18, ink, html.EscapeString(l.Name))
			x += 60 + 8*len(l.Name)
		}
	}
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

// draw draws a panel whose left edge is at x.
func (p Panel) draw(w io.Writer, x int) {
	low, high, few, most := math.Inf(1), 0.0, math.MaxInt, 1
	for _, l := range p.Lines {
		for i, t := range l.Times {
			low, high = min(low, float64(t)), max(high, float64(t))
			few, most = min(few, l.Ranks[i]), max(most, l.Ranks[i])
		}
	}
	if high == 0 {
		return
	}
	bottom, top := math.Floor(math.Log10(max(low, 1))), math.Ceil(math.Log10(high)+1e-9)
	left, right := math.Log2(float64(few)), math.Log2(float64(most))
	px := func(ranks int) float64 {
		return float64(x) + panelWidth*(math.Log2(float64(ranks))-left)/max(right-left, 1)
	}
	py := func(t float64) float64 {
		return panelTop + panelHeight*(1-(math.Log10(max(t, 1))-bottom)/max(top-bottom, 1))
	}
	fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"bold\" fill=\"%s\">%s</text>\n", x, panelTop-12, ink, html.EscapeString(p.Name))
	for e := bottom; e <= top; e++ {
		y := py(math.Pow(10, e))
		fmt.Fprintf(w, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/><text x=\"%d\" y=\"%.1f\" font-size=\"11\" text-anchor=\"end\" fill=\"%s\">%v</text>\n",
			x, y, x+panelWidth, y, faint, x-6, y+4, copyColor, time.Duration(math.Pow(10, e)))
	}
	for r := few; r <= most; r *= 2 {
		fmt.Fprintf(w, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/><text x=\"%.1f\" y=\"%d\" font-size=\"11\" text-anchor=\"middle\" fill=\"%s\">%d</text>\n",
			px(r), panelTop, px(r), panelTop+panelHeight, faint, px(r), panelTop+panelHeight+16, copyColor, r)
	}
	fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"12\" text-anchor=\"middle\" fill=\"%s\">ranks</text>\n", x+panelWidth/2, panelTop+panelHeight+34, copyColor)
	for k, l := range p.Lines {
		color := lineColors[k%len(lineColors)]
		fmt.Fprintf(w, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\" points=\"", color)
		for i, t := range l.Times {
			fmt.Fprintf(w, "%.1f,%.1f ", px(l.Ranks[i]), py(float64(t)))
		}
		fmt.Fprintln(w, "\"/>")
		for i, t := range l.Times {
			fmt.Fprintf(w, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s by %d ranks: %v</title></circle>\n", px(l.Ranks[i]), py(float64(t)), color, html.EscapeString(l.Name), l.Ranks[i], t)
		}
	}
}
