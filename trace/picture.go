package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"time"
)

// Span is one use of a lane: of an engine, a link, a rank.
type Span struct {
	Lane  string // "npu0/compute", "hccs 0>1", "rank 3 out"
	Name  string // what was done: a kernel's name, or "copy", "reduce", "send"
	Bytes int64  // that were read and written, or that passed the link
	Begin time.Duration
	End   time.Duration // when the lane is free again
}

// traceEvent is an entry of the Trace Event Format, which trace viewers of browsers
// read. Times are in microseconds.
type traceEvent struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"` // "X": begin and duration; "M": a name
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Begin    float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// WriteTrace writes spans as a JSON trace for trace viewers, one thread for each
// lane, in the order in which they first come.
func WriteTrace(w io.Writer, spans []Span) error {
	lanes, number := lanesOf(spans)
	events := make([]traceEvent, 0, len(spans)+len(lanes))
	for i, name := range lanes {
		events = append(events, traceEvent{Name: "thread_name", Phase: "M", Thread: i, Args: map[string]any{"name": name}})
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, s := range spans {
		events = append(events, traceEvent{Name: s.Name, Phase: "X", Thread: number[s.Lane],
			Begin: us(s.Begin), Duration: us(s.End - s.Begin), Args: map[string]any{"bytes": s.Bytes}})
	}
	return json.NewEncoder(w).Encode(struct {
		Events []traceEvent `json:"traceEvents"`
	}{events})
}

// The measures of a picture, in pixels.
const (
	pictureLabel = 110 // at the left of each lane
	pictureWidth = 1000
	pictureLane  = 24
)

// WriteSVG draws spans, a row for each lane, in the order in which they first come. Each
// rectangle says when it was, if it is pointed at.
func WriteSVG(w io.Writer, spans []Span) error {
	lanes, number := lanesOf(spans)
	var from, to time.Duration
	for i, s := range spans {
		if i == 0 || s.Begin < from {
			from = s.Begin
		}
		to = max(to, s.End)
	}
	scale := pictureWidth / float64(max(to-from, 1))
	b := bufio.NewWriter(w)
	height := pictureLane*len(lanes) + 20
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n",
		pictureLabel+pictureWidth+10, height)
	for i, name := range lanes {
		fmt.Fprintf(b, "<text x=\"4\" y=\"%d\">%s</text>\n", pictureLane*i+16, html.EscapeString(name))
	}
	for _, s := range spans {
		row := number[s.Lane]
		fmt.Fprintf(b, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"white\" stroke-width=\"0.5\"><title>%s, %d bytes, %v to %v</title></rect>\n",
			pictureLabel+scale*float64(s.Begin-from), pictureLane*row+4, max(scale*float64(s.End-s.Begin), 0.5), pictureLane-6,
			color(s.Name), html.EscapeString(s.Name), s.Bytes, s.Begin, s.End)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%v</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%v</text>\n</svg>\n",
		pictureLabel, height-6, from, pictureLabel+pictureWidth, height-6, to)
	return b.Flush()
}

// color tells moving, folding and computing apart.
func color(name string) string {
	switch name {
	case "copy", "send":
		return "#4a90d9"
	case "reduce", "recv-reduce":
		return "#d98c4a"
	}
	return "#6aa84f"
}

// lanesOf are the lanes that spans have, each where it first comes, and their numbers.
func lanesOf(spans []Span) (lanes []string, number map[string]int) {
	number = map[string]int{}
	for _, s := range spans {
		if _, ok := number[s.Lane]; !ok {
			number[s.Lane] = len(lanes)
			lanes = append(lanes, s.Lane)
		}
	}
	return lanes, number
}
