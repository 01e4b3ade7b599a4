package soak

import (
	"errors"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// A mixed world has processes on two hosts, as far as it knows: hccs joins the ranks of a
// process, shm those of a host, tcp the hosts. Control messages go by queues.

// mixedHost is the host of a process.
func mixedHost(process int) int { return process % 2 }

// mixedDriver is one process's driver.
type mixedDriver struct {
	process int
	of      []int // the process of each rank
	between []channel.Driver
}

const (
	byHCCS = iota
	bySHM
	byTCP
	numMixed
)

func (d *mixedDriver) way(peer kolo.Rank) int {
	switch q := d.of[peer]; {
	case q == d.process:
		return byHCCS
	case mixedHost(q) == mixedHost(d.process):
		return bySHM
	}
	return byTCP
}

func (d *mixedDriver) Link() kolo.Link { return d.between[byTCP].Link() }

func (d *mixedDriver) Direct(a, b kolo.Rank) bool { return d.of[a] == d.of[b] }

func (d *mixedDriver) Close() error {
	var errs []error
	for _, x := range d.between {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

func (d *mixedDriver) Open(r kolo.Rank) (channel.Endpoint, error) {
	e := &mixedEnd{d: d}
	for _, x := range d.between {
		end, err := x.Open(r)
		if err != nil {
			e.Close()
			return nil, err
		}
		e.ends = append(e.ends, end)
	}
	return e, nil
}

type mixedEnd struct {
	d    *mixedDriver
	ends []channel.Endpoint
}

func (e *mixedEnd) Connect(peer kolo.Rank) (channel.Conn, error) {
	return e.ends[e.d.way(peer)].Connect(peer)
}

func (e *mixedEnd) Close() {
	for _, x := range e.ends {
		x.Close()
	}
}

// meeting is where the processes tell each other the addresses of their drivers.
type meeting struct {
	mu    sync.Mutex
	left  int
	all   chan struct{}
	told  map[int][numMixed][]byte
	ranks []int
}

// driver makes the driver of a process and waits for the others.
func (m *meeting) driver(process int, e channel.Engine) (channel.Driver, error) {
	d := &mixedDriver{process: process, of: m.ranks}
	var mine [numMixed][]byte
	for i, name := range []string{"hccs", "shm", "tcp"} {
		x, err := channel.Open(name, channel.Config{Job: "soak", Epoch: 1, Engine: e})
		if err != nil {
			return nil, err
		}
		d.between = append(d.between, x)
		if i == byHCCS {
			continue
		}
		if mine[i], err = x.(channel.Remote).Address(); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	m.told[process] = mine
	if m.left--; m.left == 0 {
		close(m.all)
	}
	m.mu.Unlock()
	<-m.all
	var peers [numMixed][]channel.Peer
	for r, q := range m.ranks {
		if way := d.way(kolo.Rank(r)); way != byHCCS {
			peers[way] = append(peers[way], channel.Peer{Rank: kolo.Rank(r), Address: m.told[q][way]})
		}
	}
	for way, list := range peers {
		if len(list) == 0 {
			continue
		}
		if err := d.between[way].(channel.Remote).Meet(list); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// post is the queues of control messages.
type post struct {
	wg     sync.WaitGroup
	boxes  []chan telling
	mu     sync.Mutex
	closed bool
}

type telling struct {
	from    int
	message []byte
}

type plug struct {
	p    *post
	from int
}

// Tell puts a message into the queue of a process, which is larger than what a script tells.
func (p plug) Tell(to int, message []byte) error {
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	if p.p.closed {
		return kolo.ErrClosed
	}
	select {
	case p.p.boxes[to] <- telling{p.from, message}:
		return nil
	default:
		return kolo.ErrLimit
	}
}

// openMixed opens a world of processes on two hosts.
func openMixed(c rank.Config, w *worldSpec) (*opened, error) {
	sizes := w.sizes
	m := &meeting{left: len(sizes), all: make(chan struct{}), told: map[int][numMixed][]byte{}, ranks: w.of}
	var hosts []int
	for _, process := range w.of {
		hosts = append(hosts, mixedHost(process))
	}
	topology, err := plan.Places(m.ranks, hosts)
	if err != nil {
		return nil, err
	}
	c.Topology = topology
	o, p := &opened{worlds: make([]*rank.World, len(m.ranks))}, &post{}
	locals, errs := make([]*rank.Local, len(sizes)), make([]error, len(sizes))
	for range sizes {
		p.boxes = append(p.boxes, make(chan telling, 1<<16))
	}
	var wg sync.WaitGroup
	for i := range sizes {
		wg.Go(func() { // ends with the meeting
			locals[i], errs[i] = c.OpenPart(rank.Part{Process: i, Processes: m.ranks, Job: "soak", Epoch: 1, Control: plug{p, i},
				Driver: func(e channel.Engine) (channel.Driver, error) { return m.driver(i, e) }})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	bad := make([]error, len(sizes))
	for i, l := range locals {
		for _, w := range l.Worlds() {
			o.worlds[w.Rank()] = w
		}
		p.wg.Go(func() { // ended by end
			for t := range p.boxes[i] {
				if err := l.Deliver(t.from, t.message); err != nil {
					bad[i] = err
				}
			}
		})
	}
	o.end = func() error {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		for _, b := range p.boxes {
			close(b)
		}
		p.wg.Wait()
		return errors.Join(bad...)
	}
	return o, nil
}
