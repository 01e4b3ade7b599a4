package chart

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
)

// maxLabels is how many labels an axis of sizes has room for.
const maxLabels = 12

// extent is the range of an axis.
type extent struct{ lo, hi float64 }

func (e *extent) empty() bool { return e.hi == 0 }

func (e *extent) add(v float64) {
	if e.empty() {
		e.lo, e.hi = v, v
	}
	e.lo, e.hi = min(e.lo, v), max(e.hi, v)
}

// outward moves the ends to powers of base, and makes them differ.
func (e *extent) outward(base float64) {
	lo := math.Floor(logOf(base, e.lo))
	hi := math.Ceil(logOf(base, e.hi))
	if lo == hi {
		lo, hi = lo-1, hi+1
	}
	e.lo, e.hi = math.Pow(base, lo), math.Pow(base, hi)
}

// logOf is a logarithm in which powers of the base are whole numbers.
func logOf(base, v float64) float64 {
	x := math.Log(v) / math.Log(base)
	if r := math.Round(x); math.Abs(x-r) < 1e-9 {
		return r
	}
	return x
}

// sizeTicks are the powers of two, with as many labels as there is room for.
func sizeTicks(lo, hi float64) []plot.Tick {
	first, last := int(math.Ceil(logOf(2, lo))), int(math.Floor(logOf(2, hi)))
	every := (last-first)/maxLabels + 1
	var ticks []plot.Tick
	for k := first; k <= last; k++ {
		t := plot.Tick{Value: math.Ldexp(1, k)}
		if (k-first)%every == 0 {
			t.Label = sizeLabel(k)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// sizeLabel is two to the k bytes.
func sizeLabel(k int) string {
	if k < 0 {
		return ""
	}
	units := []string{"", "K", "M", "G", "T"}
	u := min(k/10, len(units)-1)
	return fmt.Sprintf("%.0f%s", math.Ldexp(1, k-10*u), units[u])
}

// decadeTicks are the powers of ten; a short axis has labels at 2 and 5 of each too.
func decadeTicks(lo, hi float64) []plot.Tick {
	first, last := int(math.Floor(logOf(10, lo))), int(math.Ceil(logOf(10, hi)))
	var ticks []plot.Tick
	for k := first; k <= last; k++ {
		for digit := 1.0; digit < 10; digit++ {
			v := digit * math.Pow(10, float64(k))
			if v < lo*(1-1e-9) || v > hi*(1+1e-9) {
				continue
			}
			t := plot.Tick{Value: v}
			if digit == 1 || (digit == 2 || digit == 5) && last-first <= 3 {
				t.Label = fmt.Sprintf("%.12g", v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
