package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// Process is this process's part of a World: its ranks, and what joins them to the other
// processes. It ends when the last of its Worlds is closed.
type Process struct {
	cfg     Config
	address string // of the rendezvous
	roster  *roster
	self    int
	local   *rank.Local
	drivers *channelMap

	topology *plan.Topology
	figures  *figures // what the join has measured; nil: nothing

	sys     *actor.System
	heart   actor.Ref[pulse]
	links   []atomic.Pointer[link] // by process
	inbox   *inbox
	server  *server
	store   *meetServer // the rendezvous, if this process serves it
	storeOn *server
	client  *meetClient
	tasks   sync.WaitGroup

	met     bool               // connect has begun
	known   chan struct{}      // closed when roster is there
	linked  chan int           // a process has a link; room for all
	failed  chan error         // the join; takes one
	told    chan error         // why nobody joins; takes one
	reached chan *ConnectError // by the rendezvous; takes one
	closing chan struct{}
	once    sync.Once

	mu    sync.Mutex
	dials map[int]*dialling // of processes that have been dialled
}

// Join makes the one rank of this process a part of the world that c describes. It
// returns when all ranks have come, or by the deadline of Config.Timeout and ctx with who
// has not. The World is closed by World.Close.
func Join(ctx context.Context, c Config) (*rank.World, error) {
	p, err := Open(ctx, c)
	if err != nil {
		return nil, err
	}
	worlds := p.Worlds()
	if len(worlds) == 1 {
		return worlds[0], nil
	}
	var errs []error
	for _, w := range worlds {
		errs = append(errs, w.Close(ctx))
	}
	return nil, errors.Join(append(errs, fmt.Errorf("%w: this process has %d ranks: use Open", kolo.ErrArgument, len(worlds)))...)
}

// Open is Join for any number of ranks in this process. Each of its Worlds is to be closed.
func Open(ctx context.Context, c Config) (*Process, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	p := newProcess(c)
	err = p.join(ctx)
	if err == nil {
		err = p.begin(ctx)
	}
	if err != nil {
		p.refuse(ctx, err)
		if p.local != nil {
			for _, w := range p.local.Worlds() {
				_ = w.Close(ctx) // the join has failed: that is what there is to say
			}
		}
		p.shut(false)
		return nil, fmt.Errorf("join: %w", err)
	}
	return p, nil
}

func newProcess(c Config) *Process {
	return &Process{cfg: c, sys: actor.NewSystem(actor.Config{}), inbox: newInbox(), known: make(chan struct{}), closing: make(chan struct{}),
		failed: make(chan error, 1), told: make(chan error, 1), reached: make(chan *ConnectError, 1)}
}

// Worlds are those of this process's ranks, ascending.
func (p *Process) Worlds() []*rank.World { return p.local.Worlds() }

// Epoch is the number of this membership: later ones of the job are larger.
func (p *Process) Epoch() uint64 { return p.roster.Epoch }

// Members are the processes of the world, by number: that of the lowest rank comes first.
func (p *Process) Members() []Member { return slices.Clone(p.roster.Members) }

// join brings this process to where all have come and can be reached. Then there is time left to
// find out why not.
func (p *Process) join(ctx context.Context) error {
	h, err := p.listen(ctx)
	if err != nil {
		return err
	}
	if p.roster, p.client, err = meet(ctx, p.address, p.cfg.TLS, h); err != nil {
		return err
	}
	if p.self = slices.IndexFunc(p.roster.Members, func(m Member) bool { return m.Nonce == h.Member.Nonce }); p.self < 0 || p.roster.Size != p.cfg.Size {
		return fmt.Errorf("%w: the rendezvous %s has told of another world", kolo.ErrArgument, p.address)
	}
	if err := p.live(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, p.remaining(ctx, 2*reachTime))
	defer cancel()
	if err = p.open(within); err == nil {
		err = p.barrier(within)
	}
	return p.diagnosed(ctx, err)
}

// begin does what is left of a join when all can be reached.
func (p *Process) begin(ctx context.Context) error {
	// ended by shut
	p.tasks.Go(func() { p.inbox.run(p.local, p.hurt) })
	if err := p.measure(ctx); err != nil {
		return err
	}
	p.tellHeart(start{})
	p.warn()
	return nil
}

// listen makes the server of this process and, for rank 0, that of the rendezvous.
func (p *Process) listen(context.Context) (*hello, error) {
	c := &p.cfg
	at, err := c.meetingPoint()
	if err != nil {
		return nil, err
	}
	p.address = at
	l, err := listen(c.Listen)
	if err != nil {
		return nil, err
	}
	p.server = newServer(services{link: p.serveLink}, c.TLS, l)
	_, text, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	if c.serves() {
		if err := p.serveRendezvous(); err != nil {
			return nil, err
		}
	}
	h := &hello{Protocol: protocol, Job: c.Job, Attempt: c.Attempt, After: c.After, Size: c.Size,
		Member: Member{Ranks: c.Ranks, Host: thisHost(c.Rack), PID: os.Getpid(), Nonce: rand.Text(), Port: port}}
	if c.told != 0 {
		h.Member.Port = c.told
	}
	h.Member.Addresses = hostAddresses(c.Advertise, at)
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && len(c.Advertise) == 0 {
		if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() && !ip.IsLoopback() {
			h.Member.Addresses = []string{host}
		}
	}
	return h, nil
}

// serveRendezvous makes this process serve the rendezvous, unless somebody does. A name is
// not bound to what it resolves to, which on its own host may be loopback.
func (p *Process) serveRendezvous() error {
	host, port, err := net.SplitHostPort(p.address)
	if err != nil {
		return err
	}
	bind := ":" + port
	if ip := net.ParseIP(host); ip != nil {
		bind = p.address
	} else if host == "localhost" {
		bind = net.JoinHostPort("127.0.0.1", port)
	}
	l, err := net.Listen("tcp", bind)
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // an address behind a translation
		l, err = net.Listen("tcp", ":"+port)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil // a standing rendezvous, or another job, which says so
	}
	if err != nil {
		return fmt.Errorf("serve the rendezvous: %w", err)
	}
	if p.store, err = newMeetServer(p.cfg.Job, p.sys); err != nil {
		return errors.Join(err, l.Close())
	}
	p.storeOn = newServer(services{meet: p.store.serve}, p.cfg.TLS, l)
	return nil
}

// live makes the heart, and lets processes of higher numbers in. From here on it beats, on
// each link that there is: so who has a link to another may expect to hear of it.
func (p *Process) live() error {
	n := len(p.roster.Members)
	p.links, p.linked = make([]atomic.Pointer[link], n), make(chan int, n)
	h := newHeart(p, p.cfg.Silence)
	ref, err := actor.Spawn[pulse](p.sys.NewShard("heart"), actor.Props{Name: "heart"}, h)
	if err != nil {
		return err
	}
	p.heart = ref
	// ended by shut
	p.tasks.Go(p.tick)
	p.client.ended = make(chan struct{})
	// ended by shut
	p.tasks.Go(func() { p.client.listen(p.hear) })
	close(p.known)
	return nil
}

// maxDials is how many processes are dialled at a time.
const maxDials = 16

// connect links this process with each other one.
func (p *Process) connect(ctx context.Context) error {
	p.met = true
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, p.self)
	slots := make(chan struct{}, maxDials)
	var dials sync.WaitGroup
	for q := range p.self {
		// ends with ctx at the latest
		dials.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			l, err := p.greet(ctx, q)
			if err != nil {
				errs <- err
				return
			}
			p.welcome(l)
		})
	}
	defer dials.Wait()
	defer cancel()
	missing := map[int]bool{}
	for q := range p.roster.Members {
		missing[q] = q != p.self
	}
	for range len(p.roster.Members) - 1 {
		select {
		case q := <-p.linked:
			delete(missing, q)
		case err := <-errs:
			return err
		case err := <-p.failed:
			return p.reason(err)
		case <-ctx.Done():
			err := p.late(ctx, "has not linked itself to this process", func(q int) bool { return missing[q] })
			dials.Wait() // for those of lower numbers, which has tried more than to wait
			select {
			case err = <-errs:
			default:
			}
			return err
		}
	}
	return nil
}

// whyOver says how the time of a join has ended: by its deadline, or since the caller gave it up.
func whyOver(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%w: %w", kolo.ErrCanceled, context.Cause(ctx))
	}
	return kolo.ErrDeadline
}

// late says which processes are waited for in a join.
func (p *Process) late(ctx context.Context, what string, which func(q int) bool) error {
	e := &kolo.Error{Rank: kolo.NoRank, Peer: kolo.NoRank}
	var names []string
	for q := range p.roster.Members {
		if which(q) {
			e.Ranks = append(e.Ranks, p.roster.Members[q].Ranks...)
			if len(names) < maxNotes {
				names = append(names, p.roster.Members[q].String())
			}
		}
	}
	e.Err = fmt.Errorf("%w: %v %s", whyOver(ctx), names, what)
	return e
}

// welcome sets a link going. It is false if the process has one.
func (p *Process) welcome(l *link) bool {
	if !p.links[l.peer].CompareAndSwap(nil, l) {
		return false
	}
	// ended by shut, or with the link
	p.tasks.Go(l.write)
	// ended by shut, or with the link
	p.tasks.Go(l.read)
	p.linked <- l.peer
	return true
}

// open makes the ranks of this process.
func (p *Process) open(ctx context.Context) error {
	topology := p.cfg.Rank.Topology
	if topology == nil {
		t, err := p.roster.topology(p.cfg.Transport)
		if err != nil {
			return err
		}
		topology = t
	}
	p.topology = topology
	c := p.cfg.Rank
	c.Topology = topology
	if c.Workers == 0 {
		c.Workers = p.roster.workers(p.self, runtime.GOMAXPROCS(0))
	}
	local, err := c.OpenPart(rank.Part{Process: p.self, Processes: p.roster.processes(), Job: p.roster.Job, Epoch: p.roster.Epoch,
		Control: control{p}, Closed: p.closed, Beside: p.sys,
		Driver: func(e channel.Engine) (channel.Driver, error) { return p.introduce(ctx, e, topology.Digest()) }})
	p.local = local
	return err
}

// introduce opens the drivers, links this process with the others and exchanges the
// drivers' addresses. What is wrong here is found before any of the others is met, so
// that an error of theirs cannot hide it.
func (p *Process) introduce(ctx context.Context, e channel.Engine, digest uint64) (channel.Driver, error) {
	m, err := openDrivers(channel.Config{Job: p.roster.Job, Epoch: p.roster.Epoch, Engine: e, Getenv: p.cfg.Getenv,
		Cores: p.roster.cores(p.self)}, p.cfg.Transport,
		&p.roster.Members[p.self].Host, p.cfg.TLS)
	if err != nil {
		return nil, err
	}
	var told []intro
	if err = p.connect(ctx); err == nil {
		told, err = p.exchange(ctx, m, digest)
	}
	if err == nil {
		err = m.choose(p.roster, p.self, told)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	p.drivers = m
	for i, d := range m.drivers {
		if by, ok := d.(channel.Poller); ok && slices.Contains(m.by, i) {
			return &poller{m, by}, nil
		}
	}
	return m, nil
}

// tick lets the heart beat.
func (p *Process) tick() {
	t := time.NewTicker(max(p.cfg.Silence/looksPerSilence, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C: // its time is not this one, if it was not heard at once
			p.tellHeart(&beats{time.Now()})
		case <-p.closing:
			return
		}
	}
}

func (p *Process) tellHeart(m pulse) { _ = p.heart.Tell(m) } // refused only when it is closed

// everyLink lists the links by process, nil for this one.
func (p *Process) everyLink() []*link {
	list := make([]*link, len(p.links))
	for i := range p.links {
		list[i] = p.links[i].Load()
	}
	return list
}

// control is a Process as its ranks have it.
type control struct{ p *Process }

// Tell sends a message of the ranks to another process.
func (c control) Tell(process int, message []byte) error {
	l := c.p.links[process].Load()
	if l == nil {
		return fmt.Errorf("%w: no link to process %d", kolo.ErrLost, process)
	}
	return l.tell(message)
}

// hurt says that something is wrong with the link to a process.
func (p *Process) hurt(peer int, cause error) {
	select {
	case <-p.closing:
	default:
		p.tellHeart(&hurt{peer, cause})
	}
}

// part says that a process has ended in good order.
func (p *Process) part(peer int) {
	p.tellHeart(&parting{peer})
	p.links[peer].Load().close(fmt.Errorf("%w: %v has closed its world", kolo.ErrLeft, &p.roster.Members[peer]))
}

// failJoin fails the join.
func (p *Process) failJoin(cause error) {
	if errors.As(cause, new(*refusal)) || errors.As(cause, new(*ConnectError)) {
		select {
		case p.told <- cause:
		default:
		}
	}
	select {
	case p.failed <- cause:
	default:
	}
}

// refuse tells the others why this process does not join, or what it has been told of
// another's reason: they would only find that it is gone.
func (p *Process) refuse(ctx context.Context, cause error) {
	if p.links == nil {
		return // it has met nobody
	}
	if !p.met {
		ctx, cancel := context.WithTimeout(ctx, farewellTime)
		defer cancel()
		_ = p.connect(ctx) // who cannot be linked with cannot be told
	}
	var r *refusal
	if !errors.As(cause, &r) {
		r = &refusal{Process: p.self, Text: cause.Error(), Is: sentinelsOf(cause)}
		errors.As(cause, &r.Reach)
	}
	b := encode(r)
	for _, l := range p.everyLink() {
		if l != nil {
			l.frame(frameRefusal, b)
		}
	}
	if p.local == nil {
		p.farewell() // otherwise the last World to be closed does so
	}
}

// reasonTime is how long a loss in a join waits for what explains it.
const reasonTime = time.Second

// reason is why the join fails, of which first was heard first. Where a process refuses,
// all others end, and one that has ended may be missed before the refusal is heard.
func (p *Process) reason(first error) error {
	late := time.NewTimer(reasonTime)
	defer late.Stop()
	select {
	case r := <-p.told:
		return r
	case <-late.C:
		return first
	}
}

// closed is called when the last World of this process is closed.
func (p *Process) closed() error { return p.shut(true) }

// farewellTime is how long what is queued on a link has to be sent. Where there are many links,
// on a machine with many such processes, it is how long none of them gets rid of anything, and
// farewellsTime is for all.
const (
	farewellTime  = 2 * time.Second
	farewellsTime = 5 * farewellTime
)

// shut ends everything; in good order it tells the others, for which nobody is needed.
func (p *Process) shut(inOrder bool) (err error) {
	p.once.Do(func() {
		if inOrder && p.links != nil {
			p.farewell()
		}
		close(p.closing)
		for _, l := range p.everyLink() {
			if l != nil {
				l.close(kolo.ErrClosed)
			}
		}
		if p.store != nil {
			p.store.dismiss()
		}
		for _, s := range []*server{p.server, p.storeOn} {
			if s != nil {
				s.close()
			}
		}
		p.client.close()
		p.inbox.close()
		p.tasks.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
		defer cancel()
		err = p.sys.Close(ctx)
		if p.store != nil {
			err = errors.Join(err, p.store.close())
		}
	})
	return err
}

// farewell sends what is queued on all links and waits until it has gone, as long as that
// gets on. Who is left then finds that its link has broken, and has no other harm.
func (p *Process) farewell() {
	links := slices.DeleteFunc(p.everyLink(), func(l *link) bool { return l == nil })
	for _, l := range links {
		l.farewell()
	}
	stuck, late := time.NewTimer(farewellTime), time.NewTimer(farewellsTime)
	defer stuck.Stop()
	defer late.Stop()
	left := len(links)
	for _, l := range links {
		for _, done := range []chan struct{}{l.sent, l.ended} {
			for !over(done) {
				select {
				case <-done:
				case <-late.C:
					return
				case <-stuck.C:
					n := left
					if left = notOver(links); left == n {
						return
					}
					stuck.Reset(farewellTime)
				}
			}
		}
	}
}

// notOver counts links that have not ended in both directions.
func notOver(links []*link) (n int) {
	for _, l := range links {
		if !over(l.sent) || !over(l.ended) {
			n++
		}
	}
	return n
}
