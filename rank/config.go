package rank

import (
	"fmt"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// Defaults and limits.
const (
	DefaultTimeout      = 5 * time.Minute
	DefaultCloseTimeout = 10 * time.Second
	maxRanks            = 1 << 20 // ranks of one process
	maxAhead            = 4096    // calls of a group that a rank has made and that have not ended
)

// Config says how a World runs. The zero value works.
type Config struct {
	// Timeout is the longest that a call may take from the moment that the first rank
	// made it. 0 means DefaultTimeout; negative means no deadline.
	Timeout time.Duration
	// CloseTimeout is how long Close waits for calls that are in flight. 0 means
	// DefaultCloseTimeout.
	CloseTimeout time.Duration
	// Algorithm overrides the choice for all groups: a name of plan.Algorithms, or an
	// expression as in HCCL_ALGO. Empty: the choice is made by cost.
	Algorithm string
	// Plans are plans from outside, such as ReadPlans makes of a directory. Where no
	// algorithm is set, a call takes the first of them that serves it, and is otherwise
	// done as if there were none; the name of one may be set as an Algorithm. Not to be
	// changed once it is in use. nil: none.
	Plans *plan.Library
	// Choice is how algorithms are chosen where none is set: plan.Measured (the zero
	// value), plan.Static or plan.Timed. With Timed the first calls of a kind and size are
	// done by one algorithm after the other; the fastest stays until its times change. The
	// order in which a sum is folded may then change from call to call, unless Reproducible.
	// Groups that span processes are not timed, since all must choose alike: see Tune.
	Choice plan.Method
	// Contest are the limits for Timed. Other than for Tune the default of Fringe is
	// Within: whom the model thinks little of costs no call.
	Contest plan.ContestConfig
	// Tuning is a table of choices that counts where no Algorithm is set, as Tune makes it or
	// plan.ParseTuning reads it from a tuner file. nil: none. It must not change, and is the
	// same in all processes. Calls of sizes between two powers of two share a choice, that
	// of the first of them.
	Tuning *plan.Tuning
	// Reproducible makes the bits of every reduction depend on the order of the ranks
	// only: algorithms that cannot do that are refused.
	Reproducible bool
	// Check is how the calls of different processes are compared. Those of one process
	// always are before data moves.
	Check Check
	// Diagnose asks for notes and checks that cost time. 0: none.
	Diagnose Diagnosis
	// Warn is how long a call may take, like Timeout, until Warned is told, once for each
	// call and in a turn of the runtime: it must not block. 0 or Warned nil: never. Whatever
	// Warn is, Warned is told of each pair of Devices whose data is staged through the host,
	// since there is no better way; Group is empty then, and Text says what to check.
	Warn   time.Duration
	Warned func(Warning)
	// Topology says where the ranks are and what lies between them. nil: all in one
	// server, with the figures of Probe, or what DeviceTopology makes of Devices.
	Topology *plan.Topology
	// Devices are what the ranks of this process work on, in the order of the ranks. A
	// device that is lost fails every group of its rank at once with npu.ErrLost and the
	// cause, also where no call is in flight; what is not npu.Watched is found out by use.
	// Between two that have no way to each other (no peer access, no port) data is staged
	// through the host. They stay their maker's to close, after the Worlds. nil: none.
	Devices []npu.Device
	// Workers is the number of goroutines that move and reduce large buffers, besides
	// the ranks that wait. 0 means GOMAXPROCS, or this process's share of it where several
	// processes of a world are on a host. With 1, who has the work does it.
	Workers int
	// Driver is the name of the channel driver between ranks of this process; the
	// driver's package must be linked in. Empty means hccs.
	Driver string
	// Wrap, if set, makes the driver to use around the one of Driver: for tests, as
	// with channel/faulty. The fabric algorithm uses no driver; force another one.
	Wrap func(channel.Driver) (channel.Driver, error)
	// Engine makes the engine that moves and folds the ranks' memory, around the host's,
	// to which it leaves what is the host's: so that calls take device memory. It is
	// closed with the last World, before host. nil: host alone.
	Engine func(host channel.Engine) channel.Engine

	sources map[string]string // field -> where its value is from, if not the program
}

// Check is how the calls of different processes are compared.
type Check uint8

// The checks. With either a mismatch is kolo.ErrMismatch on all ranks, naming the odd
// ranks and both calls.
const (
	// Digests: every transfer carries a digest of its call, so that a mismatch is found
	// where the data of two calls meets, before it is written; and a call that takes longer
	// than 100 ms is compared. Parts of outputs may be written by then.
	Digests Check = iota
	// Strict: the processes tell each other every call before its data moves. That costs a
	// round of control messages for each call.
	Strict
)

// String is "digests" or "strict".
func (c Check) String() string {
	switch c {
	case Digests:
		return "digests"
	case Strict:
		return "strict"
	}
	return fmt.Sprintf("Check(%d)", uint8(c))
}

// Setting is one effective value of a configuration.
type Setting struct{ Name, Value, Source string }

// ConfigFromEnv reads HCCL_ALGO, HCCL_EXEC_TIMEOUT (seconds) and HCCL_DETERMINISTIC
// (false, true, strict) by getenv, such as os.Getenv. Nothing in this package reads the
// environment by itself; of the others only cluster does, unless its Config has a Getenv.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	c := Config{sources: map[string]string{}}
	if v := getenv("HCCL_ALGO"); v != "" {
		c.Algorithm, c.sources["Algorithm"] = v, "HCCL_ALGO"
	}
	if v := getenv("HCCL_EXEC_TIMEOUT"); v != "" {
		d, err := time.ParseDuration(v + "s")
		if err != nil || d < 0 {
			return Config{}, fmt.Errorf("%w: HCCL_EXEC_TIMEOUT=%q is no number of seconds", kolo.ErrArgument, v)
		}
		if d == 0 {
			d = -1 // HCCL: 0 is never
		}
		c.Timeout, c.sources["Timeout"] = d, "HCCL_EXEC_TIMEOUT"
	}
	switch v := strings.ToLower(getenv("HCCL_DETERMINISTIC")); v {
	case "", "false":
	case "true", "strict":
		c.Reproducible, c.sources["Reproducible"] = true, "HCCL_DETERMINISTIC"
	default:
		return Config{}, fmt.Errorf("%w: HCCL_DETERMINISTIC=%q: want false, true or strict", kolo.ErrArgument, v)
	}
	return c, c.Validate()
}

// Validate says what is wrong with the configuration, or nil.
func (c *Config) Validate() error {
	if c.CloseTimeout < 0 {
		return fmt.Errorf("%w: Config.CloseTimeout %v is negative", kolo.ErrArgument, c.CloseTimeout)
	}
	if c.Workers < 0 {
		return fmt.Errorf("%w: Config.Workers %d is negative", kolo.ErrArgument, c.Workers)
	}
	if c.Warn < 0 {
		return fmt.Errorf("%w: Config.Warn %v is negative", kolo.ErrArgument, c.Warn)
	}
	if c.Check > Strict {
		return fmt.Errorf("%w: Config.Check %d; known: digests, strict", kolo.ErrArgument, c.Check)
	}
	if err := (plan.Policy{Method: c.Choice}).Validate(); err != nil {
		return fmt.Errorf("Config.Choice: %w", err)
	}
	if err := (plan.Policy{Tuning: c.Tuning}).Validate(); err != nil {
		return fmt.Errorf("Config.Tuning: %w", err)
	}
	if err := c.checkAlgorithm(c.Algorithm); err != nil {
		return fmt.Errorf("Config.Algorithm: %w", err)
	}
	if c.Topology != nil {
		return c.Topology.Validate()
	}
	return nil
}

// checkAlgorithm says what is wrong with an Algorithm setting, or nil.
func (c *Config) checkAlgorithm(algorithm string) error {
	if c.Plans.Get(algorithm) != nil {
		algorithm = ""
	}
	return c.policy(algorithm).Validate()
}

// policy is how algorithms are chosen with an Algorithm setting.
func (c *Config) policy(algorithm string) plan.Policy {
	return plan.Policy{Method: c.Choice, Reproducible: c.Reproducible, Tuning: c.Tuning}.Force(algorithm)
}

// tuningText is a tuning in a word or two.
func tuningText(t *plan.Tuning) string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%d rules, digest %016x", len(t.Rules), t.Digest())
}

func (c Config) withDefaults(n int) (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = DefaultCloseTimeout
	}
	if c.Driver == "" {
		c.Driver = "hccs"
	}
	var err error
	switch {
	case c.Topology != nil:
	case len(c.Devices) > 0:
		if c.Topology, err = DeviceTopology(c.Devices); err != nil {
			err = fmt.Errorf("Config.Devices: %w", err)
		}
	default:
		c.Topology = plan.OneProcess(n)
	}
	return c, err
}

// settings lists the effective values; given is the configuration as it was given.
func (c *Config) settings(given *Config) []Setting {
	source := func(name string, set bool) string {
		if s := given.sources[name]; s != "" {
			return s
		}
		if set {
			return "Config"
		}
		return "default"
	}
	topology := source("Topology", given.Topology != nil)
	if given.Topology == nil && len(c.Devices) > 0 {
		topology = "Devices"
	}
	algorithm := c.Algorithm
	if algorithm == "" {
		algorithm = "by cost"
	}
	engine := "host"
	if c.Engine != nil {
		engine = "host and devices"
	}
	return []Setting{
		{"Timeout", c.Timeout.String(), source("Timeout", given.Timeout != 0)},
		{"CloseTimeout", c.CloseTimeout.String(), source("CloseTimeout", given.CloseTimeout != 0)},
		{"Algorithm", algorithm, source("Algorithm", given.Algorithm != "")},
		{"Plans", fmt.Sprint(len(c.Plans.Entries())), source("Plans", given.Plans != nil)},
		{"Choice", c.Choice.String(), source("Choice", given.Choice != 0)},
		{"Contest", fmt.Sprintf("%+v", c.Contest), source("Contest", given.Contest != plan.ContestConfig{})},
		{"Tuning", tuningText(c.Tuning), source("Tuning", given.Tuning != nil)},
		{"Reproducible", fmt.Sprint(c.Reproducible), source("Reproducible", given.Reproducible)},
		{"Check", c.Check.String(), source("Check", given.Check != 0)},
		{"Diagnose", c.Diagnose.String(), source("Diagnose", given.Diagnose != 0)},
		{"Warn", c.Warn.String(), source("Warn", given.Warn != 0)},
		{"Topology", c.Topology.String(), topology},
		{"Devices", fmt.Sprint(len(c.Devices)), source("Devices", given.Devices != nil)},
		{"Workers", fmt.Sprint(c.Workers), source("Workers", given.Workers != 0)},
		{"Driver", c.Driver, source("Driver", given.Driver != "")},
		{"Wrap", fmt.Sprint(c.Wrap != nil), source("Wrap", given.Wrap != nil)},
		{"Engine", engine, source("Engine", given.Engine != nil)},
	}
}
