package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/rank"
)

// transports are what -between takes.
var transports = []string{"shm", "tcp"}

// command is what a member is told, as JSON on its standard input. A size comes with a
// first call whose result is checked.
type command struct {
	Size  int64 // if not 0: the calls are of this size from here on
	Calls int
	Apart bool // a barrier before each call, which does not count
	Work  int
	Idle  bool
}

// reply is a member's answer, as JSON on its standard output.
type reply struct {
	Took  time.Duration
	Wrong string // the result of the first call
	Err   string // the member has ended
}

// members are the processes of the ranks, which a crew gives orders to.
type members struct {
	*crew
	in  []*json.Encoder
	out []*json.Decoder
	all []*exec.Cmd
	end []io.Closer

	closed chan struct{} // one for each rank whose orders have ended
}

// processesPart measures this module with a process for each rank.
func processesPart(ctx context.Context, j job, w io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := startMembers(ctx, j)
	if err != nil {
		return err
	}
	units := unitsOf(j.think)
	for _, size := range j.sizes {
		r := result{program: "kolo", variant: j.between, collective: j.collective, ranks: j.ranks, size: size}
		wrong, err := m.resize(size)
		switch {
		case err != nil:
			return errors.Join(fmt.Errorf("%s: %w", sizeString(size), err), m.stop(cancel))
		case wrong != nil:
			err = r.bad(wrong, w)
		default:
			err = m.measureRight(j, units, r, w)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", sizeString(size), err), m.stop(cancel))
		}
	}
	return m.stop(nil)
}

// startMembers starts the processes and hands them the crew's orders.
func startMembers(ctx context.Context, j job) (*members, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	m := &members{crew: newCrew(j.ranks), closed: make(chan struct{}, j.ranks)}
	front := make([][]string, j.ranks)
	if j.bind == 1 {
		if front, err = bound(ctx, j.ranks); err != nil {
			return nil, err
		}
	}
	for r := range j.ranks {
		c := newCommand(ctx, slices.Concat(front[r], []string{exe, "part", "member"}, j.args()))
		c.Env = append(os.Environ(), fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", j.ranks),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := c.Start(); err != nil {
			return nil, err
		}
		m.all, m.end = append(m.all, c), append(m.end, in)
		m.in, m.out = append(m.in, json.NewEncoder(in)), append(m.out, json.NewDecoder(out))
	}
	for r := range j.ranks {
		// ended by stop, which closes the orders
		go m.forward(r)
	}
	return m, nil
}

// forward hands a member its orders and the crew its answers.
func (m *members) forward(r int) {
	for o := range m.orders[r] {
		got, err := m.ask(r, command{Calls: o.calls, Apart: o.manner == separated, Work: o.work, Idle: o.idle})
		m.answers <- answer{got.Took, err}
	}
	m.closed <- struct{}{}
}

// ask is one command and its answer.
func (m *members) ask(r int, c command) (got reply, err error) {
	if err := m.in[r].Encode(c); err != nil {
		return got, fmt.Errorf("rank %d: %w", r, err)
	}
	if err := m.out[r].Decode(&got); err != nil {
		return got, fmt.Errorf("rank %d: %w", r, err)
	}
	if got.Err != "" {
		return got, fmt.Errorf("rank %d: %s", r, got.Err)
	}
	return got, nil
}

// resize lets all members make and check one call of a size. No order is out.
func (m *members) resize(size int64) (wrong, err error) {
	for r := range m.all {
		if err := m.in[r].Encode(command{Size: size}); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for r := range m.all {
		var got reply
		if err := m.out[r].Decode(&got); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
		if got.Err != "" {
			return nil, fmt.Errorf("rank %d: %s", r, got.Err)
		}
		if got.Wrong != "" {
			wrong = errors.New(got.Wrong)
		}
	}
	return wrong, nil
}

// stop ends the members, by force if there is a cancel.
func (m *members) stop(cancel func()) error {
	if cancel != nil {
		cancel()
	}
	for _, to := range m.orders {
		close(to)
	}
	var errs []error
	for _, in := range m.end {
		_ = in.Close() // a member that has ended has closed it
	}
	for _, c := range m.all {
		if err := c.Wait(); cancel == nil {
			errs = append(errs, err)
		}
	}
	for range m.orders {
		<-m.closed
	}
	return errors.Join(errs...)
}

// memberPart is one rank in a process of its own.
func memberPart(ctx context.Context, j job, w io.Writer) error {
	world, err := cluster.Join(ctx, cluster.Config{Transport: j.between, Timeout: j.limit})
	if err != nil {
		return err
	}
	err = serveMember(ctx, j, world, rank.Alloc[float32], json.NewDecoder(os.Stdin), json.NewEncoder(w))
	return errors.Join(err, world.Close(ctx))
}

// serveMember carries out commands until there are no more.
func serveMember(ctx context.Context, j job, world *rank.World, alloc func(n int) []float32, in *json.Decoder, out *json.Encoder) error {
	me, g := int(world.Rank()), world.Group()
	barrier := func() error { return rank.Barrier(ctx, g) }
	all := newMemoryOf(j.collective, j.ranks, me, slices.Max(j.sizes), alloc)
	var call func() error
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a reply
		var err error
		if c.Size > 0 || call == nil {
			m := all.cut(c.Size)
			call = koloCall(ctx, g, j.collective, m.ranks[me])
			m.fill()
			if err = call(); err == nil && j.collective != kolo.Barrier {
				if bad := m.check(); bad != nil {
					a.Wrong = bad.Error()
				}
			}
		} else {
			o := order{calls: c.Calls, work: c.Work, idle: c.Idle}
			if c.Apart {
				o.manner = separated
			}
			if err = barrier(); err == nil { // the commands do not come at once
				a.Took, err = perform(o, call, barrier)
			}
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := errors.Join(err, out.Encode(a)); err != nil {
			return err
		}
	}
}
