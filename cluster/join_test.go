package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// freePort is a port that was free a moment ago, and that no system gives to those who ask
// for any (RFC 6335, 6, and Linux, which begins at 32768).
func freePort(t *testing.T) string {
	for {
		port := strconv.Itoa(10000 + rand.IntN(22000))
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			require.NoError(t, l.Close())
			return port
		}
		require.NoError(t, t.Context().Err())
	}
}

func TestRankZeroServesTheRendezvous(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost", "::1"} {
		t.Run(host, func(t *testing.T) {
			if l, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
				t.Skipf("no %s here: %v", host, err)
			} else {
				require.NoError(t, l.Close())
			}
			list := together(t, Config{Rendezvous: "tcp://" + net.JoinHostPort(host, freePort(t))}, 1, 1)
			worlds := worldsOf(list)
			for _, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 100) }) {
				require.NoError(t, err)
			}
			closeAll(t, worlds)
		})
	}
}

// A rank that does not come is named on every rank that does.
func TestRankThatDoesNotComeIsNamedOnAllThatDo(t *testing.T) {
	t.Parallel()
	at := standing(t)
	errs := make(chan error, 2)
	for _, r := range []kolo.Rank{0, 2} {
		go func() { // ends with the join
			_, err := Join(t.Context(), Config{Rendezvous: at, Size: 4, Ranks: []kolo.Rank{r}, Timeout: 4 * time.Second, Getenv: noEnv})
			errs <- err
		}()
	}
	for range 2 {
		err := <-errs
		require.ErrorIs(t, err, kolo.ErrDeadline)
		require.ErrorContains(t, err, "rank 1 and 3 of 4 did not come")
		require.ErrorContains(t, err, "there came rank 0 (pid "+strconv.Itoa(os.Getpid()))
		var e *kolo.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, []kolo.Rank{1, 3}, e.Ranks)
	}
}

// A join that its caller gives up has not met its deadline.
func TestJoinThatIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user went home")
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	_, err := Join(ctx, Config{Rendezvous: "tcp://127.0.0.1:" + freePort(t), Size: 2, Ranks: []kolo.Rank{0}, Timeout: time.Minute, Getenv: noEnv})
	require.ErrorIs(t, err, kolo.ErrCanceled)
	require.ErrorIs(t, err, why)
	require.NotErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorContains(t, err, "rank 0 waited at the rendezvous")
}

func TestRendezvousThatIsNotThereIsSaid(t *testing.T) {
	start := time.Now()
	_, err := Join(t.Context(), Config{Rendezvous: "tcp://127.0.0.1:" + freePort(t), Size: 2, Ranks: []kolo.Rank{1}, Timeout: 500 * time.Millisecond, Getenv: noEnv})
	require.ErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "it is served by the process of rank 0")
	require.Less(t, time.Since(start), 5*time.Second)
}

// A port that something else has is no rendezvous, and a rank of another job is told so.
func TestAnotherJobAtTheRendezvous(t *testing.T) {
	at := "tcp://127.0.0.1:" + freePort(t)
	worlds := worldsOf(together(t, Config{Rendezvous: at, Job: "one"}, 1, 1))
	_, err := Join(t.Context(), Config{Rendezvous: at, Job: "two", Size: 2, Ranks: []kolo.Rank{0}, Timeout: 5 * time.Second, Getenv: noEnv})
	require.ErrorContains(t, err, `this rendezvous is of job "one", not "two"`)
	closeAll(t, worlds)
}

func TestSettingsThatDifferAreAMismatch(t *testing.T) {
	at := standing(t)
	errs := make(chan error, 2)
	for r, algorithm := range []string{"ring", "mesh"} {
		go func() { // ends with the join
			_, err := Join(t.Context(), Config{Rendezvous: at, Size: 2, Ranks: []kolo.Rank{kolo.Rank(r)}, Timeout: 5 * time.Second, Getenv: noEnv,
				Rank: rank.Config{Algorithm: algorithm}})
			errs <- err
		}()
	}
	var texts string
	for range 2 {
		err := <-errs
		require.Error(t, err)
		texts += err.Error()
	}
	require.Contains(t, texts, `algorithm "mesh"`)
	require.Contains(t, texts, `algorithm "ring"`)
}

// Joins and closes leave nothing behind: goroutines are counted by the package's
// TestMain, descriptors here.
func TestJoinsLeaveNoDescriptors(t *testing.T) {
	at := standing(t)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here")
		}
		return len(list)
	}
	cycle := func() {
		worlds := worldsOf(together(t, Config{Rendezvous: at}, 1, 2))
		for _, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(3), 1000) }) {
			require.NoError(t, err)
		}
		closeAll(t, worlds)
	}
	cycle()
	before := count()
	for range 10 {
		cycle()
	}
	after := count()
	for end := time.Now().Add(patience); after > before+2 && time.Now().Before(end); after = count() {
		runtime.Gosched() // those that gRPC closes on goroutines of its own
	}
	if after > before+2 { // of the runtime's own
		t.Errorf("%d descriptors after 10 joins, %d before", after, before)
	}
}

func TestVariablesOfLaunchers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table.json")
	require.NoError(t, os.WriteFile(path, []byte(textV1), 0o600))
	for _, c := range []struct {
		name    string
		env     map[string]string
		size    int
		ranks   []kolo.Rank
		at, job string
		attempt uint64
	}{
		{"torchrun", map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
			"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "2"}, 8, []kolo.Rank{3}, "tcp://node0:29500", "run", 2},
		{"several ranks", map[string]string{"KOLO_RANKS": "2, 3", "WORLD_SIZE": "4", "KOLO_RENDEZVOUS": "tcp://[fd00::1]:77"}, 4, []kolo.Rank{2, 3}, "tcp://[fd00::1]:77", "default", 0},
		{"IPv6", map[string]string{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "fd00::1", "MASTER_PORT": "1"}, 1, []kolo.Rank{0}, "tcp://[fd00::1]:1", "default", 0},
		{"srun", map[string]string{"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "gpu[03-04,9],x"},
			6, []kolo.Rank{5}, "tcp://gpu03:" + portOf("77.1"), "77.1", 0},
		{"mpirun", map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "ns1"},
			2, []kolo.Rank{1}, "tcp://127.0.0.1:" + portOf("ns1."), "ns1", 0},
		{"rank table", map[string]string{"RANK_TABLE_FILE": path, "RANK_ID": "1"}, 2, []kolo.Rank{1}, "tcp://172.16.0.100:16665", "default", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Config{Getenv: func(k string) string { return c.env[k] }}.withDefaults()
			require.NoError(t, err)
			require.Equal(t, c.size, got.Size)
			require.Equal(t, c.ranks, got.Ranks)
			require.Equal(t, c.at, got.Rendezvous)
			require.Equal(t, c.job, got.Job)
			require.Equal(t, c.attempt, got.Attempt)
			require.Equal(t, DefaultTimeout, got.Timeout)
		})
	}
	patient := Config{Size: 1, Ranks: []kolo.Rank{0}, Rendezvous: "tcp://a:1", Getenv: func(k string) string { return map[string]string{"HCCL_CONNECT_TIMEOUT": "600"}[k] }}
	got, err := patient.withDefaults()
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, got.Timeout)
	patient.Timeout = time.Second
	got, err = patient.withDefaults()
	require.NoError(t, err)
	require.Equal(t, time.Second, got.Timeout)
	for list, want := range map[string]string{"": "", "a": "a", "a,b": "a", "n[1-3]": "n1", "n[07,9],m": "n07", "x,n[1-3]": "x", "n[2]-ib": "n2-ib"} {
		require.Equal(t, want, firstNode(list), list)
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		says string
	}{
		{nil, "WORLD_SIZE"},
		{map[string]string{"RANK": "x", "WORLD_SIZE": "2"}, `RANK="x" is no rank`},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "x"}, `WORLD_SIZE="x" is no number`},
		{map[string]string{"RANK": "2", "WORLD_SIZE": "2", "KOLO_RENDEZVOUS": "tcp://a:1"}, "rank 2; the world has ranks 0 to 1"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "KOLO_RENDEZVOUS": "tcp://a:0"}, "want tcp://host:port"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "http"}, `rendezvous "tcp://a:http"`},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, `rendezvous "tcp://a:70000"`},
		{map[string]string{"RANK_TABLE_FILE": "/nowhere/at/all"}, "rank table"},
		{map[string]string{"WORLD_SIZE": "2", "KOLO_RENDEZVOUS": "tcp://a:1"}, "WORLD_SIZE is set and RANK is not"},
		{map[string]string{"RANK": "2", "KOLO_RENDEZVOUS": "tcp://a:1"}, "RANK is set and WORLD_SIZE is not"},
		{map[string]string{"SLURM_NTASKS": "2"}, "SLURM_NTASKS is set and SLURM_PROCID is not"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "HCCL_IF_IP": "eth0"}, `HCCL_IF_IP="eth0" is no address`},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "HCCL_CONNECT_TIMEOUT": "soon"}, `HCCL_CONNECT_TIMEOUT="soon"`},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "HCCL_CONNECT_TIMEOUT": "0"}, `HCCL_CONNECT_TIMEOUT="0"`},
	} {
		_, err := Config{Getenv: func(k string) string { return c.env[k] }}.withDefaults()
		require.ErrorContains(t, err, c.says)
	}
}

// A process that has met the others and cannot join says why, and so do then all of them:
// not that a connection was lost. It may be any of them.
func TestWhyOneCannotJoinIsToldByAll(t *testing.T) {
	other, err := plan.Servers(2, 2)
	require.NoError(t, err)
	for name, at := range map[string]struct {
		bad  func(c *Config)
		is   error
		says string
	}{
		"setting": {func(c *Config) {
			c.Getenv = func(name string) string { return map[string]string{"HCCL_RDMA_RETRY_CNT": "8"}[name] }
		}, kolo.ErrArgument, "HCCL_RDMA_RETRY_CNT"},
		"driver":    {func(c *Config) { c.Transport = "pigeon" }, kolo.ErrUnsupported, "pigeon"},
		"topology":  {func(c *Config) { c.Rank.Topology = other }, kolo.ErrMismatch, "topology"},
		"choice":    {func(c *Config) { c.Rank.Reproducible = true }, kolo.ErrMismatch, "reproducible"},
		"transport": {func(c *Config) { c.Transport = "tcp" }, kolo.ErrUnsupported, "no driver in common"},
	} {
		for bad := range 4 {
			t.Run(fmt.Sprintf("%s/%d", name, bad), func(t *testing.T) {
				t.Parallel()
				c := withRendezvous(t, Config{Transport: "roce", Timeout: time.Minute})
				_, errs := tryEach(t, c, func(i int, c *Config) {
					if i == bad {
						at.bad(c)
					}
				}, 1, 1, 1, 1)
				for r, err := range errs {
					require.ErrorIs(t, err, at.is, "rank %d", r)
					require.ErrorContains(t, err, at.says, "rank %d", r)
				}
			})
		}
	}
}

// Also where rank 0 serves the rendezvous, whose process ends as soon as it has heard.
func TestRankThatDoesNotComeIsNamedByARendezvousThatEnds(t *testing.T) {
	t.Parallel()
	at := "tcp://127.0.0.1:" + freePort(t)
	ranks := []kolo.Rank{0, 2, 3, 4, 5}
	errs := make(chan error, len(ranks))
	for _, r := range ranks {
		go func() { // ends with the join
			_, err := Join(t.Context(), Config{Rendezvous: at, Size: 7, Ranks: []kolo.Rank{r}, Timeout: 4 * time.Second, Getenv: noEnv})
			errs <- err
		}()
	}
	for range ranks {
		require.ErrorContains(t, <-errs, "rank 1 and 6 of 7 did not come")
	}
}

// A process that has come and is not ready in time is named by all others, also where it
// is the one by which they tell each other.
func TestProcessThatIsNotReadyInTimeIsNamedByAll(t *testing.T) {
	for late := range 3 {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			t.Parallel()
			at, hold := standing(t), make(chan struct{})
			errs, ended := make([]error, 3), make(chan int)
			for i := range errs {
				c := Config{Rendezvous: at, Size: 3, Ranks: []kolo.Rank{kolo.Rank(i)}, Timeout: 4 * time.Second, Getenv: noEnv}
				if i == late {
					c.Rank.Wrap = func(d channel.Driver) (channel.Driver, error) { <-hold; return d, nil }
				}
				go func() { // ends with the join
					_, errs[i] = Open(t.Context(), c)
					ended <- i
				}()
			}
			for range 2 {
				i := <-ended
				require.NotEqual(t, late, i, "%v", errs[i])
			}
			close(hold)
			<-ended
			for i, err := range errs {
				if require.Error(t, err); i != late {
					require.ErrorIs(t, err, kolo.ErrDeadline, "rank %d", i)
					require.ErrorContains(t, err, fmt.Sprintf("rank %d (pid", late), "rank %d", i)
					require.ErrorContains(t, err, "ready", "rank %d", i)
				}
			}
		})
	}
}

// startUp is how long any number of processes that one machine runs may take to join.
const startUp = 5 * time.Second

// joinInTime starts processes that join one world and meet in a call.
func joinInTime(t *testing.T, processes, ranks int) {
	t.Run(fmt.Sprintf("%d ranks in %d processes", ranks, processes), func(t *testing.T) {
		start := time.Now()
		list := spawnRanks(t, "join", processes, ranks)
		for _, o := range list {
			o.wait(t, "JOINED", time.Minute)
		}
		joined := time.Since(start)
		for _, o := range list {
			o.wait(t, "DONE", time.Minute)
		}
		t.Logf("joined after %v, closed after %v", joined.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		require.Less(t, joined, startUp)
	})
}

// The long list has 64 processes and 1,000 ranks.
func TestProcessesJoinInTime(t *testing.T) {
	joinInTime(t, 16, 16)
	joinInTime(t, 4, 300)
}
