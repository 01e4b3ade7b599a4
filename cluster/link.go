package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kolo-ccl/kolo"
)

// link is the stream between this process and another: what the hubs tell each other,
// and heartbeats. It is dialled once by the process of the higher number and never again:
// if it breaks, the other process is lost.
type link struct {
	p      *Process
	peer   int
	s      stream
	hangUp func() // ends the stream at once
	finish func() // nothing more is sent

	address string        // which was dialled, or from which the other has
	took    time.Duration // for who has dialled

	tells chan []byte   // what the other has for all
	told  chan []byte   // what all have told it
	heard atomic.Uint64 // how many frames have come, the greeting among them
	ended chan struct{} // the reader has ended

	mu     sync.Mutex
	queue  [][]byte // messages of package rank
	frames [][]byte // other frames, which come first
	bytes  int
	closed error
	bye    bool // frames and queue are to be sent, and no more
	wake   chan struct{}
	sent   chan struct{} // the writer has ended
}

func newLink(p *Process, peer int, s stream, hangUp, finish func()) *link {
	l := &link{p: p, peer: peer, s: s, hangUp: hangUp, finish: finish, tells: make(chan []byte, 1), told: make(chan []byte, 1),
		ended: make(chan struct{}), wake: make(chan struct{}, 1), sent: make(chan struct{})}
	l.heard.Store(1)
	return l
}

// tell queues a message. It never blocks.
func (l *link) tell(message []byte) error {
	full, err := l.enqueue(message)
	if full {
		l.p.hurt(l.peer, err)
	}
	return err
}

// enqueue is tell under the lock; full says that the link has ended by it.
func (l *link) enqueue(message []byte) (full bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return false, l.closed
	}
	if l.bytes+len(message) > maxQueue {
		l.closed = fmt.Errorf("%w: %d MiB of control messages wait for %v, which does not read", kolo.ErrLimit, maxQueue>>20, l.member())
		return true, l.closed
	}
	l.bytes += len(message)
	l.queue = append(l.queue, message)
	l.poke()
	return false, nil
}

// frame queues a frame of another kind.
func (l *link) frame(kind byte, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil && !l.bye {
		l.frames = append(l.frames, append([]byte{kind}, body...))
		l.poke()
	}
}

// beat queues a heartbeat, unless something waits to be sent anyway.
func (l *link) beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil && !l.bye && len(l.frames)+len(l.queue) == 0 {
		l.frames = append(l.frames, []byte{frameBeat})
		l.poke()
	}
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write sends what is queued until the link ends.
func (l *link) write() {
	defer close(l.sent)
	for {
		l.mu.Lock()
		frames, queue, bye, closed := l.frames, l.queue, l.bye, l.closed
		l.frames, l.queue, l.bytes = nil, nil, 0
		l.mu.Unlock()
		if closed != nil {
			return
		}
		for len(queue) > 0 {
			batch := []byte{frameMessages}
			for len(queue) > 0 && (len(batch) == 1 || len(batch)+len(queue[0]) < maxFrame/2) {
				batch, queue = appendMessage(batch, queue[0]), queue[1:]
			}
			frames = append(frames, batch)
		}
		for _, f := range frames {
			if err := send(l.s, f); err != nil {
				l.unsent(err)
				return
			}
		}
		if bye {
			if err := send(l.s, []byte{frameBye}); err == nil {
				l.finish()
			}
			return
		}
		select {
		case <-l.wake:
		case <-l.ended:
			return
		}
	}
}

// unsent reports that the writer has failed, when the reader has ended: what the peer said
// before the stream broke is still there to be read, a farewell perhaps, and counts first.
func (l *link) unsent(err error) {
	t := time.NewTimer(farewellTime)
	defer t.Stop()
	select {
	case <-l.ended:
	case <-t.C:
	}
	l.p.hurt(l.peer, plainly(err))
}

// read takes what comes until the stream ends.
func (l *link) read() {
	defer close(l.ended)
	for {
		b, err := receive(l.s)
		if err != nil {
			l.p.hurt(l.peer, broken(err))
			return
		}
		l.heard.Add(1)
		if err := l.take(b); err != nil {
			l.p.hurt(l.peer, err)
			return
		}
		if len(b) > 0 && b[0] == frameBye {
			l.p.part(l.peer)
			return
		}
	}
}

// broken is why a stream has ended that ought not to. That a context was canceled, or a file
// has ended, is only gRPC's way of saying so: nobody here has canceled anything.
func broken(err error) error {
	const what = "its connection has broken, so it has ended or closed it (see its own output)"
	switch text := plainly(err); text.Error() {
	case context.Canceled.Error(), io.EOF.Error():
		return errors.New(what)
	default:
		return fmt.Errorf("%s: %w", what, text)
	}
}

// take handles a frame.
func (l *link) take(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: an empty frame", kolo.ErrArgument)
	}
	switch b[0] {
	case frameBeat, frameBye:
	case frameTell:
		return only(l.tells, b[1:])
	case frameTold:
		return only(l.told, b[1:])
	case frameRefusal:
		r := &refusal{}
		if err := json.Unmarshal(b[1:], r); err != nil {
			return fmt.Errorf("%w: a refusal: %w", kolo.ErrArgument, err)
		}
		if r.Process < 0 || r.Process >= len(l.p.roster.Members) {
			return fmt.Errorf("%w: a refusal of process %d", kolo.ErrArgument, r.Process)
		}
		r.who = &l.p.roster.Members[r.Process]
		return r
	case frameSuspicion:
		var s suspicion
		if err := json.Unmarshal(b[1:], &s); err != nil {
			return fmt.Errorf("%w: a suspicion: %w", kolo.ErrArgument, err)
		}
		l.p.tellHeart(&heard{l.peer, s})
	case frameMessages:
		list, err := messages(b[1:])
		if err != nil {
			return err
		}
		l.p.inbox.put(l.peer, list)
	default:
		return fmt.Errorf("%w: a frame of kind %d", kolo.ErrArgument, b[0])
	}
	return nil
}

// only hands over what comes when it is waited for.
func only(to chan<- []byte, b []byte) error {
	select {
	case to <- b:
		return nil
	default:
		return fmt.Errorf("%w: a second frame where one is waited for", kolo.ErrArgument)
	}
}

// close ends the link; what is queued is dropped.
func (l *link) close(cause error) {
	l.mu.Lock()
	if l.closed == nil {
		l.closed = cause
	}
	l.poke()
	l.mu.Unlock()
	l.hangUp()
}

// farewell sends what is queued and says that nothing follows.
func (l *link) farewell() {
	l.mu.Lock()
	l.bye = true
	l.poke()
	l.mu.Unlock()
}

func (l *link) member() *Member { return &l.p.roster.Members[l.peer] }

// Between tries of all addresses of a process.
const (
	leastPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// greet dials a process of a lower number, at its addresses until one is it.
func (p *Process) greet(ctx context.Context, peer int) (*link, error) {
	it := &p.roster.Members[peer]
	me := &p.roster.Members[p.self]
	d := p.dialled(peer, candidates(me, it))
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		if l := p.race(ctx, peer, d); l != nil {
			return l, nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: %v cannot be reached from rank %s: %v", whyOver(ctx), it, kolo.RankList(me.Ranks), d.attempts())
		}
	}
}

// How long an address is tried by itself, before the next one is tried beside it: until
// it is connected (the Connection Attempt Delay of RFC 8305, 5), and from then on, since
// a process that is only just starting answers late.
const (
	connectDelay = 250 * time.Millisecond
	answerDelay  = time.Second
)

// attempt is how greeting a process at one of its addresses has ended.
type attempt struct {
	at     int
	s      grpc.ClientStream
	hangUp func()
	err    error
	took   time.Duration
}

// race greets a process at several addresses, each when the one before it has failed or
// takes long, and makes a link of the first that is it: only that one is told so. Where
// none is, the result is nil and d has the reasons by address.
func (p *Process) race(ctx context.Context, peer int, d *dialling) *link {
	list := d.attempts()
	within, cancel := context.WithCancel(ctx)
	connected, ended := make(chan int, len(list)), make(chan attempt, len(list))
	var tries sync.WaitGroup
	defer func() {
		cancel()
		tries.Wait()
		for len(ended) > 0 {
			if a := <-ended; a.err == nil {
				a.hangUp()
			}
		}
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for begun, out := 0, 0; begun < len(list) && ctx.Err() == nil || out > 0; {
		due := next.C
		if begun == len(list) {
			due = nil
		}
		select {
		case <-due:
			i := begun
			begun, out = begun+1, out+1
			next.Reset(connectDelay)
			// ended by cancel at the latest
			tries.Go(func() {
				begin := time.Now()
				s, hangUp, err := p.greetAt(within, list[i].Address, peer, func() {
					select {
					case connected <- i:
					default: // it has connected again, which no longer matters
					}
				})
				ended <- attempt{i, s, hangUp, err, time.Since(begin)}
			})
		case i := <-connected:
			if i == begun-1 {
				next.Reset(answerDelay)
			}
		case a := <-ended:
			if a.err == nil {
				if a.err = send(a.s, []byte{frameChosen}); a.err == nil {
					d.note(a.at, nil, a.took, false)
					l := newLink(p, peer, a.s, a.hangUp, func() { _ = a.s.CloseSend() }) // it cannot fail
					l.address, l.took = list[a.at].Address, time.Since(d.begun)
					return l
				}
				a.hangUp()
			}
			d.note(a.at, a.err, a.took, ctx.Err() != nil)
			out--
			next.Reset(0)
		}
	}
	return nil
}

// greetTime is how long one address has to answer.
const greetTime = 3 * time.Second

// greetAt dials one address and finds out who is there.
func (p *Process) greetAt(ctx context.Context, address string, peer int, connected func()) (grpc.ClientStream, func(), error) {
	var reached atomic.Bool
	var refused atomic.Pointer[error] // by the system, of the latest try
	conn, err := dial(address, p.cfg.TLS, func(err error) {
		if err != nil {
			refused.Store(&err)
			return
		}
		reached.Store(true)
		connected()
	})
	if err != nil {
		return nil, nil, err
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	hangUp := func() { cancel(); _ = conn.Close() } // nothing is in flight that matters
	short, done := context.WithTimeout(ctx, greetTime)
	defer done()
	stop := context.AfterFunc(short, cancel)
	s, err := conn.NewStream(own, streamDesc, methodLink)
	it := &p.roster.Members[peer]
	if err == nil {
		err = send(s, encode(p.greeting(it)))
	}
	var b []byte
	if err == nil {
		b, err = receive(s)
	}
	var g greeting
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err == nil && (g.Process != peer || g.Nonce != it.Nonce) {
		err = fmt.Errorf("expected %v of job %q, got process %d of job %q", it, p.roster.Job, g.Process, g.Job)
	}
	if err != nil || !stop() {
		late := short.Err() != nil
		hangUp()
		switch why := refused.Load(); {
		case reached.Load() && late:
			err = fmt.Errorf("it takes the connection, and who is there does not answer in %v", greetTime)
		case late:
			err = fmt.Errorf("no answer to the request for a connection in %v", greetTime)
		case !reached.Load() && why != nil:
			err = *why
		default:
			err = plainly(err)
		}
		return nil, nil, err
	}
	return s, hangUp, nil
}

func (p *Process) greeting(to *Member) greeting {
	return greeting{Protocol: protocol, Job: p.roster.Job, Epoch: p.roster.Epoch, Process: p.self,
		Nonce: p.roster.Members[p.self].Nonce, To: to.Nonce}
}

// serveLink is the stream Link, from a process of a higher number. It may come before
// this process knows the world.
func (p *Process) serveLink(s stream) error {
	b, err := receive(s)
	if err != nil {
		return err
	}
	var g greeting
	if err := json.Unmarshal(b, &g); err != nil {
		return status.Errorf(codes.InvalidArgument, "no greeting: %v", err)
	}
	select {
	case <-p.known:
	case <-p.closing:
		return status.Error(codes.Unavailable, "this process is closing")
	case <-s.Context().Done():
		return s.Context().Err()
	}
	if why := p.stranger(&g); why != "" {
		return status.Error(codes.FailedPrecondition, why)
	}
	if err := send(s, encode(p.greeting(&p.roster.Members[g.Process]))); err != nil {
		return err
	}
	if b, err := receive(s); err != nil || len(b) != 1 || b[0] != frameChosen {
		return err // it has reached this process by another address
	}
	end := make(chan struct{})
	var once sync.Once
	l := newLink(p, g.Process, s, func() { once.Do(func() { close(end) }) }, func() {})
	if from, ok := peer.FromContext(s.Context()); ok {
		l.address = from.Addr.String()
	}
	if !p.welcome(l) {
		return status.Errorf(codes.AlreadyExists, "process %d has a link already", g.Process)
	}
	// The stream ends when this function returns: when the peer has read the last frame of
	// the writer and ends it, or at once where the link is hung up. To end it when that
	// frame is written would be too soon: who closes waits for the end, and then cuts the
	// connection, which may still hold the frame.
	select {
	case <-l.ended:
	case <-end:
	}
	return nil
}

// stranger says why a greeting is not from a process of this world, or "".
func (p *Process) stranger(g *greeting) string {
	r := p.roster
	me := &r.Members[p.self]
	switch {
	case g.Protocol != protocol:
		return fmt.Sprintf("protocol %d; this process speaks %d", g.Protocol, protocol)
	case g.Job != r.Job:
		return fmt.Sprintf("expected job %q, got job %q", r.Job, g.Job)
	case g.Epoch != r.Epoch:
		return fmt.Sprintf("stale: expected epoch %d of job %q, got epoch %d", r.Epoch, r.Job, g.Epoch)
	case g.To != me.Nonce:
		return fmt.Sprintf("this is %v of job %q: somebody else is meant", me, r.Job)
	case g.Process <= p.self || g.Process >= len(r.Members) || r.Members[g.Process].Nonce != g.Nonce:
		return fmt.Sprintf("expected a process of job %q, got somebody who says process %d", r.Job, g.Process)
	}
	return ""
}
