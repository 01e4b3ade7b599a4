package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kolo-ccl/kolo"
	_ "github.com/kolo-ccl/kolo/channel/pcie"  // linked in
	_ "github.com/kolo-ccl/kolo/channel/roce"  // linked in
	_ "github.com/kolo-ccl/kolo/channel/verbs" // linked in
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// transports are the drivers that --transport takes, best first.
var transports = []string{"hccs", "shm", "verbs", "roce", "tcp"}

// place is where a launcher has put this process among others.
type place struct {
	process, processes int
}

// launcher are the variables in which launchers tell a process its place.
var launcher = []struct{ process, processes string }{
	{"RANK", "WORLD_SIZE"},
	{"SLURM_PROCID", "SLURM_NTASKS"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
}

// place is what the environment says; without a launcher this process is alone.
func (a *app) place() (place, error) {
	for _, v := range launcher {
		which, of := a.getenv(v.process), a.getenv(v.processes)
		if which == "" || of == "" {
			continue
		}
		i, err := strconv.Atoi(which)
		n, err2 := strconv.Atoi(of)
		if err = errors.Join(err, err2); err != nil || i < 0 || i >= n {
			return place{}, fmt.Errorf("%w: %s=%q of %s=%q is no place of a process", kolo.ErrArgument, v.process, which, v.processes, of)
		}
		return place{i, n}, nil
	}
	if rank, size := a.getenv(launcher[0].process), a.getenv(launcher[0].processes); rank != size { // one of them is empty
		return place{}, fmt.Errorf("%w: RANK is %q and WORLD_SIZE %q; set both, or none for ranks of this process alone", kolo.ErrArgument, rank, size)
	}
	return place{0, 1}, nil
}

// alone says whether there are no other processes.
func (p place) alone() bool { return p.processes == 1 }

// party is a world of which some ranks are in this process.
type party struct {
	worlds  []*rank.World
	process *cluster.Process // nil where there are no others
	link    kolo.Link        // between the ranks of one process, where there are no others
	rack    string
}

// partyConfig says which world to open.
type partyConfig struct {
	place
	each      int    // ranks of each process
	transport string // a name of transports, or empty
	rack      string
	patience  time.Duration // of joining; 0: cluster's
	rank      rank.Config
}

// ranks are those of this process.
func (c *partyConfig) ranks() []kolo.Rank {
	var list []kolo.Rank
	for i := range c.each {
		list = append(list, kolo.Rank(c.process*c.each+i))
	}
	return list
}

// validate says what is wrong with the transport.
func (c *partyConfig) validate() error {
	switch {
	case c.transport != "" && !slices.Contains(transports, c.transport):
		return fmt.Errorf("--transport %s: want one of %v", c.transport, transports)
	case c.transport == "hccs" && !c.alone():
		return errors.New("--transport hccs: it joins ranks of one process, and there are several; leave it out, ranks of each process then have it among themselves")
	}
	return nil
}

// open opens the world: it joins the other processes, if there are some.
func (a *app) open(ctx context.Context, c partyConfig) (*party, error) {
	if c.alone() {
		p := &party{link: kolo.LinkHCCS, rack: c.rack}
		if c.transport != "" && c.transport != "hccs" {
			c.rank.Driver = c.transport
			c.rank.Topology = byDriver(c.each, c.transport) // without a medium, which would do all calls without the driver
			p.link = c.rank.Topology.Levels[0].Link
		}
		var err error
		p.worlds, err = rank.Open(c.each, c.rank)
		return p, err
	}
	p, err := cluster.Open(ctx, cluster.Config{Size: c.processes * c.each, Ranks: c.ranks(), Transport: c.transport, Rank: c.rank, Rack: c.rack, Timeout: c.patience, Getenv: a.getenv})
	if err != nil {
		return nil, err
	}
	return &party{worlds: p.Worlds(), process: p}, nil
}

// byDriver is n ranks of one process that a driver joins which is made for several.
func byDriver(n int, driver string) *plan.Topology {
	t := plan.OneServer(n)
	t.Levels[0] = cluster.Near(driver)
	return t
}

// ranks are those of this process.
func (p *party) ranks() (list []kolo.Rank) {
	for _, w := range p.worlds {
		list = append(list, w.Rank())
	}
	return list
}

// leads says whether rank 0 is here, whose process speaks for all.
func (p *party) leads() bool { return p.worlds[0].Rank() == 0 }

// close closes the worlds of this process.
func (p *party) close() error {
	var errs []error
	for _, w := range p.worlds {
		errs = append(errs, w.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// members are the processes of the world; alone, this one.
func (p *party) members() []cluster.Member {
	if p.process != nil {
		return p.process.Members()
	}
	m := cluster.Self()
	m.Ranks = p.ranks()
	return []cluster.Member{m}
}

// hostName is the name of a member's host.
func hostName(m *cluster.Member) string { return cmp.Or(m.Host.Name, "localhost") }
