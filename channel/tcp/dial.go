package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// dial connects a link, unless the peer is faster. A peer that says that it dials too is
// asked again after a while: it may have closed the link since.
func (d *driver) dial(l *link) {
	late := time.NewTimer(d.cfg.ConnectTimeout)
	defer late.Stop()
	for {
		h := l.hello()
		if h == nil {
			return
		}
		c, a, err := d.reach(l, h)
		if !errors.Is(err, errCrossed) {
			l.dialled(c, a, err)
			return
		}
		select {
		case <-l.settled:
			return
		case <-time.After(askAgain):
		case <-late.C:
			l.dialled(nil, nil, errors.New("it was dialling too, and has not come through; look at its own error"))
			return
		case <-d.ctx.Done():
			l.dialled(nil, nil, d.ctx.Err())
			return
		}
	}
}

// askAgain is how long a rank waits for a peer that is dialling too.
const askAgain = 100 * time.Millisecond

// hello is what a link that nobody has settled says; nil: there is nothing to say.
func (l *link) hello() *hello {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != dialling || l.err != nil {
		return nil
	}
	l.number = rand.Uint64()
	return &hello{role: control, link: l.number}
}

// dialled ends the dialling of a link.
func (l *link) dialled(c net.Conn, a *answer, err error) {
	var done endings
	l.mu.Lock()
	switch {
	case err != nil && l.state == dialling:
		l.lose(err, &done)
	case err == nil && l.state != dialling:
		hangUp(c) // two answers: a peer that is no good
	case err == nil:
		if err := l.start(c, a.eager, a.window, &done); err != nil {
			l.lose(err, &done)
		}
	}
	l.mu.Unlock()
	done.complete(nil)
}

// start makes a connection that has been greeted the control connection. mu is held.
func (l *link) start(c net.Conn, eager, window int64, done *endings) error {
	where := fmt.Sprintf("%v to %v", c.LocalAddr(), c.RemoteAddr())
	var s socket = &streamSocket{c}
	if t, ok := c.(*net.TCPConn); ok && l.d.poller != nil {
		r, err := detach(t)
		if err != nil {
			return err
		}
		s = r
	}
	return l.attach(s, where, eager, window, done)
}

var errCrossed = errors.New("both ends are dialling")

// reach connects to the link's peer and greets it, by the first of its addresses where
// it answers as the rank that is meant.
func (d *driver) reach(l *link, h *hello) (net.Conn, *answer, error) {
	h.from, h.to, h.job, h.epoch = l.me, l.peer, d.job, d.epoch
	h.eager, h.window = int64(d.cfg.Eager), int64(d.cfg.Window)
	if h.role == data {
		l.mu.Lock()
		h.link = l.number
		l.mu.Unlock()
	}
	d.mu.Lock()
	to := d.peers[l.peer]
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.ConnectTimeout)
	list := to.candidates(d.host, d.nets)
	attempts := d.race(ctx, list, to.host == d.host)
	defer func() {
		cancel()
		for x := range attempts { // those that came too late; nothing was said on them
			if x.conn != nil {
				_ = x.conn.Close()
			}
		}
	}()
	var errs []error
	left := len(list)
	for x := range attempts {
		c, a, err := x.conn, (*answer)(nil), x.err
		if err == nil {
			c, a, err = d.greetOn(ctx, c, time.Until(deadlineOf(ctx))/time.Duration(left), h)
		}
		left--
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%v: %w", x.at, err))
			continue
		case a.verdict == welcome:
			return c, a, nil
		}
		_ = c.Close() // nothing was sent on it
		switch a.verdict {
		case crossed:
			return nil, nil, errCrossed
		case closed:
			return nil, nil, fmt.Errorf("%v has closed the link: %s", l.peer, a.text)
		default:
			errs = append(errs, fmt.Errorf("%v: %s", x.at, a.text))
		}
	}
	if err := ctx.Err(); err != nil {
		errs = append(errs, err)
	}
	return nil, nil, fmt.Errorf("connect to %v: %w", l.peer, errors.Join(errs...))
}

func deadlineOf(ctx context.Context) time.Time {
	t, _ := ctx.Deadline() // reach sets one
	return t
}

// attempt is how connecting to one address has ended.
type attempt struct {
	at   netip.AddrPort
	conn net.Conn
	err  error
}

// attemptDelay is how long an address is tried by itself, before the next one is tried
// beside it: the Connection Attempt Delay of RFC 8305, 5.
const attemptDelay = 250 * time.Millisecond

// race connects to addresses, each when the one before it has failed or has taken
// attemptDelay, and tells of each as it ends: one that swallows what it is sent costs the
// others no more than that. The channel is closed when the last has ended, soon after ctx.
func (d *driver) race(ctx context.Context, list []netip.AddrPort, near bool) <-chan attempt {
	out, failed := make(chan attempt, len(list)), make(chan struct{}, len(list))
	dialer := net.Dialer{KeepAliveConfig: d.keepAlive()}
	if near {
		dialer.Control = func(_, _ string, raw syscall.RawConn) error {
			local(raw, gentle)
			return nil
		}
	}
	// ended by ctx
	d.calls.Go(func() {
		defer close(out)
		var dials sync.WaitGroup
		defer dials.Wait()
		wait := time.NewTimer(0)
		defer wait.Stop()
		for _, at := range list {
			select {
			case <-wait.C:
			case <-failed:
			case <-ctx.Done():
				return
			}
			wait.Reset(attemptDelay)
			// ended by ctx
			dials.Go(func() {
				c, err := dialer.DialContext(ctx, "tcp", at.String())
				out <- attempt{at, c, err}
				if err != nil {
					failed <- struct{}{}
				}
			})
		}
	})
	return out
}

// greetOn greets whoever is at the other end of a connection, which it closes if that fails.
func (d *driver) greetOn(ctx context.Context, c net.Conn, timeout time.Duration, h *hello) (net.Conn, *answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // cannot fail while it is open
	a, c2, err := d.greetBy(ctx, c, h)
	if !stop() || err != nil {
		_ = c.Close() // the error is err, or the context's
		if err == nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	return c2, a, nil
}

func (d *driver) greetBy(ctx context.Context, c net.Conn, h *hello) (*answer, net.Conn, error) {
	if err := d.setOptions(c); err != nil {
		return nil, nil, err
	}
	if d.cfg.TLS != nil {
		t := tls.Client(c, clientTLS(d.cfg.TLS, c))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, nil, fmt.Errorf("TLS: %w", err)
		}
		c = t
	}
	if _, err := c.Write(h.encode()); err != nil {
		return nil, nil, err
	}
	a, err := readAnswer(c)
	return a, c, err
}

// clientTLS is the configuration to call by: without a name to ask for it is the address.
func clientTLS(t *tls.Config, c net.Conn) *tls.Config {
	if t.ServerName != "" || t.InsecureSkipVerify {
		return t
	}
	t = t.Clone()
	t.ServerName, _, _ = net.SplitHostPort(c.RemoteAddr().String()) // it is host:port
	return t
}

// keepAlive makes the kernel ask a peer of which nothing comes, and give it up when
// Config.Timeout is over. The kernel counts in seconds, so it takes two or more.
func (d *driver) keepAlive() net.KeepAliveConfig {
	const asked = 3
	interval := max((d.cfg.Timeout / 5).Truncate(time.Second), time.Second)
	idle := max((d.cfg.Timeout - asked*interval).Truncate(time.Second), time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: asked}
}

// setOptions prepares a connection. Go has set TCP_NODELAY.
func (d *driver) setOptions(c net.Conn) error {
	t := c.(*net.TCPConn)
	err := tune(t, d.cfg.Timeout)
	if n := d.cfg.Buffer; n > 0 {
		err = errors.Join(err, t.SetReadBuffer(n), t.SetWriteBuffer(n))
	}
	return err
}

// accept takes connections until the listener is closed.
func (d *driver) accept() {
	for {
		c, err := d.listen.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, for instance: that may pass
			case <-time.After(10 * time.Millisecond):
				continue
			case <-d.ctx.Done():
				return
			}
		}
		select {
		case d.greet <- struct{}{}:
		case <-d.ctx.Done():
			_ = c.Close() // nobody was greeted
			return
		}
		// ended by the greeting's timeout, or the driver's context; a data connection by its link
		d.calls.Go(func() {
			d.answer(c)
		})
	}
}

// answer greets who has dialled. A stranger hears why it is refused, and nobody else does.
func (d *driver) answer(c net.Conn) {
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.ConnectTimeout)
	defer cancel()
	raw := c
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) }) // cannot fail while it is open
	err := errors.Join(c.(*net.TCPConn).SetKeepAliveConfig(d.keepAlive()), d.setOptions(c))
	if d.cfg.TLS != nil && err == nil {
		t := tls.Server(c, d.cfg.TLS)
		err = t.HandshakeContext(ctx)
		c = t
	}
	var h *hello
	if err == nil {
		h, err = readHello(c)
	}
	var l *link
	if err == nil {
		l, err = d.find(ctx, h)
	}
	if err != nil {
		if h != nil || d.cfg.TLS == nil {
			turnAway(c, err)
		}
		hangUp(c)
		<-d.greet
		return
	}
	serve := l.take
	if h.role == data {
		serve = l.takeData
	}
	serve(c, h, func() { stop(); <-d.greet })
}

// turnAway tells a stranger why. Something of what it has said may not have been read, and
// would turn the close into a reset that takes the answer with it.
func turnAway(c net.Conn, why error) {
	const most, wait = 64 << 10, 200 * time.Millisecond
	_ = c.SetDeadline(time.Now().Add(wait)) // it may be no rank at all: whatever fails is its own loss
	_, _ = c.Write((&answer{verdict: refusal, text: why.Error()}).encode())
	_ = under(c).CloseWrite()
	_, _ = io.CopyN(io.Discard, c, most)
}

// find is the link that a hello means. It waits for the rank, which may be coming.
func (d *driver) find(ctx context.Context, h *hello) (*link, error) {
	switch {
	case h.job != d.job:
		return nil, fmt.Errorf("this is job %q, not %q", d.job, h.job)
	case h.epoch != d.epoch:
		return nil, fmt.Errorf("this is epoch %d of the job, not %d", d.epoch, h.epoch)
	}
	for {
		d.mu.Lock()
		_, here := d.ranks[h.to]
		known, wait := d.peers[h.from] != nil, d.changed
		if here && known {
			s := side{me: h.to, peer: h.from}
			if s.me == s.peer {
				s.half = 1
			}
			defer d.mu.Unlock()
			return d.link(s), nil
		}
		met, at := len(d.peers) > 0, d.peers[h.to]
		d.mu.Unlock()
		switch {
		case met && !known:
			return nil, fmt.Errorf("%v is not in this world", h.from)
		case at != nil && (at.host != d.mine.host || at.port != d.mine.port):
			return nil, fmt.Errorf("%v is not here", h.to)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("%v is not here, or not yet", h.to)
		}
	}
}

// take makes c the link's control connection, or says why not. greeted is called when
// the greeting is over. Who hears that it is welcome may call for data at once, so the
// link is held until it is up; the answer fits into what a new connection takes unread.
func (l *link) take(c net.Conn, h *hello, greeted func()) {
	a := answer{eager: int64(l.d.cfg.Eager), window: int64(l.d.cfg.Window)}
	var done endings
	l.mu.Lock()
	switch {
	case l.err != nil:
		a.verdict, a.text = closed, l.err.Error()
	case l.state >= greeting:
		a.verdict, a.text = refusal, fmt.Sprintf("%v has a connection to %v already", l.me, l.peer)
	case l.state == dialling && l.me < l.peer:
		a.verdict = crossed
	default:
		l.state, l.number = greeting, h.link
	}
	_, err := c.Write(a.encode())
	greeted()
	if err == nil && a.verdict == welcome {
		err = l.start(c, h.eager, h.window, &done)
	} else {
		hangUp(c)
	}
	if err != nil && a.verdict == welcome {
		l.lose(err, &done)
	}
	l.mu.Unlock()
	done.complete(nil)
}

// takeData receives parts on c.
func (l *link) takeData(c net.Conn, h *hello, greeted func()) {
	a := answer{eager: int64(l.d.cfg.Eager), window: int64(l.d.cfg.Window)}
	l.mu.Lock()
	switch {
	case l.err != nil:
		a.verdict, a.text = closed, l.err.Error()
	case l.state != up || l.number != h.link:
		a.verdict, a.text = refusal, fmt.Sprintf("a data connection of %v without its control connection", l.peer)
	case l.data.readers >= maxStripes:
		a.verdict, a.text = refusal, fmt.Sprintf("%v has %d data connections already", l.peer, l.data.readers)
	}
	s := &stripe{l: l, conn: c}
	if a.verdict == welcome {
		l.data.readers++
		l.data.conns = append(l.data.conns, s)
	}
	l.mu.Unlock()
	_, err := c.Write(a.encode())
	greeted()
	if a.verdict == welcome {
		s.receive() // where the answer did not get through, neither does this
		return
	}
	_ = err // it hears nothing, and has lost the link anyway
	hangUp(c)
}

// streamSocket is a connection with goroutines of its own.
type streamSocket struct{ net.Conn }

func (s *streamSocket) polled() bool                     { return false }
func (s *streamSocket) read(space [][]byte) (int, error) { return s.Read(first(space)) }
func (s *streamSocket) ask(*poller, bool) error          { return nil }
func (s *streamSocket) interrupt()                       { _ = s.SetDeadline(time.Unix(1, 0)) } // cannot fail while it is open
func (s *streamSocket) close(*poller)                    { hangUp(s.Conn) }

func (s *streamSocket) write(list [][]byte) (n int, err error) {
	for _, b := range list {
		k, err := s.Write(b)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *streamSocket) shutdown() error { return under(s.Conn).CloseWrite() }

// hangUp closes a connection without a word, which could wait for the peer.
func hangUp(c net.Conn) { _ = under(c).Close() } // what was written is the kernel's

// under is the TCP connection below c.
func under(c net.Conn) *net.TCPConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}
