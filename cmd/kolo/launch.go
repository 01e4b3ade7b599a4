package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/launch"
)

const runLong = `Run starts one program as the processes of a world, on this machine or on the hosts
of a file, and ends all of them when one fails.

Each process is told its place as torchrun does: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Its output comes line by line with its
rank in front. When a process fails, run says which one and how; the others have
--patience to say what they saw, are then asked to end (SIGTERM), and killed after
--grace; with --keep-going they run to their own end. The exit code is that of the process
that failed first, also then. Nothing is left running, also when run itself is killed.

A host file has a line for each host, "name slots=4"; processes fill the hosts in order.
Other hosts are reached with --ssh, without a password, and must have the program under
the same path.

With --bind core each process has one core of this machine to itself, as mpirun does by
default: small messages over TCP between processes that have a core each are faster so,
and a Go program has one processor (GOMAXPROCS) then. --bind share divides the cores
among the processes. Where there are fewer cores than processes none is bound, and run
says so. Cores are those that run itself may use. Linux only.`

// runFlags are the flags of kolo run.
type runFlags struct {
	n         int
	hosts     string
	env       []string
	master    string
	port      int
	ssh       string
	patience  time.Duration
	grace     time.Duration
	bind      string
	keepGoing bool
	noPrefix  bool
}

// runCommand is kolo run.
func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] -- program [arguments]",
		Short: "Start a program as the processes of a world, here or on several hosts",
		Long:  runLong,
		Example: `  kolo run -n 4 -- kolo test all_reduce -b 8 -e 64M -f 2
  kolo run --hosts hosts.txt --port 29500 -- ./train --epochs 3`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.launch(cmd, f, args) },
	}
	s := cmd.Flags()
	s.SetInterspersed(false) // what follows the program is the program's
	s.SortFlags = false
	s.IntVarP(&f.n, "processes", "n", 0, "number of processes; 0: all slots of the hosts, or 1")
	s.StringVar(&f.hosts, "hosts", "", "file with the hosts; without it everything runs on this machine")
	s.StringArrayVarP(&f.env, "env", "x", nil, "NAME=value for all processes, or NAME to pass on this shell's; may be given again")
	s.StringVar(&f.master, "master", "", "address of the process of rank 0; the first host, or 127.0.0.1")
	s.IntVar(&f.port, "port", 0, "port of the rendezvous; 0: a free one on this machine, 29500 with --hosts")
	s.StringVar(&f.ssh, "ssh", "ssh -o BatchMode=yes", "remote shell, with its flags")
	s.StringVar(&f.bind, "bind", "none", "what each process is bound to: none, a core, or a share of the cores")
	s.DurationVar(&f.patience, "patience", 2*time.Second, "how long the others go on after a failure")
	s.DurationVar(&f.grace, "grace", 5*time.Second, "how long a process that was asked to end may take")
	s.BoolVar(&f.keepGoing, "keep-going", false, "let the others go on after a failure for as long as they like; the exit code tells of it all the same")
	s.BoolVar(&f.noPrefix, "no-prefix", false, "put no rank in front of the lines")
	return cmd
}

// launch runs the job that the flags describe.
func (a *app) launch(cmd *cobra.Command, f *runFlags, args []string) error {
	job, err := a.job(f, args)
	if err == nil {
		err = job.Validate()
	}
	if err != nil {
		return &usageError{err, cmd.CommandPath()}
	}
	return job.Run(cmd.Context())
}

// job is what the flags describe.
func (a *app) job(f *runFlags, args []string) (*launch.Job, error) {
	if f.n < 0 || f.patience < 0 || f.grace <= 0 {
		return nil, fmt.Errorf("%w: --processes and --patience must not be negative, --grace must be positive", kolo.ErrArgument)
	}
	j := &launch.Job{Args: args, Master: f.master, Port: f.port, Shell: strings.Fields(f.ssh), Patience: f.patience, Grace: f.grace,
		KeepGoing: f.keepGoing, Bind: launch.Bind(f.bind), Out: a.out, Err: a.err, Log: a.err, Prefix: "[%d] ", Now: a.now}
	if f.noPrefix {
		j.Prefix = ""
	}
	hosts := []launch.Host{{Slots: max(f.n, 1)}}
	if f.hosts != "" {
		text, err := readFile(f.hosts, maxInput)
		if err != nil {
			return nil, fmt.Errorf("--hosts: %w", err)
		}
		if hosts, err = launch.ParseHosts(string(text)); err != nil {
			return nil, err
		}
	}
	var err error
	if j.Hosts, err = launch.Spread(hosts, f.n); err != nil {
		return nil, err
	}
	if j.Env, err = a.passed(f.env); err != nil {
		return nil, err
	}
	if f.hosts != "" && j.Master == "" {
		j.Master = j.Hosts[0].Name
	}
	switch {
	case j.Port != 0:
	case f.hosts != "":
		j.Port = 29500 // torchrun's
	default:
		j.Port, err = freePort()
	}
	return j, err
}

// passed are the variables of --env.
func (a *app) passed(list []string) ([]string, error) {
	var env []string
	for _, e := range list {
		if !strings.Contains(e, "=") {
			v := a.getenv(e)
			if v == "" {
				return nil, fmt.Errorf("%w: --env %s: this shell has no such variable; give %s=value", kolo.ErrArgument, e, e)
			}
			e += "=" + v
		}
		env = append(env, e)
	}
	return env, nil
}

// freePort is a port of this machine that nobody listened at a moment ago, and that the
// system does not give to others meanwhile: Linux begins at 32768, others later. Should
// it be taken before rank 0 comes to it all the same, the join says so.
func freePort() (int, error) {
	const tries = 1000
	var err error
	for range tries {
		var l net.Listener
		port := 10000 + rand.IntN(22000)
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}
