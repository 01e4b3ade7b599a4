package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// echo answers datagrams with their length, and asks others which lengths come through
// whole. Frames are not to be fragmented on their way.
type echo struct {
	conn *net.UDPConn
	mu   sync.Mutex
	back map[uint32]chan struct{} // closed when the answer has come, by token
	next uint32
	end  chan struct{}
}

// The frames that are tried: those of usual MTUs, with the heads of IPv4 and UDP.
var frameSizes = []int{1500, 4500, 9000}

const (
	frameHead    = 28 // IPv4 and UDP
	frameHead6   = 48
	frameTries   = 3
	frameTime    = 200 * time.Millisecond
	frameMark    = 0x6b6f6c6f // in front of each datagram of this probe
	frameMinimum = 12         // mark, kind, token
)

func newEcho() (*echo, error) {
	conn, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	if err := forbidFragments(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	e := &echo{conn: conn, back: map[uint32]chan struct{}{}, end: make(chan struct{})}
	// ended by close
	go e.serve()
	return e, nil
}

func (e *echo) port() int { return e.conn.LocalAddr().(*net.UDPAddr).Port }

// serve answers questions and takes answers.
func (e *echo) serve() {
	defer close(e.end)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := e.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < frameMinimum || binary.BigEndian.Uint32(buf) != frameMark {
			continue // an error of a datagram that was sent before, or somebody else's
		}
		token := binary.BigEndian.Uint32(buf[8:])
		switch binary.BigEndian.Uint32(buf[4:]) {
		case 0:
			_, _ = e.conn.WriteToUDPAddrPort(frame(1, token, frameMinimum), from) // who asks asks again
		case 1:
			e.mu.Lock()
			if c := e.back[token]; c != nil {
				close(c)
				delete(e.back, token)
			}
			e.mu.Unlock()
		}
	}
}

// frame is a datagram of n bytes: a question (0) or an answer (1).
func frame(kind, token uint32, n int) []byte {
	b := make([]byte, n)
	binary.BigEndian.PutUint32(b, frameMark)
	binary.BigEndian.PutUint32(b[4:], kind)
	binary.BigEndian.PutUint32(b[8:], token)
	return b
}

// ask gives the largest MTU of frameSizes whose frames come to an echo, 0 if none does.
func (e *echo) ask(ctx context.Context, at netip.AddrPort) (largest int, err error) {
	head := frameHead
	if at.Addr().Is6() {
		head = frameHead6
	}
	for _, size := range frameSizes {
		ok := false
		for try := 0; try < frameTries && !ok; try++ {
			e.mu.Lock()
			e.next++
			token, back := e.next, make(chan struct{})
			e.back[token] = back
			e.mu.Unlock()
			if _, err = e.conn.WriteToUDPAddrPort(frame(0, token, size-head), at); errors.Is(err, syscall.EMSGSIZE) {
				return largest, nil // the interface does not take it
			}
			wait, cancel := context.WithTimeout(ctx, frameTime)
			select {
			case <-back:
				ok = true
			case <-wait.Done():
			}
			cancel()
		}
		if !ok {
			return largest, err
		}
		largest = size
	}
	return largest, nil
}

func (e *echo) close() {
	_ = e.conn.Close() // it was only for asking
	<-e.end
}

// frameText says what came of it.
func frameText(largest int, err error) string {
	switch {
	case largest == 0 && err != nil:
		return err.Error()
	case largest == 0:
		return "not even 1500 bytes come through by UDP; a firewall?"
	case largest < frameSizes[len(frameSizes)-1]:
		return fmt.Sprintf("%d bytes come through and %d do not; set an MTU of 9000 on both hosts and on the switch", largest, frameSizes[len(frameSizes)-1])
	}
	return fmt.Sprintf("%d bytes come through", largest)
}
