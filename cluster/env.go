package cluster

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel/tcp"
)

// fromEnv fills in what is zero from the environment, as doc.go says.
func (c *Config) fromEnv() error {
	if path := c.Getenv("RANK_TABLE_FILE"); path != "" && c.table == nil {
		t, err := ReadTable(path)
		if err != nil {
			return err
		}
		c.table = t
	}
	if err := c.whoFromEnv(); err != nil {
		return err
	}
	if c.Rendezvous == "" {
		c.Rendezvous = c.whereFromEnv()
	}
	if c.Job == "" {
		c.Job = c.first("KOLO_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
		if step := c.Getenv("SLURM_STEP_ID"); step != "" && c.Job == c.Getenv("SLURM_JOB_ID") {
			c.Job += "." + step
		}
	}
	if c.Job == "" {
		c.Job = "default"
	}
	if v := c.first("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"); v != "" && c.Attempt == 0 {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: restart count %q is no number", kolo.ErrArgument, v)
		}
		c.Attempt = n
	}
	if v := c.Getenv("HCCL_IF_IP"); v != "" && c.Advertise == nil {
		if _, err := netip.ParseAddr(v); err != nil {
			return fmt.Errorf("%w: HCCL_IF_IP=%q is no address", kolo.ErrArgument, v)
		}
		c.Advertise = []string{v}
	}
	if c.Getenv("HCCL_SOCKET_IFNAME") != "" && c.Advertise == nil {
		t, err := tcp.ConfigFromEnv(c.Getenv)
		if err != nil {
			return err
		}
		if c.Advertise, err = t.Addresses(); err != nil {
			return err
		}
	}
	if v := c.Getenv("KOLO_MEASURE"); v != "" && c.Measure == MeasureQuick {
		m, err := measureNamed(v)
		if err != nil {
			return err
		}
		c.Measure = m
	}
	if v := c.Getenv("HCCL_CONNECT_TIMEOUT"); v != "" && c.Timeout == 0 {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("%w: HCCL_CONNECT_TIMEOUT=%q is no number of seconds", kolo.ErrArgument, v)
		}
		c.Timeout = time.Duration(n) * time.Second
	}
	return nil
}

// first is the first of some variables that is set.
func (c *Config) first(names ...string) string {
	for _, n := range names {
		if v := c.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// whoFromEnv fills in size and ranks.
func (c *Config) whoFromEnv() error {
	half := "" // a launcher's size without a rank, or the reverse
	for _, v := range []struct{ rank, size string }{
		{"KOLO_RANKS", "WORLD_SIZE"}, {"RANK", "WORLD_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"},
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"RANK_ID", "RANK_SIZE"},
	} {
		who, size := c.Getenv(v.rank), c.Getenv(v.size)
		if who == "" || size == "" && (c.table == nil || v.rank == "SLURM_PROCID") {
			if who != "" {
				half = v.rank + " is set and " + v.size + " is not"
			} else if size != "" {
				half = v.size + " is set and " + v.rank + " is not"
			}
			continue
		}
		if c.Size == 0 && size != "" {
			n, err := strconv.Atoi(size)
			if err != nil {
				return fmt.Errorf("%w: %s=%q is no number", kolo.ErrArgument, v.size, size)
			}
			c.Size, c.source = n, v.size
		}
		if c.Ranks == nil {
			for _, part := range strings.Split(who, ",") {
				n, err := strconv.Atoi(strings.TrimSpace(part))
				if err != nil {
					return fmt.Errorf("%w: %s=%q is no rank", kolo.ErrArgument, v.rank, who)
				}
				c.Ranks = append(c.Ranks, kolo.Rank(n))
			}
		}
		half = ""
		break
	}
	if c.table == nil {
		if half != "" && c.Size == 0 {
			return fmt.Errorf("%w: %s: set both, or Config.Size and Config.Ranks", kolo.ErrArgument, half)
		}
		return nil
	}
	if n := len(c.table.Ranks); c.Size == 0 {
		c.Size, c.source = n, "RANK_TABLE_FILE"
	} else if c.Size != n {
		return fmt.Errorf("%w: the rank table has %d ranks, and %s says %d", kolo.ErrArgument, n, c.source, c.Size)
	}
	return nil
}

// The ports that are made of a job's number: below those that systems give out.
const (
	firstPort = 20000
	portRange = 10000
)

// portOf is a port made of a job's number.
func portOf(job string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(job)) // a hash takes everything
	return strconv.Itoa(firstPort + int(h.Sum32()%portRange))
}

// whereFromEnv is the rendezvous, or "".
func (c *Config) whereFromEnv() string {
	if v := c.Getenv("KOLO_RENDEZVOUS"); v != "" {
		return v
	}
	host, port := c.Getenv("MASTER_ADDR"), c.Getenv("MASTER_PORT")
	job := c.first("SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
	if host == "" {
		switch {
		case c.Getenv("SLURM_PROCID") != "":
			host = firstNode(c.first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
		case c.Getenv("OMPI_COMM_WORLD_SIZE") != "" && c.Getenv("OMPI_COMM_WORLD_LOCAL_SIZE") == c.Getenv("OMPI_COMM_WORLD_SIZE"):
			host = "127.0.0.1"
		case c.table != nil:
			host = c.table.Ranks[0].HostIP
			if p := c.table.Ranks[0].HostPort; p != 0 && port == "" {
				port = strconv.Itoa(p)
			}
		}
	}
	if host == "" {
		return ""
	}
	if port == "" {
		port = portOf(job + "." + c.Getenv("SLURM_STEP_ID"))
	}
	return "tcp://" + net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// firstNode is the first host of a Slurm node list, as n1 of "n[1-3,7],m2".
func firstNode(list string) string {
	before, after, ok := strings.Cut(list, "[")
	if comma := strings.IndexByte(before, ','); comma >= 0 {
		return before[:comma]
	}
	if !ok {
		return before
	}
	inside, rest, _ := strings.Cut(after, "]")
	first := inside
	if i := strings.IndexAny(inside, ",-"); i >= 0 {
		first = inside[:i]
	}
	if i := strings.IndexByte(rest, ','); i >= 0 {
		rest = rest[:i]
	}
	return before + first + rest
}
