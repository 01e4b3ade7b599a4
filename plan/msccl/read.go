package msccl

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Limits of what is read, so that a damaged file cannot ask for much memory.
const (
	maxSize     = 64 << 20 // bytes of a file
	maxChunks   = 1 << 20  // chunks of a buffer
	maxChannels = 256
	maxSlots    = 1 << 22 // chunks of all buffers of all ranks
	maxMoved    = 1 << 24 // chunks that all steps together name
	maxAfter    = 1 << 22 // dependencies of all steps together
)

// Read reads an MSCCL XML file. It accepts what MSCCL's own readers do: both spellings
// of reducescatter, missing size windows, elements and attributes that it does not know.
// An error names the line, and wraps kolo.ErrArgument or kolo.ErrUnsupported.
func Read(data []byte) (*File, error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("%w: msccl: a file of %d bytes; at most %d", kolo.ErrArgument, len(data), maxSize)
	}
	r := &reader{decoder: xml.NewDecoder(bytes.NewReader(data))}
	f, err := r.file()
	if err != nil {
		line, _ := r.decoder.InputPos()
		return nil, fmt.Errorf("msccl: line %d: %w", line, err)
	}
	return f, nil
}

// reader goes through the elements of a file.
type reader struct {
	decoder *xml.Decoder
	f       File
	slots   int
	moved   int
}

// next is the next start of an element, or nil at the end of the one we are in.
func (r *reader) next() (*xml.StartElement, error) {
	for {
		t, err := r.decoder.Token()
		if err != nil {
			if strings.Contains(err.Error(), "EOF") {
				return nil, bad("the file ends too early")
			}
			return nil, bad("%v", err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			return &t, nil
		case xml.EndElement:
			return nil, nil
		}
	}
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", kolo.ErrArgument, fmt.Sprintf(format, args...))
}

// each calls f for every child of the name, and skips others.
func (r *reader) each(name string, f func(a attributes) error) error {
	for {
		e, err := r.next()
		if e == nil || err != nil {
			return err
		}
		if e.Name.Local != name {
			if err := r.decoder.Skip(); err != nil {
				return bad("%v", err)
			}
			continue
		}
		if err := f(attributes{name, e.Attr}); err != nil {
			return err
		}
	}
}

func (r *reader) file() (*File, error) {
	e, err := r.next()
	if err != nil {
		return nil, err
	}
	if e == nil || e.Name.Local != "algo" {
		return nil, bad("the file does not begin with an algo element")
	}
	a, f := attributes{"algo", e.Attr}, &r.f
	f.Name, f.Protocol = a.text("name"), a.text("proto")
	if f.Collective, err = collectiveOf(a.text("coll")); err != nil {
		return nil, err
	}
	var ranks, root, inPlace, outOfPlace, low, high int
	if err := a.numbers([]number{
		{"ngpus", &ranks, 1, maxChunks, required}, {"nchannels", &f.Channels, 1, maxChannels, required},
		{"nchunksperloop", &f.Chunks, 1, maxChunks, required}, {"root", &root, 0, maxChunks, 0},
		{"inplace", &inPlace, 0, 1, 0}, {"outofplace", &outOfPlace, 0, 1, -1},
		{"minBytes", &low, 0, 1 << 62, 0}, {"maxBytes", &high, 0, 1 << 62, 0},
	}); err != nil {
		return nil, err
	}
	f.Root, f.InPlace, f.OutOfPlace = kolo.Rank(root), inPlace == 1, outOfPlace == 1
	if outOfPlace < 0 {
		f.OutOfPlace = !f.InPlace
	}
	f.MinBytes, f.MaxBytes = int64(low), int64(high)
	if high > 0 && high < low {
		return nil, bad("minBytes %d is more than maxBytes %d", low, high)
	}
	if root >= ranks {
		return nil, bad("root %d of %d ranks", root, ranks)
	}
	if err := r.each("gpu", r.gpu); err != nil {
		return nil, err
	}
	if len(f.GPUs) != ranks {
		return nil, bad("ngpus is %d, but there are %d gpu elements", ranks, len(f.GPUs))
	}
	return f, nil
}

func (r *reader) gpu(a attributes) error {
	var g GPU
	var id int
	if err := a.numbers([]number{
		{"id", &id, 0, maxChunks, required}, {"i_chunks", &g.In, 0, maxChunks, required},
		{"o_chunks", &g.Out, 0, maxChunks, required}, {"s_chunks", &g.Scratch, 0, maxChunks, required},
	}); err != nil {
		return err
	}
	if id != len(r.f.GPUs) {
		return bad("gpu %d stands where gpu %d should", id, len(r.f.GPUs))
	}
	if r.slots += g.Scratch + 2*r.f.Chunks; r.slots > maxSlots {
		return bad("more than %d chunks in all buffers", maxSlots)
	}
	r.f.GPUs = append(r.f.GPUs, g)
	return r.each("tb", r.block)
}

func (r *reader) block(a attributes) error {
	g := &r.f.GPUs[len(r.f.GPUs)-1]
	var b Block
	var id, send, recv int
	if err := a.numbers([]number{
		{"id", &id, 0, maxChunks, required}, {"send", &send, -1, maxChunks, required},
		{"recv", &recv, -1, maxChunks, required}, {"chan", &b.Channel, 0, maxChannels - 1, 0},
	}); err != nil {
		return err
	}
	if id != len(g.Blocks) {
		return bad("gpu %d: tb %d stands where tb %d should", len(r.f.GPUs)-1, id, len(g.Blocks))
	}
	b.Send, b.Recv = kolo.Rank(send), kolo.Rank(recv)
	g.Blocks = append(g.Blocks, b)
	return r.each("step", r.step)
}

func (r *reader) step(a attributes) error {
	g := &r.f.GPUs[len(r.f.GPUs)-1]
	b := &g.Blocks[len(g.Blocks)-1]
	var s Step
	var id, hasDep int
	where := fmt.Sprintf("gpu %d, tb %d, step %d", len(r.f.GPUs)-1, len(g.Blocks)-1, len(b.Steps))
	op, ok := opOf(a.text("type"))
	if !ok {
		return bad("%s: no step type %q", where, a.text("type"))
	}
	s.Op = op
	if err := a.numbers([]number{
		{"s", &id, 0, maxSize, required}, {"srcoff", &s.Src.Offset, -1, maxChunks, -1},
		{"dstoff", &s.Dst.Offset, -1, maxChunks, -1}, {"cnt", &s.Count, 0, maxChunks, required},
		{"depid", &s.DepBlock, -1, maxChunks, -1}, {"deps", &s.DepStep, -1, maxSize, -1}, {"hasdep", &hasDep, 0, 1, 0},
	}); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if s.HasDep = hasDep == 1; id != len(b.Steps) {
		return bad("%s: it is numbered %d", where, id)
	}
	for _, p := range []struct {
		name string
		to   *plan.Buffer
	}{{"srcbuf", &s.Src.Buffer}, {"dstbuf", &s.Dst.Buffer}} {
		switch name := a.text(p.name); name {
		case "i", "":
			*p.to = plan.In
		case "o":
			*p.to = plan.Out
		case "s":
			*p.to = plan.Scratch
		default:
			return bad("%s: no buffer %q", where, name)
		}
	}
	if r.moved += s.Count; r.moved > maxMoved {
		return bad("%s: all steps together move more than %d chunks", where, maxMoved)
	}
	b.Steps = append(b.Steps, s)
	return r.each("", nil)
}

// attributes are those of one element.
type attributes struct {
	of   string
	list []xml.Attr
}

func (a attributes) find(name string) (string, bool) {
	for _, x := range a.list {
		if x.Name.Local == name {
			return x.Value, true
		}
	}
	return "", false
}

func (a attributes) text(name string) string {
	s, _ := a.find(name)
	return s
}

// required is the fallback of an attribute that must be there.
const required = -2

// number is an attribute that is a whole number from low to high.
type number struct {
	name      string
	to        *int
	low, high int
	fallback  int
}

func (a attributes) numbers(list []number) error {
	for _, n := range list {
		s, ok := a.find(n.name)
		if !ok {
			if n.fallback == required {
				return bad("%s has no %s", a.of, n.name)
			}
			*n.to = n.fallback
			continue
		}
		v, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || v < n.low || v > n.high {
			return bad("%s has %s=%q; a number from %d to %d is wanted", a.of, n.name, s, n.low, n.high)
		}
		*n.to = v
	}
	return nil
}
