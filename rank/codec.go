package rank

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/kolo-ccl/kolo"
)

// encoder appends the parts of a letter: numbers as varints, lists and texts behind
// their length.
type encoder struct{ b []byte }

func (e *encoder) kind(k byte) *encoder {
	e.b = append(e.b, letterVersion, k)
	return e
}

func (e *encoder) uint(v uint64) *encoder {
	e.b = binary.AppendUvarint(e.b, v)
	return e
}

func (e *encoder) int(v int64) *encoder {
	e.b = binary.AppendVarint(e.b, v)
	return e
}

func (e *encoder) bool(v bool) *encoder {
	if v {
		return e.uint(1)
	}
	return e.uint(0)
}

func (e *encoder) text(s string) *encoder {
	if len(s) > maxText {
		s = s[:maxText]
	}
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
	return e
}

// ranks writes the differences between neighbours, which are small.
func (e *encoder) ranks(list []kolo.Rank) *encoder {
	e.uint(uint64(len(list)))
	last := kolo.Rank(0)
	for _, r := range list {
		e.int(int64(r - last))
		last = r
	}
	return e
}

func (e *encoder) counts(list []int64) *encoder {
	e.uint(uint64(len(list)))
	for _, v := range list {
		e.int(v)
	}
	return e
}

func (e *encoder) call(c *kolo.Call) *encoder {
	e.uint(uint64(c.Collective)).uint(uint64(c.DType)).uint(uint64(c.Op.Kind)).uint(math.Float64bits(c.Op.Scale))
	return e.int(int64(c.Root)).int(c.Count).counts(c.Counts).counts(c.RecvCounts).bool(c.InPlace)
}

func (e *encoder) failure(k *kolo.Error) *encoder {
	e.uint(uint64(k.Op)).text(k.Group).int(int64(k.Rank)).int(int64(k.Peer)).uint(k.Seq).ranks(k.Ranks)
	return e.cause(k.Err)
}

// cause writes an error as its text and the sentinels that it wraps.
func (e *encoder) cause(err error) *encoder {
	if err == nil {
		return e.uint(0)
	}
	mask := uint64(1)
	for i, s := range sentinels() {
		if errors.Is(err, s) {
			mask |= 2 << i
		}
	}
	return e.uint(mask).text(err.Error())
}

// sentinels are the errors that an error of another process can be tested for. Their
// order is part of the letters' version.
func sentinels() []error {
	return []error{kolo.ErrArgument, kolo.ErrMismatch, kolo.ErrDeadline, kolo.ErrLeft, kolo.ErrLost, kolo.ErrAborted,
		kolo.ErrClosed, kolo.ErrUnsupported, kolo.ErrNotMember, kolo.ErrOverlap, kolo.ErrCanceled, kolo.ErrPanic,
		kolo.ErrLimit, context.Canceled, context.DeadlineExceeded}
}

// distant is an error of another process: its text, and what it wrapped there.
type distant struct {
	text string
	is   []error
}

func (e *distant) Error() string   { return e.text }
func (e *distant) Unwrap() []error { return e.is }

// decoder takes the parts of a letter off its front. After an error all it gives is
// zero.
type decoder struct {
	b   []byte
	err error
}

// fail notes the first error.
func (d *decoder) fail(format string, args ...any) error {
	if d.err == nil {
		d.err = fmt.Errorf("%w: letter of another process: %s", kolo.ErrArgument, fmt.Sprintf(format, args...))
	}
	d.b = nil
	return d.err
}

func (d *decoder) short() { _ = d.fail("cut short") } // noted in d

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.short()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.short()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.short()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bool() bool { return d.uint() != 0 }

// count is the length of a list whose elements take at least size bytes each.
func (d *decoder) count(size int) int {
	n := d.uint()
	if n > uint64(len(d.b)/size) {
		d.short()
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count(1)
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) ranks() []kolo.Rank {
	var list []kolo.Rank
	last := int64(0)
	for range d.count(1) {
		last += d.int()
		if last < 0 || last >= maxRanks {
			_ = d.fail("rank %d", last) // noted in d
			return nil
		}
		list = append(list, kolo.Rank(last))
	}
	return list
}

func (d *decoder) counts() []int64 {
	var list []int64
	for range d.count(1) {
		list = append(list, d.int())
	}
	return list
}

func (d *decoder) call() kolo.Call {
	c := kolo.Call{Collective: kolo.Collective(d.uint()), DType: kolo.DType(d.uint())}
	c.Op.Kind, c.Op.Scale = kolo.OpKind(d.uint()), math.Float64frombits(d.uint())
	c.Root, c.Count, c.Counts, c.RecvCounts, c.InPlace = kolo.Rank(d.int()), d.int(), d.counts(), d.counts(), d.bool()
	return c
}

func (d *decoder) failure() *kolo.Error {
	k := &kolo.Error{Op: kolo.Collective(d.uint()), Group: d.text(), Rank: kolo.Rank(d.int()), Peer: kolo.Rank(d.int()),
		Seq: d.uint(), Ranks: d.ranks()}
	if k.Err = d.cause(); k.Err == nil {
		_ = d.fail("a failure without a cause") // noted in d
	}
	return k
}

func (d *decoder) cause() error {
	mask := d.uint()
	if mask == 0 {
		return nil
	}
	e := &distant{text: d.text()}
	for i, s := range sentinels() {
		if mask&(2<<i) != 0 {
			e.is = append(e.is, s)
		}
	}
	return e
}
