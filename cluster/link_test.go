package cluster

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"

	"github.com/stretchr/testify/require"
)

// brokenStream is one that has ended, on which nothing can be sent any more, and what the
// peer has said before is read when the test lets it.
type brokenStream struct {
	said  chan []byte
	tried chan struct{} // a frame could not be sent
}

func (s *brokenStream) Context() context.Context { return context.Background() }

func (s *brokenStream) SendMsg(any) error {
	s.tried <- struct{}{}
	return io.EOF
}

func (s *brokenStream) RecvMsg(m any) error {
	b, ok := <-s.said
	if !ok {
		return io.EOF
	}
	*m.(*frame) = b
	return nil
}

// pulses is a heart that writes down what it hears.
type pulses chan pulse

func (p pulses) Handle(m pulse) error {
	p <- m
	return nil
}

// What is sent to a process that has said goodbye fails, perhaps before its goodbye is
// read: it has not been lost all the same.
func TestGoodbyeThatIsReadAfterASendHasFailed(t *testing.T) {
	for name, c := range map[string]struct {
		said []byte
		want pulse
	}{"goodbye": {[]byte{frameBye}, &parting{}}, "nothing": {nil, &hurt{}}} {
		t.Run(name, func(t *testing.T) {
			sys := actor.NewSystem(actor.Config{})
			heard := make(pulses, 10)
			ref, err := actor.Spawn[pulse](sys.NewShard("heart"), actor.Props{Name: "heart"}, heard)
			require.NoError(t, err)
			p := &Process{heart: ref, closing: make(chan struct{}), roster: &roster{Members: []Member{{}, {Ranks: []kolo.Rank{5}}}}}
			s := &brokenStream{said: make(chan []byte, 1), tried: make(chan struct{}, 1)}
			l := newLink(p, 1, s, func() {}, func() {})
			p.links = make([]atomic.Pointer[link], 2)
			p.links[1].Store(l)
			go l.write() // ends when the stream is broken
			l.frame(frameBeat, nil)
			<-s.tried
			if c.said != nil {
				s.said <- c.said
			}
			close(s.said)
			go l.read() // the same
			require.IsType(t, c.want, <-heard)
			<-l.sent
			<-l.ended
			require.NoError(t, sys.Close(t.Context()))
		})
	}
}
