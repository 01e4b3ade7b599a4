package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Point is the result for one size.
type Point struct {
	Size  int64   // bytes
	Time  float64 // microseconds
	BusBW float64 // 1e9 bytes per second
}

// Series is one curve.
type Series struct {
	Name   string
	Points []Point
}

// The measures of a picture.
const (
	pictureWidth  = 8 * vg.Inch
	pictureHeight = 8 * vg.Inch
	dotsPerInch   = 120
)

// Check says whether Write can write such a file: the name must end in .png or .svg.
func Check(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".png", ".svg":
		return nil
	}
	return fmt.Errorf("a plot is a .png or an .svg file, not %q", filepath.Base(path))
}

// Write draws bus bandwidth above time. Points without a positive value are left
// out, and so is a half of the picture that has none.
func Write(path, title string, series []Series) error {
	if err := Check(path); err != nil {
		return err
	}
	var halves []*plot.Plot
	for _, q := range []quantity{
		{"bus bandwidth, GB/s", func(p Point) float64 { return p.BusBW }},
		{"time, us", func(p Point) float64 { return p.Time }},
	} {
		p, err := half(q, series)
		if err != nil {
			return fmt.Errorf("plot %s: %w", q.label, err)
		}
		if p != nil {
			halves = append(halves, p)
		}
	}
	if len(halves) == 0 {
		return fmt.Errorf("there is nothing to plot: no size was measured")
	}
	halves[0].Title.Text = title
	halves[len(halves)-1].X.Label.Text = "size"
	return paint(path, halves)
}

// quantity is what a half of the picture shows.
type quantity struct {
	label string
	of    func(Point) float64
}

// colors tell the curves apart, also for those who see red and green alike.
func colors(i int) color.Color {
	list := []color.RGBA{{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff}}
	return list[i%len(list)]
}

// half draws one quantity, or returns nil if there is no point of it.
func half(q quantity, series []Series) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = q.label
	dress(p)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	var x, y extent
	for i, s := range series {
		xys := plotter.XYs{}
		for _, point := range s.Points {
			if v := q.of(point); v > 0 && point.Size > 0 {
				xys = append(xys, plotter.XY{X: float64(point.Size), Y: v})
				x.add(float64(point.Size))
				y.add(v)
			}
		}
		if len(xys) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colors(i), 1.5
		dots.Color, dots.Shape, dots.Radius = colors(i), draw.CircleGlyph{}, 2.5
		p.Add(line, dots)
		p.Legend.Add(s.Name, line, dots)
	}
	if x.empty() {
		return nil, nil
	}
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, true, 8, -4
	x.outward(2)
	y.outward(10)
	set(&p.X, x, sizeTicks)
	set(&p.Y, y, decadeTicks)
	return p, nil
}

// dress sets the letters.
func dress(p *plot.Plot) {
	for _, s := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		s.Font.Variant = "Sans"
	}
	p.Title.TextStyle.Font.Size, p.Title.Padding = 14, 6
	p.Legend.TextStyle.Font.Size, p.Legend.Padding = 10, 3
}

// set makes an axis logarithmic.
func set(a *plot.Axis, e extent, ticks func(lo, hi float64) []plot.Tick) {
	a.Scale = plot.LogScale{}
	a.Min, a.Max = e.lo, e.hi
	a.Tick.Marker = plot.TickerFunc(ticks)
	a.Padding = 0
}

// paint writes the halves, one above the other, to the file.
func paint(path string, halves []*plot.Plot) error {
	height := pictureHeight * vg.Length(len(halves)) / 2
	var canvas interface {
		vg.CanvasSizer
		vg.CanvasWriterTo
	}
	if strings.EqualFold(filepath.Ext(path), ".svg") {
		canvas = vgsvg.New(pictureWidth, height)
	} else {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(pictureWidth, height), vgimg.UseDPI(dotsPerInch))}
	}
	tiles := draw.Tiles{Rows: len(halves), Cols: 1, PadTop: 8, PadBottom: 8, PadLeft: 8, PadRight: 16, PadY: 10}
	rows := make([][]*plot.Plot, len(halves))
	for i, p := range halves {
		rows[i] = []*plot.Plot{p}
	}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		halves[i].Draw(row[0])
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return fmt.Errorf("draw a plot: %w", err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write a plot: %w", err)
	}
	return nil
}
