package launch

import (
	"bytes"
	"io"
	"sync"
)

// sink is a stream that several processes write whole lines to.
type sink struct {
	mu sync.Mutex
	to io.Writer
}

func newSink(to io.Writer) *sink { return &sink{to: to} }

// lines is the way of one process to the sink, with a label before each line.
func (s *sink) lines(label string) *lines { return &lines{sink: s, label: label} }

// maxLine is the longest line that is kept together.
const maxLine = 64 << 10

// lines is a writer that passes on whole lines.
type lines struct {
	sink  *sink
	label string
	rest  []byte // of a line that has not ended
	out   []byte
}

// Write passes on the lines that have ended.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	l.out = l.out[:0]
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			room := maxLine - len(l.rest)
			if len(p) < room {
				l.rest = append(l.rest, p...)
				break
			}
			l.line(p[:room])
			p = p[room:]
			continue
		}
		l.line(p[:i])
		p = p[i+1:]
	}
	return n, l.pass()
}

// line adds a line, of which some may have come before.
func (l *lines) line(end []byte) {
	l.out = append(l.out, l.label...)
	l.out = append(l.out, l.rest...)
	l.out = append(l.out, end...)
	l.out = append(l.out, '\n')
	l.rest = l.rest[:0]
}

func (l *lines) pass() error {
	if len(l.out) == 0 {
		return nil
	}
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	_, err := l.sink.to.Write(l.out)
	return err
}

// flush passes on a last line without an end.
func (l *lines) flush() {
	if len(l.rest) == 0 {
		return
	}
	l.out = l.out[:0]
	l.line(nil)
	_ = l.pass() // nobody is left to tell
}
