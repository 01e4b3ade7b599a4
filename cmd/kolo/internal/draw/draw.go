package draw

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Picture is what to draw.
type Picture struct {
	Programs []*plan.Program // of all ranks, such as Verify admits
	Server   []int           // by rank: its server; nil, or all alike: no servers are shown
	Subtitle string
}

// The most that a picture can show.
const (
	MaxRanks    = 64
	MaxMessages = 4096
)

// The measures of a picture, in pixels.
const (
	left      = 110 // where rounds begin
	right     = 30
	top       = 96 // where rows begin
	bottom    = 46
	maxWidth  = 1500 // of all rounds
	mostRound = 128
	leastRow  = 22
	mostRow   = 58
	maxHeight = 1100 // of all rows
	inset     = 14   // of an arrow in its round, at both ends
	fewLabels = 96   // messages with up to which each is labelled
)

// The colors: a message that is folded, one that is stored, a copy.
const (
	foldColor  = "#d9730d"
	storeColor = "#2563b0"
	copyColor  = "#6b7280"
	ink        = "#1f2937"
	faint      = "#d1d5db"
	band       = "#f3f4f6"
)

// WriteSVG draws the picture: time goes to the right, in rounds. A message is in the
// earliest round in which it can go when every message takes a round.
func (p Picture) WriteSVG(w io.Writer) error {
	c, err := newScene(p.Programs)
	if err != nil {
		return err
	}
	c.width = min(mostRound, max(maxWidth/max(c.rounds, 1), 2*inset+6))
	c.row = min(mostRow, max(maxHeight/len(p.Programs), leastRow))
	b := bufio.NewWriter(w)
	wide, high := left+max(c.width*c.rounds, 520)+right, top+c.row*len(p.Programs)+bottom
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\">\n", wide, high, wide, high)
	fmt.Fprintf(b, "<defs>%s%s</defs>\n", arrowHead("fold", foldColor), arrowHead("store", storeColor))
	fmt.Fprintf(b, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", wide, high)
	first := p.Programs[0]
	fmt.Fprintf(b, "<text x=\"20\" y=\"34\" font-size=\"22\" font-weight=\"bold\" fill=\"%s\">%s %v, %d ranks</text>\n", ink, html.EscapeString(first.Algorithm), first.Collective, len(p.Programs))
	fmt.Fprintf(b, "<text x=\"20\" y=\"58\" font-size=\"14\" fill=\"%s\">%s</text>\n", copyColor, html.EscapeString(c.summary(p.Subtitle)))
	c.grid(b, p, wide)
	said := map[message]bool{} // what goes to several peers at a time is labelled once
	for _, m := range c.messages {
		what := message{from: m.from, lane: m.lane, round: m.round, label: m.label}
		if said[what] {
			m.label = ""
		}
		said[what] = true
		c.arrow(b, m)
	}
	for _, k := range c.copies {
		x, y := left+c.width*k.round, c.y(k.rank)
		fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"8\" height=\"8\" fill=\"%s\"><title>%s</title></rect>\n", x-4, y-4, copyColor, html.EscapeString(k.text))
	}
	legend(b, high-16)
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

// WriteHTML writes a page with the picture and, below it, the steps of each rank.
func (p Picture) WriteHTML(w io.Writer) error {
	var svg strings.Builder
	if err := p.WriteSVG(&svg); err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	first := p.Programs[0]
	title := html.EscapeString(fmt.Sprintf("%s %v, %d ranks", first.Algorithm, first.Collective, len(p.Programs)))
	fmt.Fprintf(b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title>\n", title)
	fmt.Fprintf(b, "<style>body{font-family:Helvetica,Arial,sans-serif;margin:24px;color:%s}pre{background:%s;padding:12px;overflow:auto}summary{cursor:pointer}</style></head>\n<body>\n%s", ink, band, svg.String())
	for _, q := range p.Programs {
		head, steps, _ := strings.Cut(q.String(), "\n")
		fmt.Fprintf(b, "<details><summary>%s</summary><pre>%s</pre></details>\n", html.EscapeString(head), html.EscapeString(steps))
	}
	fmt.Fprintln(b, "</body></html>")
	return b.Flush()
}

func arrowHead(name, color string) string {
	return fmt.Sprintf("<marker id=\"%s\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0.8L10 5L0 9.2z\" fill=\"%s\"/></marker>", name, color)
}

// scene is a choreography in rounds.
type scene struct {
	programs []*plan.Program
	messages []message
	copies   []local
	rounds   int
	width    int // of a round
	row      int
	labels   bool
}

// message is an arrow. fold says that the receiver folds it.
type message struct {
	from, to kolo.Rank
	lane     uint8
	round    int
	fold     bool
	label    string
	text     string
}

// local is a copy of a rank before a round.
type local struct {
	rank  kolo.Rank
	round int
	text  string
}

type lineKey struct {
	from, to kolo.Rank
	lane     uint8
}

// end is one end of a message.
type end struct {
	rank kolo.Rank
	step int
}

// newScene puts the messages into rounds.
func newScene(programs []*plan.Program) (*scene, error) {
	n := len(programs)
	if n == 0 || n > MaxRanks {
		return nil, fmt.Errorf("%w: a picture of %d ranks; it can show 1 to %d", kolo.ErrArgument, n, MaxRanks)
	}
	sends, recvs := map[lineKey][]end{}, map[lineKey][]end{}
	var lines []lineKey
	total := 0
	for r, p := range programs {
		for i := range p.Steps {
			s := &p.Steps[i]
			for _, q := range s.Peers {
				if s.Op == plan.Send {
					k := lineKey{kolo.Rank(r), p.Peer(q), s.Lane}
					if sends[k] == nil {
						lines = append(lines, k)
					}
					sends[k] = append(sends[k], end{kolo.Rank(r), i})
					total++
				} else {
					k := lineKey{p.Peer(q), kolo.Rank(r), s.Lane}
					recvs[k] = append(recvs[k], end{kolo.Rank(r), i})
				}
			}
		}
	}
	if total > MaxMessages {
		return nil, fmt.Errorf("%w: a picture of %d messages; it can show %d: take fewer ranks", kolo.ErrLimit, total, MaxMessages)
	}
	for _, k := range lines {
		if len(sends[k]) != len(recvs[k]) {
			return nil, fmt.Errorf("%w: rank %d sends %d messages to rank %d, which takes %d", kolo.ErrArgument, k.from, len(sends[k]), k.to, len(recvs[k]))
		}
	}
	c := &scene{programs: programs, labels: total <= fewLabels}
	return c, c.schedule(lines, sends, recvs)
}

// schedule finds the round of every message: one more than the latest that its two
// steps come after, and after the one before it on its line.
func (c *scene) schedule(lines []lineKey, sends, recvs map[lineKey][]end) error {
	done := make([][]int, len(c.programs)) // by rank and step: the rounds that have passed when it has ended; -1 not known
	for r, p := range c.programs {
		done[r] = slices.Repeat([]int{-1}, len(p.Steps))
	}
	left := make([][]int, len(c.programs)) // messages of a step without a round
	for r, p := range c.programs {
		for i := range p.Steps {
			left[r] = append(left[r], len(p.Steps[i].Peers))
		}
	}
	// begin is the number of rounds before a step can begin, -1 while that is not known.
	begin := func(e end) int {
		at := 0
		for _, a := range c.programs[e.rank].Steps[e.step].After {
			if done[e.rank][a] < 0 {
				return -1
			}
			at = max(at, done[e.rank][a])
		}
		return at
	}
	latest := map[end]int{}
	next, before := map[lineKey]int{}, map[lineKey]int{}
	for moved := true; moved; {
		moved = false
		for r, p := range c.programs {
			for i := range p.Steps {
				e := end{kolo.Rank(r), i}
				if at := begin(e); done[r][i] < 0 && left[r][i] == 0 && at >= 0 {
					if done[r][i], moved = max(at, latest[e]), true; len(p.Steps[i].Peers) == 0 {
						c.copies = append(c.copies, local{kolo.Rank(r), done[r][i], p.Describe(i)})
					}
				}
			}
		}
		for _, k := range lines {
			for next[k] < len(sends[k]) {
				s, t := sends[k][next[k]], recvs[k][next[k]]
				a, b := begin(s), begin(t)
				if a < 0 || b < 0 {
					break
				}
				round := max(a, b, before[k])
				moved, next[k], before[k] = true, next[k]+1, round+1
				for _, e := range []end{s, t} {
					left[e.rank][e.step]--
					latest[e] = max(latest[e], round+1)
				}
				c.add(k, round, s, t)
			}
		}
	}
	for r, list := range done {
		if i := slices.Index(list, -1); i >= 0 {
			return fmt.Errorf("%w: rank %d, step %d can never run; verify says why", kolo.ErrArgument, r, i)
		}
	}
	return nil
}

// add notes message number round of a line.
func (c *scene) add(k lineKey, round int, s, t end) {
	from, to := c.programs[s.rank], c.programs[t.rank]
	m := message{from: k.from, to: k.to, lane: k.lane, round: round, fold: to.Steps[t.step].Op == plan.RecvReduce}
	m.label = blocks(to, to.Steps[t.step].Dst, from, from.Steps[s.step].Src)
	m.text = fmt.Sprintf("rank %d, step %d: %s\nrank %d, step %d: %s", s.rank, s.step, from.Describe(s.step), t.rank, t.step, to.Describe(t.step))
	c.messages = append(c.messages, m)
	c.rounds = max(c.rounds, round+1)
}

// blocks names the blocks of a message: those of the larger buffer of its two ends.
func blocks(to *plan.Program, dst []plan.Span, from *plan.Program, src []plan.Span) string {
	p, spans := to, dst
	if len(dst) > 0 && len(src) > 0 && to.Blocks[dst[0].Buf] < from.Blocks[src[0].Buf] {
		p, spans = from, src
	}
	var list []int
	for _, s := range spans {
		p.At(s, func(block int) { list = append(list, block) })
	}
	const most = 4
	switch {
	case len(list) > 2 && slices.IsSorted(list) && list[len(list)-1]-list[0] == len(list)-1:
		return fmt.Sprintf("%d-%d", list[0], list[len(list)-1])
	case len(list) > most:
		return fmt.Sprintf("%d blocks", len(list))
	}
	var out []string
	for _, b := range list {
		out = append(out, strconv.Itoa(b))
	}
	return strings.Join(out, ",")
}

func (c *scene) y(r kolo.Rank) int { return top + c.row*int(r) + c.row/2 }

// summary is the line below the title.
func (c *scene) summary(more string) string {
	folded := 0
	for _, m := range c.messages {
		if m.fold {
			folded++
		}
	}
	s := fmt.Sprintf("%d rounds, %d messages, %d of them folded", c.rounds, len(c.messages), folded)
	if more != "" {
		s += "; " + more
	}
	return s
}

// grid draws the rows, the servers and the numbers of the rounds.
func (c *scene) grid(w io.Writer, p Picture, wide int) {
	servers := p.Server != nil && slices.Max(p.Server) > 0
	for r := range c.programs {
		y := c.y(kolo.Rank(r))
		if servers && p.Server[r]%2 == 0 {
			fmt.Fprintf(w, "<rect x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", y-c.row/2, wide, c.row, band)
		}
		fmt.Fprintf(w, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\"/>\n", left-8, y, wide-right, y, faint)
		fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"13\" text-anchor=\"end\" fill=\"%s\">rank %d</text>\n", left-16, y+5, ink, r)
		if servers && (r == 0 || p.Server[r] != p.Server[r-1]) {
			fmt.Fprintf(w, "<text x=\"8\" y=\"%d\" font-size=\"10\" fill=\"%s\">server %d</text>\n", y-c.row/2+11, copyColor, p.Server[r])
		}
	}
	every := 1 + 30/(c.width+1)
	for k := 0; k < c.rounds; k += every {
		x := left + c.width*k + c.width/2
		fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"12\" text-anchor=\"middle\" fill=\"%s\">%d</text>\n", x, top-8, copyColor, k+1)
	}
	for k := range c.rounds + 1 {
		x := left + c.width*k
		fmt.Fprintf(w, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-dasharray=\"2 4\"/>\n", x, top, x, top+c.row*len(c.programs), faint)
	}
}

// arrow draws a message. Those of a second lane lie a little lower, so that both are
// seen.
func (c *scene) arrow(w io.Writer, m message) {
	kind, color, dot := "store", storeColor, "white"
	if m.fold {
		kind, color, dot = "fold", foldColor, foldColor
	}
	shift := int(m.lane%4) * 4
	x0, x1 := left+c.width*m.round+inset, left+c.width*(m.round+1)-inset
	y0, y1 := c.y(m.from)+shift, c.y(m.to)+shift
	fmt.Fprintf(w, "<g><title>%s</title>", html.EscapeString(m.text))
	fmt.Fprintf(w, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"1.6\" marker-end=\"url(#%s)\"/>", x0, y0, x1-4, y1, color, kind)
	fmt.Fprintf(w, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.6\"/>", x1, y1, dot, color)
	fmt.Fprintf(w, "<circle cx=\"%d\" cy=\"%d\" r=\"2\" fill=\"%s\"/>", x0, y0, color)
	if c.labels && c.width >= 70 && m.label != "" {
		const near = 0.33 // of the way for a neighbour; others are labelled nearer to their begin
		along := max(near/math.Pow(float64(max(1, m.to-m.from, m.from-m.to)), 1.3), 0.1)
		x, y := float64(x0)+along*float64(x1-x0), float64(y0)+along*float64(y1-y0)
		fmt.Fprintf(w, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" text-anchor=\"middle\" fill=\"%s\" stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\">%s</text>", x, y+4, ink, html.EscapeString(m.label))
	}
	fmt.Fprintln(w, "</g>")
}

func legend(w io.Writer, y int) {
	item := func(x int, color, dot, text string) {
		fmt.Fprintf(w, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"1.6\"/><circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.6\"/>", x, y, x+26, y, color, x+30, y, dot, color)
		fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"12\" fill=\"%s\">%s</text>\n", x+42, y+4, ink, text)
	}
	item(20, foldColor, foldColor, "received and folded")
	item(210, storeColor, "white", "received and stored")
	fmt.Fprintf(w, "<rect x=\"400\" y=\"%d\" width=\"8\" height=\"8\" fill=\"%s\"/><text x=\"416\" y=\"%d\" font-size=\"12\" fill=\"%s\">copied; numbers are blocks</text>\n", y-4, copyColor, y+4, ink)
}
