package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
)

// What a connection may hold. Control messages are few and small. A window that grows is
// measured by a ping for each message, and gRPC's own buffers are 32 KiB: with links to
// many processes that is most of what they cost.
const (
	window   = 1 << 20 // bytes that the receiver takes unasked
	buffered = 4 << 10 // bytes, each way
)

// keepaliveTime is how long a client that says nothing has to answer a ping. Hearts find sooner
// which processes are silent; this is for those who only wait at a rendezvous.
const keepaliveTime = 3 * DefaultSilence

// server is a gRPC server of ours.
type server struct {
	grpc   *grpc.Server
	served sync.WaitGroup
}

// newServer serves on listeners, which it closes in the end.
func newServer(s services, c *tls.Config, listeners ...net.Listener) *server {
	options := []grpc.ServerOption{grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(maxFrame), grpc.MaxSendMsgSize(maxFrame),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window), grpc.ReadBufferSize(buffered), grpc.WriteBufferSize(buffered),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: DefaultSilence, Timeout: keepaliveTime})}
	if c != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(c)))
	}
	v := &server{grpc: grpc.NewServer(options...)}
	v.grpc.RegisterService(s.describe(), nil)
	for _, l := range listeners {
		// ended by close
		v.served.Go(func() { _ = v.grpc.Serve(l) }) // it serves until close, and streams say what has failed
	}
	return v
}

// close ends the streams and all goroutines.
func (v *server) close() {
	v.grpc.Stop()
	v.served.Wait()
}

// dial makes a gRPC client of one address. dialled, if set, hears how each try to connect has ended.
func dial(address string, c *tls.Config, dialled func(error)) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if c != nil {
		creds = credentials.NewTLS(c)
	}
	var d net.Dialer
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
			c, err := d.DialContext(ctx, "tcp", a)
			if dialled != nil {
				dialled(err)
			}
			return c, err
		}),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window), grpc.WithReadBufferSize(buffered), grpc.WithWriteBufferSize(buffered),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(maxFrame), grpc.MaxCallSendMsgSize(maxFrame)))
}

// Rendezvous is one that stands by itself: worlds come and go, of many jobs.
type Rendezvous struct {
	address string
	meet    *meetServer
	server  *server
}

// Serve starts a standing rendezvous at host:port; port 0 is any free one. c may be nil:
// no TLS. Close it.
func Serve(address string, c *tls.Config) (*Rendezvous, error) {
	l, err := listen(address)
	if err != nil {
		return nil, err
	}
	m, err := newMeetServer("", nil)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Rendezvous{address: l.Addr().String(), meet: m, server: newServer(services{meet: m.serve}, c, l)}, nil
}

// Address is where it is, as tcp://host:port.
func (r *Rendezvous) Address() string { return "tcp://" + r.address }

// Close ends it. Worlds that are complete do not need it.
func (r *Rendezvous) Close() error {
	r.meet.dismiss()
	r.server.close()
	return r.meet.close()
}

// listen opens a port and says who may have it if it is taken.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}
	return l, nil
}

// meetServer is a rendezvous actor and the streams to it.
type meetServer struct {
	sys   *actor.System
	ref   actor.Ref[meeting]
	mu    sync.Mutex
	timer *time.Timer
	ended bool
	said  map[chan struct{}]bool // of each that has come: closed when it has its answer, or is gone
}

func newMeetServer(only string, beside *actor.System) (*meetServer, error) {
	m := &meetServer{sys: actor.NewSystem(actor.Config{Beside: beside}), said: map[chan struct{}]bool{}}
	ref, err := actor.Spawn[meeting](m.sys.NewShard("rendezvous"), actor.Props{Name: "rendezvous"}, newRendezvous(only, time.Now, m.wake))
	if err != nil {
		return nil, errors.Join(err, m.sys.Close(context.Background()))
	}
	m.ref = ref
	return m, nil
}

// wake sends a tick after d.
func (m *meetServer) wake(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	if m.timer != nil {
		m.timer.Stop()
	}
	m.timer = time.AfterFunc(d, func() { _ = m.ref.Tell(meetTick{}) }) // refused only when it is closed
}

// dismissTime is how long what has been decided has to be sent when a rendezvous ends.
const dismissTime = time.Second

// dismiss sees to it that all that have come have their answers before the server is
// closed: with that of its own rank 0 in hand a process may be the first to end.
func (m *meetServer) dismiss() {
	d := &dismissal{make(chan struct{})}
	if m.ref.Tell(d) != nil {
		return // it is closed
	}
	late := time.NewTimer(dismissTime)
	defer late.Stop()
	select {
	case <-d.done:
	case <-late.C:
		return
	}
	m.mu.Lock()
	list := slices.Collect(maps.Keys(m.said))
	m.mu.Unlock()
	for _, said := range list {
		select {
		case <-said:
		case <-late.C:
			return
		}
	}
}

// comes notes that a process has come; the result is to be called when it has its answer.
func (m *meetServer) comes() (answered func()) {
	said := make(chan struct{})
	m.mu.Lock()
	m.said[said] = true
	m.mu.Unlock()
	return sync.OnceFunc(func() {
		m.mu.Lock()
		delete(m.said, said)
		m.mu.Unlock()
		close(said)
	})
}

// close ends the actor. The server is closed before.
func (m *meetServer) close() error {
	m.mu.Lock()
	m.ended = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return m.sys.Close(ctx)
}

// serve is the stream Meet.
func (m *meetServer) serve(s stream) error {
	b, err := receive(s)
	if err != nil {
		return err
	}
	g := &guest{answer: make(chan answer, maxAnswers)}
	if err := json.Unmarshal(b, &g.hello); err != nil {
		return send(s, encode(refuse("no hello: %v", err)))
	}
	answered := m.comes()
	defer answered()
	if err := m.ref.Tell(&arrived{g}); err != nil {
		return err
	}
	defer func() { _ = m.ref.Tell(&gone{g}) }() // refused only when it is closed
	var said sync.WaitGroup
	end := make(chan struct{})
	defer said.Wait()
	defer close(end)
	// ended by end, or with the stream
	said.Go(func() { say(s, g.answer, end, answered) })
	// While the stream is open the member lives. One that is none ends it when it has read
	// why; to end it here would be too soon, for the answer may still be on its way.
	for {
		b, err := receive(s)
		if err == io.EOF {
			return nil
		}
		r := &row{}
		if err == nil {
			err = json.Unmarshal(b, r)
		}
		if err != nil {
			return err
		}
		if err := m.ref.Tell(&tells{g, r}); err != nil {
			return err
		}
	}
}

// say sends a guest its answers. answered is called behind the last.
func say(s stream, list <-chan answer, end <-chan struct{}, answered func()) {
	for {
		select {
		case a := <-list:
			if a.last {
				answered()
			} else if send(s, encode(a)) != nil {
				return // the stream has ended, which its reader hears too
			}
		case <-end:
			return
		}
	}
}

// meetClient is a process's stream to the rendezvous.
type meetClient struct {
	conn   *grpc.ClientConn
	s      grpc.ClientStream
	cancel context.CancelFunc

	mu    sync.Mutex    // for sending
	ended chan struct{} // by listen
}

// tell says whom this process has reached. It may be too late for that.
func (m *meetClient) tell(r *row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = send(m.s, encode(r)) // a stream that has ended says so to who listens
}

// listen hands over what the rendezvous says behind its first answer, until close.
func (m *meetClient) listen(hear func(a *answer)) {
	defer close(m.ended)
	for {
		b, err := receive(m.s)
		if err != nil {
			return
		}
		a := &answer{}
		if json.Unmarshal(b, a) == nil { // a rendezvous that speaks otherwise is of no use here
			hear(a)
		}
	}
}

// close leaves the rendezvous, and waits a moment until it knows, so that these ranks
// may come again at once.
func (m *meetClient) close() {
	if m == nil {
		return
	}
	if m.s != nil {
		t := time.AfterFunc(time.Second, m.cancel)
		m.mu.Lock()
		_ = m.s.CloseSend() // it cannot fail
		m.mu.Unlock()
		if m.ended != nil {
			<-m.ended
		} else {
			_, _ = receive(m.s) // the end of the stream is what is waited for
		}
		t.Stop()
	}
	m.cancel()
	_ = m.conn.Close() // nothing is in flight that matters
}

// meet says hello at a rendezvous until there is an answer, or ctx ends.
func meet(ctx context.Context, address string, c *tls.Config, h *hello) (*roster, *meetClient, error) {
	last := errors.New("no answer")
	for {
		m, a, err := meetOnce(ctx, address, c, h)
		switch {
		case err != nil && ctx.Err() != nil: // that the time was over says nothing of the rendezvous
		case err != nil:
			last = err
		case a.World != nil:
			return a.World, m, nil
		case a.Refused != "":
			m.close()
			return nil, nil, fmt.Errorf("%w: the rendezvous at %s refuses rank %s: %s", kolo.ErrArgument, address, kolo.RankList(h.Member.Ranks), a.Refused)
		case a.Missing != nil:
			m.close()
			return nil, nil, a.Missing.err(address)
		default:
			last = errors.New(a.Retry)
		}
		m.close()
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if why := whyOver(ctx); errors.Is(why, kolo.ErrCanceled) {
				return nil, nil, fmt.Errorf("%w: rank %s waited at the rendezvous %s, for it or for the others: %w", why, kolo.RankList(h.Member.Ranks), address, last)
			}
			return nil, nil, fmt.Errorf("%w: rank %s at the rendezvous %s: %w; it is served by the process of rank 0, or by a standing one: does that run, and can %s be reached from here?",
				kolo.ErrDeadline, kolo.RankList(h.Member.Ranks), address, last, address)
		}
	}
}

// meetOnce says hello once.
func meetOnce(ctx context.Context, address string, c *tls.Config, h *hello) (*meetClient, *answer, error) {
	conn, err := dial(address, c, nil)
	if err != nil {
		return nil, nil, err
	}
	// The stream lives on as long as the world, whatever becomes of ctx.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &meetClient{conn: conn, cancel: cancel}
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	s, err := conn.NewStream(own, streamDesc, methodMeet)
	if err == nil {
		m.s = s
		h.Wait = timeToWait(ctx)
		err = send(s, encode(h))
	}
	var b []byte
	if err == nil {
		b, err = receive(s)
	}
	a := &answer{}
	if err == nil {
		err = json.Unmarshal(b, a)
	}
	if err != nil {
		m.close()
		return nil, nil, plainly(err)
	}
	return m, a, nil
}

// timeToWait is how long the rendezvous may wait for the others, so that what it says then
// is heard before the time of ctx is over.
func timeToWait(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline() // Open sets one
	left := time.Until(end)
	return left - min(left/4, 2*time.Second)
}

// plainly takes gRPC's wrapping off the text of an error.
func plainly(err error) error {
	text := err.Error()
	for _, cut := range []string{"desc = ", "Error while dialing: "} {
		if _, after, ok := strings.Cut(text, cut); ok {
			text = after
		}
	}
	return errors.New(strings.TrimSuffix(text, `"`))
}

// err says who has not come.
func (a *absent) err(address string) error {
	var came []string
	for i := range a.Came {
		if len(came) == maxNotes {
			came = append(came, fmt.Sprintf("and %d more processes", len(a.Came)-i))
			break
		}
		came = append(came, a.Came[i].String())
	}
	text := fmt.Sprintf("rank %s of %d did not come to the rendezvous %s; there came %s", kolo.RankList(a.Missing), a.Size, address, strings.Join(came, ", "))
	if len(a.Notes) > 0 {
		text += "; refused were: " + strings.Join(a.Notes, "; ")
	}
	return &kolo.Error{Rank: kolo.NoRank, Peer: kolo.NoRank, Ranks: a.Missing, Err: fmt.Errorf("%w: %s", kolo.ErrDeadline, text)}
}
