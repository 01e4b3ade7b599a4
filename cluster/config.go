package cluster

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Defaults.
const (
	DefaultTimeout = 2 * time.Minute // of Join; HCCL's is the same
	DefaultSilence = 5 * time.Second
)

// Config says which world to join, and how. What is zero in it is looked for in the
// environment, as the package's documentation lists.
type Config struct {
	// Rendezvous is where the processes find each other, as tcp://host:port. The process of
	// rank 0 serves it, unless somebody does already.
	Rendezvous string
	// Size is the number of ranks of the world, and Ranks are those of this process.
	Size  int
	Ranks []kolo.Rank
	// Job tells worlds at one rendezvous apart. All processes give the same.
	Job string
	// Attempt counts restarts of the whole job, as launchers do: processes of an older
	// attempt are refused.
	Attempt uint64
	// After is the Epoch of the world that these ranks have been in, when they join
	// another one after a failure. 0 for a process that has just begun.
	After uint64
	// Timeout is how long Join waits for the other processes. 0 means HCCL_CONNECT_TIMEOUT,
	// or DefaultTimeout.
	Timeout time.Duration
	// Silence is the time within which a process that is stopped or cut off is found to be
	// lost: when three heartbeats are missing. A process that ends is noticed at once. 0 means DefaultSilence.
	Silence time.Duration
	// Listen is where this process listens for the others, as host:port; a port of 0 is any
	// free one. Empty: all addresses, any port.
	Listen string
	// Advertise is what the others are told as this host's addresses, in place of those
	// that it has: an address behind a translation, for instance.
	Advertise []string
	// Rack names the rack of this host, for the topology.
	Rack string
	// TLS, if set, is what the rendezvous, the links and the data between hosts use, on all
	// processes: a certificate, and the roots to know others by, in both directions. Without
	// a ServerName the certificates must name the addresses. Of the drivers only tcp and what
	// stays on its host (shm) can be chosen then.
	TLS *tls.Config
	// Transport is the channel driver between processes, or a list of them, best first,
	// separated by commas. Empty: shm on one host; verbs between hosts which both have an
	// active RoCE port, where it is linked in; else tcp. Process.Explain says why.
	Transport string
	// Measure is how much the join measures of the links, in place of default figures: by
	// default a few milliseconds' worth, 250 at most. All processes give the same. What
	// is 0 is KOLO_MEASURE: quick, thorough or off. Process.Explain says what was found.
	Measure Measure
	// Log gets what Process.Warnings says when this process has joined, once each, from the
	// process of rank 0 alone, since all say the same. nil means slog.Default().
	Log *slog.Logger
	// Rank is how the World runs. Algorithm, Choice, Reproducible and Check must be the same
	// on all processes.
	Rank rank.Config
	// Getenv reads the environment. nil means os.Getenv.
	Getenv func(string) string

	table  *Table
	source string // where size and ranks come from
	told   int    // the port that the others are told, in place of the one where this process listens; for tests
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	if err := c.fromEnv(); err != nil {
		return c, err
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Silence == 0 {
		c.Silence = DefaultSilence
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Listen == "" {
		c.Listen = ":0"
	}
	return c, c.validate()
}

// validate says what is wrong, or nil.
func (c *Config) validate() error {
	if c.Size < 1 || c.Size > maxRanks {
		return fmt.Errorf("%w: a world of %d ranks: set Config.Size, or WORLD_SIZE", kolo.ErrArgument, c.Size)
	}
	if len(c.Ranks) == 0 {
		return fmt.Errorf("%w: this process has no rank: set Config.Ranks, or RANK", kolo.ErrArgument)
	}
	if err := checkHello(&hello{Size: c.Size, Member: Member{Ranks: c.Ranks}}); err != nil {
		return err
	}
	if c.Timeout < 0 || c.Silence < 0 {
		return fmt.Errorf("%w: Config.Timeout %v and Silence %v must not be negative", kolo.ErrArgument, c.Timeout, c.Silence)
	}
	if c.Measure > MeasureOff {
		return fmt.Errorf("%w: Config.Measure %d; known: quick, thorough, off", kolo.ErrArgument, c.Measure)
	}
	if t := c.TLS; t != nil && len(t.Certificates) == 0 && t.GetCertificate == nil && t.GetConfigForClient == nil {
		return fmt.Errorf("%w: Config.TLS has no certificate; every process is called by others", kolo.ErrArgument)
	}
	if _, err := c.meetingPoint(); err != nil {
		return err
	}
	return c.Rank.Validate()
}

// meetingPoint is host:port of the rendezvous.
func (c *Config) meetingPoint() (string, error) {
	at, ok := strings.CutPrefix(c.Rendezvous, "tcp://")
	host, port, err := net.SplitHostPort(at)
	if n, e := strconv.ParseUint(port, 10, 16); !ok || err != nil || host == "" || e != nil || n == 0 {
		return "", fmt.Errorf("%w: rendezvous %q: want tcp://host:port, of the process of rank 0 or a standing one; set Config.Rendezvous, or MASTER_ADDR and MASTER_PORT", kolo.ErrArgument, c.Rendezvous)
	}
	return at, nil
}

// settings are what all processes must share, in words.
func (c *Config) settings() string {
	return fmt.Sprintf("algorithm %q, choice %v, reproducible %v, check %v, measure %v", c.Rank.Algorithm, c.Rank.Choice, c.Rank.Reproducible, c.Rank.Check, c.measures())
}

// measures is Measure, where there is something to measure for.
func (c *Config) measures() Measure {
	if c.Rank.Topology != nil {
		return MeasureOff
	}
	return c.Measure
}

// serves says whether this process is to serve the rendezvous, if nobody does.
func (c *Config) serves() bool { return slices.Contains(c.Ranks, 0) }
