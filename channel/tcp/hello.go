package tcp

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/kolo-ccl/kolo"
)

// The beginning of every connection: the dialler says a hello, the other end answers.
const (
	magic      = 0x4f4c4f4b // "KOLO"
	version    = 1
	helloSize  = 64
	answerSize = 36
	maxJob     = 256
	maxText    = 512
)

// role is what a connection is for.
type role uint8

const (
	control role = iota // messages up to the eager limit, and all that concerns the others
	data                // parts of large messages, from the dialler to the other end
)

// hello is who dials and whom it means. Its fixed part, little-endian:
//
//	0 magic (4)  4 version (2)  6 role  7 stripe  8 length of the job (2)  12 from (4)  16 to (4)
//	24 epoch (8)  32 link (8)  40 eager (8)  48 window (8)  56 digest of all before (8)
type hello struct {
	role     role
	stripe   uint8 // of a data connection
	from, to kolo.Rank
	epoch    uint64
	link     uint64 // number that the dialler of the control connection has drawn
	eager    int64  // what the dialler takes unasked: the size of a message
	window   int64  // and of all that it has not consumed
	job      string
}

func (h *hello) encode() []byte {
	b := make([]byte, helloSize, helloSize+len(h.job))
	e := binary.LittleEndian
	e.PutUint32(b, magic)
	e.PutUint16(b[4:], version)
	b[6], b[7] = byte(h.role), h.stripe
	e.PutUint16(b[8:], uint16(len(h.job)))
	e.PutUint32(b[12:], uint32(h.from))
	e.PutUint32(b[16:], uint32(h.to))
	e.PutUint64(b[24:], h.epoch)
	e.PutUint64(b[32:], h.link)
	e.PutUint64(b[40:], uint64(h.eager))
	e.PutUint64(b[48:], uint64(h.window))
	b = append(b, h.job...)
	e.PutUint64(b[56:], digest(b[:56], b[helloSize:]))
	return b
}

// readHello reads a hello. An error says what the stranger is not.
func readHello(r io.Reader) (*hello, error) {
	var b [helloSize]byte
	e := binary.LittleEndian
	if _, err := io.ReadFull(r, b[:8]); err != nil {
		return nil, fmt.Errorf("no hello: %w", err)
	}
	if e.Uint32(b[:]) != magic {
		return nil, fmt.Errorf("no rank of kolo: it begins with %q", b[:8])
	}
	if v := e.Uint16(b[4:]); v != version {
		return nil, fmt.Errorf("it speaks version %d, this is version %d", v, version)
	}
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return nil, fmt.Errorf("half a hello: %w", err)
	}
	n := e.Uint16(b[8:])
	if n > maxJob {
		return nil, fmt.Errorf("a malformed hello: a job's name of %d bytes", n)
	}
	job := make([]byte, n)
	if _, err := io.ReadFull(r, job); err != nil {
		return nil, fmt.Errorf("half a hello: %w", err)
	}
	h := &hello{role: role(b[6]), stripe: b[7], from: kolo.Rank(e.Uint32(b[12:])), to: kolo.Rank(e.Uint32(b[16:])),
		epoch: e.Uint64(b[24:]), link: e.Uint64(b[32:]), eager: int64(e.Uint64(b[40:])), window: int64(e.Uint64(b[48:])), job: string(job)}
	switch {
	case e.Uint64(b[56:]) != digest(b[:56], job):
		return nil, fmt.Errorf("a malformed hello: its digest is wrong")
	case h.role > data:
		return nil, fmt.Errorf("a malformed hello: role %d", h.role)
	}
	return h, checkLimits(h.eager, h.window)
}

func checkLimits(eager, window int64) error {
	if eager < 0 || eager > maxEager || window < 0 || window > maxWindow {
		return fmt.Errorf("a malformed greeting: it takes messages of %d bytes, %d in all", eager, window)
	}
	return nil
}

// verdict is the answer to a hello.
type verdict uint8

const (
	welcome verdict = iota
	crossed         // the rank that answers is dialling too, and its connection counts
	closed          // the rank has closed the link
	refusal         // the dialler is wrong here
	verdicts
)

// answer is the other end's word. Its fixed part, little-endian:
//
//	0 magic (4)  4 version (2)  6 verdict  8 length of the text (2)  12 eager (8)  20 window (8)  28 digest (8)
type answer struct {
	verdict       verdict
	eager, window int64
	text          string
}

func (a *answer) encode() []byte {
	text := a.text[:min(len(a.text), maxText)]
	b := make([]byte, answerSize, answerSize+len(text))
	e := binary.LittleEndian
	e.PutUint32(b, magic)
	e.PutUint16(b[4:], version)
	b[6] = byte(a.verdict)
	e.PutUint16(b[8:], uint16(len(text)))
	e.PutUint64(b[12:], uint64(a.eager))
	e.PutUint64(b[20:], uint64(a.window))
	b = append(b, text...)
	e.PutUint64(b[28:], digest(b[:28], b[answerSize:]))
	return b
}

func readAnswer(r io.Reader) (*answer, error) {
	var b [answerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, fmt.Errorf("no answer to the greeting: %w", err)
	}
	e := binary.LittleEndian
	n := e.Uint16(b[8:])
	if e.Uint32(b[:]) != magic || e.Uint16(b[4:]) != version || n > maxText || b[6] >= byte(verdicts) {
		return nil, fmt.Errorf("no rank of kolo, or of another version: it answers %q", b[:12])
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("half an answer to the greeting: %w", err)
	}
	if e.Uint64(b[28:]) != digest(b[:28], text) {
		return nil, fmt.Errorf("a malformed answer to the greeting: its digest is wrong")
	}
	a := &answer{verdict: verdict(b[6]), eager: int64(e.Uint64(b[12:])), window: int64(e.Uint64(b[20:])), text: string(text)}
	return a, checkLimits(a.eager, a.window)
}

// digest is FNV-1a over both, 64 bits. It finds accidents, not forgers: those are the
// business of TLS.
func digest(lists ...[]byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range lists {
		for _, c := range b {
			h = (h ^ uint64(c)) * 1099511628211
		}
	}
	return h
}
