package faulty

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Limits of a script.
const (
	maxScript = 1 << 20        // bytes
	maxRules  = 1000           // rules
	maxDelay  = 24 * time.Hour // of one rule
	maxNumber = 1 << 40        // ranks, messages
)

// Script is a list of rules. The zero Script has none.
type Script struct{ rules []rule }

// rule is one line.
type rule struct {
	line     int // from 1
	what     What
	from, to kolo.Rank // everyRank for *
	first    int64     // messages first to last
	last     int64
	percent  float64 // of these; 100 where none is said
	delay    time.Duration
}

// What is a kind of fault.
type What uint8

// The kinds of fault.
const (
	Lose What = iota
	Delay
	Cut
)

// everyRank is the rank that * stands for.
const everyRank kolo.Rank = -1

// String is the word of a script.
func (w What) String() string {
	switch w {
	case Lose:
		return "lose"
	case Delay:
		return "delay"
	case Cut:
		return "cut"
	}
	return fmt.Sprintf("What(%d)", uint8(w))
}

// Parse reads a script. An error names the line, the word, and what is allowed in
// its place.
func Parse(text string) (Script, error) {
	if len(text) > maxScript {
		return Script{}, fmt.Errorf("%w: a script of %d bytes; at most %d", kolo.ErrArgument, len(text), maxScript)
	}
	var s Script
	line := 0
	for text := range strings.Lines(text) {
		line++
		text, _, _ = strings.Cut(text, "#")
		p := parser{line: line, words: strings.Fields(strings.ReplaceAll(text, "->", " -> "))}
		if len(p.words) == 0 {
			continue
		}
		r, err := p.rule()
		if err != nil {
			return Script{}, err
		}
		if len(s.rules) == maxRules {
			return Script{}, fmt.Errorf("%w: script line %d: more than %d rules", kolo.ErrArgument, line, maxRules)
		}
		s.rules = append(s.rules, r)
	}
	return s, nil
}

// String is the script without comments, one rule a line. Parse reads it.
func (s Script) String() string {
	var b strings.Builder
	for _, r := range s.rules {
		fmt.Fprintf(&b, "%v %s -> %s", r.what, end(r.from), end(r.to))
		switch {
		case r.what == Cut:
			fmt.Fprintf(&b, " after %d", r.first)
		case r.percent < 100:
			fmt.Fprintf(&b, " %s%%", strconv.FormatFloat(r.percent, 'g', -1, 64))
		case r.first == r.last:
			fmt.Fprintf(&b, " send %d", r.first)
		case r.last != math.MaxInt64:
			fmt.Fprintf(&b, " send %d..%d", r.first, r.last)
		}
		if r.what == Delay {
			fmt.Fprintf(&b, " %v", r.delay)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func end(r kolo.Rank) string {
	if r == everyRank {
		return "*"
	}
	return strconv.Itoa(int(r))
}

// verdict is what happens to one message.
type verdict struct {
	lose, cut bool
	delay     time.Duration
	line      int // of the rule that loses or cuts
}

// judge says what happens to message k from a rank to another.
func (s *Script) judge(seed uint64, from, to kolo.Rank, k int64) (v verdict) {
	for i := range s.rules {
		r := &s.rules[i]
		if r.from != from && r.from != everyRank || r.to != to && r.to != everyRank || k < r.first || k > r.last {
			continue
		}
		if r.percent < 100 && chance(seed, uint64(i), uint64(from), uint64(to), uint64(k)) >= r.percent/100 {
			continue
		}
		switch {
		case r.what == Cut && !v.cut:
			v.cut, v.line = true, r.line
		case r.what == Lose && !v.lose && !v.cut:
			v.lose, v.line = true, r.line
		case r.what == Delay:
			v.delay += r.delay
		}
	}
	return v
}

// chance is a number from 0 up to 1 that depends on all its arguments.
func chance(values ...uint64) float64 {
	h := uint64(0)
	for _, v := range values {
		h = (h ^ v) + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return float64(h>>11) / (1 << 53)
}

// parser reads the words of one line.
type parser struct {
	line  int
	words []string
	at    int
}

// next is the next word, "" at the end of the line.
func (p *parser) next() string {
	if p.at == len(p.words) {
		return ""
	}
	p.at++
	return p.words[p.at-1]
}

// peek is the next word, which stays.
func (p *parser) peek() string {
	if p.at == len(p.words) {
		return ""
	}
	return p.words[p.at]
}

// wrong complains about a word.
func (p *parser) wrong(word, want string) error {
	if word == "" {
		return fmt.Errorf("%w: script line %d: it ends where %s should be", kolo.ErrArgument, p.line, want)
	}
	return fmt.Errorf("%w: script line %d: %q: want %s", kolo.ErrArgument, p.line, word, want)
}

func (p *parser) rule() (rule, error) {
	r := rule{line: p.line, last: math.MaxInt64, percent: 100}
	switch word := p.next(); word {
	case "lose":
		r.what = Lose
	case "delay":
		r.what = Delay
	case "cut":
		r.what = Cut
	default:
		return r, p.wrong(word, "lose, delay or cut")
	}
	var err error
	if r.from, err = p.end(); err != nil {
		return r, err
	}
	if word := p.next(); word != "->" {
		return r, p.wrong(word, "->")
	}
	if r.to, err = p.end(); err != nil {
		return r, err
	}
	if r.what == Cut {
		err = p.after(&r)
	} else {
		err = p.which(&r)
	}
	if err == nil && r.what == Delay {
		err = p.duration(&r)
	}
	if word := p.peek(); err == nil && word != "" {
		return r, p.wrong(word, "the end of the line")
	}
	return r, err
}

// end reads one end of a way.
func (p *parser) end() (kolo.Rank, error) {
	word := p.next()
	if word == "rank" {
		word = p.next()
	}
	if word == "*" {
		return everyRank, nil
	}
	n, ok := number(word)
	if !ok {
		return 0, p.wrong(word, "a rank or *")
	}
	return kolo.Rank(n), nil
}

// after reads how many messages pass before a cut.
func (p *parser) after(r *rule) error {
	if word := p.next(); word != "after" {
		return p.wrong(word, "after and a number of messages")
	}
	word := p.next()
	n, ok := number(word)
	if !ok {
		return p.wrong(word, "a number of messages")
	}
	r.first = n
	return nil
}

// which reads which messages a rule is for, if it says so.
func (p *parser) which(r *rule) error {
	word := p.peek()
	if word == "send" {
		p.next()
		word = p.next()
		first, last, isRange := strings.Cut(word, "..")
		if !isRange {
			last = first
		}
		var ok [2]bool
		r.first, ok[0] = number(first)
		r.last, ok[1] = number(last)
		if !ok[0] || !ok[1] || r.last < r.first {
			return p.wrong(word, "the number of a message, from 0, or a range as 3..5")
		}
		return nil
	}
	if text, ok := strings.CutSuffix(word, "%"); ok {
		p.next()
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !(f >= 0 && f <= 100) {
			return p.wrong(word, "a percentage from 0% to 100%")
		}
		r.percent = math.Abs(f) // no -0
		return nil
	}
	if r.what == Lose && word != "" {
		return p.wrong(word, "send and a number, a percentage, or the end of the line")
	}
	return nil
}

func (p *parser) duration(r *rule) error {
	word := p.next()
	d, err := time.ParseDuration(word)
	if err != nil || d <= 0 || d > maxDelay {
		return p.wrong(word, fmt.Sprintf("a time as 10ms, more than 0 and at most %v", maxDelay))
	}
	r.delay = d
	return nil
}

// number reads a number that is not negative, in plain digits.
func number(word string) (int64, bool) {
	n, err := strconv.ParseUint(word, 10, 63)
	return int64(n), err == nil && n <= maxNumber
}
