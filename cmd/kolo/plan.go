package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/survey"
)

// planCommand is kolo plan with its commands.
func (a *app) planCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "List, prove, explain, draw and simulate choreographies",
		Long: `Plan looks at choreographies: what each rank of a collective sends to whom, and
after what. Nothing of it needs hardware, and only tune sends anything.`,
		Example: `  kolo plan list -p 8
  kolo plan show ring -p 4 --svg ring.svg
  kolo plan verify nhr --ranks 1-33
  kolo plan explain -p 64 --servers 8x8 -b 25M
  kolo plan simulate hier:mesh+nhr --network hccs:4x8 -b 25M
  kolo plan diff ring nhr -p 16 -b 1M
  kolo plan tune -p 4 -o tuned.json
  kolo plan export ring -p 8 -o ring8.xml`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.planList(), a.planShow(), a.planVerify(), a.planExplain(), a.planSimulate(), a.planDiff(),
		a.planTune(), a.planImport(), a.planExport())
	return cmd
}

// planFlags say which call by which ranks a plan is for.
type planFlags struct {
	set        *pflag.FlagSet
	ranks      int
	topology   string
	servers    string
	network    string
	collective string
	root       int
	size       byteSize
	inPlace    bool
	json       bool
	noJSON     bool // the command has a format of its own

	slow, lost []string
	loseNIC    []int
	place      string
}

// register declares the flags that all commands have.
func (f *planFlags) register(s *pflag.FlagSet) {
	f.set = s
	s.SortFlags = false
	f.size = 1 << 20
	s.IntVarP(&f.ranks, "npus", "p", defaultRanks, "`ranks` in one server")
	s.StringVar(&f.servers, "servers", "", "ranks by `server` instead: 4x8 (4 of 8 each) or 8,8,4")
	s.StringVar(&f.topology, "topology", "", "`file` of kolo topo export instead: the places of the ranks, and what was measured between them")
	s.StringVar(&f.network, "network", "", "`network` that they are on: a file of ours, a .yml of ASTRA-sim, or ring:N, mesh:N, switch:N, torus:AxB, fat-tree:RACKSxSERVERS, hccs:RACKSxSERVERS[xBOARDS]")
	s.StringVarP(&f.collective, "collective", "c", "all_reduce", "`collective`, by its name in kolo test")
	s.IntVarP(&f.root, "root", "r", 0, "`rank` that has the data, or gets the result")
	s.VarP(&f.size, "bytes", "b", "`size` of the whole vector")
	s.BoolVar(&f.inPlace, "inplace", false, "input and output are one buffer")
	if !f.noJSON {
		s.BoolVar(&f.json, "json", false, "write JSON instead of text")
	}
}

// registerWhatIf declares those that change a network.
func (f *planFlags) registerWhatIf(s *pflag.FlagSet) {
	s.StringArrayVar(&f.slow, "slow", nil, "what if a `link` were slower: npu1>npu2=0.1 leaves it a tenth of its bandwidth")
	s.StringArrayVar(&f.lost, "lost", nil, "what if a `link` were down: npu1>npu2")
	s.IntSliceVar(&f.loseNIC, "lose-nic", nil, "what if the network cards of these `NPUs` were down")
	s.StringVar(&f.place, "place", "", "what if the ranks were placed otherwise: the `NPUs` of rank 0, 1 and so on, as 0,2,1,3; or spread (neighbours far apart)")
}

// scene is what the flags describe.
type scene struct {
	net  *plan.Network // nil without --network
	topo *plan.Topology
	call *kolo.Call
}

// scene reads the flags.
func (f *planFlags) scene() (*scene, error) {
	s := &scene{}
	var err error
	switch {
	case f.network != "":
		if s.net, err = f.readNetwork(); err == nil {
			s.topo, err = s.net.Topology()
		}
	case len(f.slow)+len(f.lost)+len(f.loseNIC) > 0 || f.place != "":
		err = fmt.Errorf("--slow, --lost, --lose-nic and --place change a network: give --network too")
	case f.topology != "":
		var measured *survey.Survey
		if measured, err = readTopology(f.topology); err == nil {
			s.topo, err = measured.Topology()
		}
	case f.servers != "":
		var sizes []int
		if sizes, err = serverSizes(f.servers); err == nil {
			s.topo, err = plan.Servers(sizes...)
		}
	case f.ranks < 1 || f.ranks > maxPlanRanks:
		err = fmt.Errorf("-p %d: want 1 to %d ranks", f.ranks, maxPlanRanks)
	default:
		s.topo = plan.OneServer(f.ranks)
	}
	if err != nil {
		return nil, err
	}
	s.call, err = f.callFor(s.topo.Ranks())
	return s, err
}

// maxPlanRanks is the largest number of ranks that -p takes.
const maxPlanRanks = 1 << 16

// callFor is the call of n ranks.
func (f *planFlags) callFor(n int) (*kolo.Call, error) {
	c, err := collectiveNamed(f.collective)
	if err != nil {
		return nil, err
	}
	if f.root < 0 || f.root >= n {
		return nil, fmt.Errorf("-r %d: the ranks are 0 to %d", f.root, n-1)
	}
	call := &kolo.Call{Collective: c, DType: kolo.Float32, Root: kolo.Rank(f.root), Count: int64(f.size) / 4, InPlace: f.inPlace}
	switch c {
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		call.Count /= int64(n)
	case kolo.Barrier:
		call.Count = 0
	}
	return call, nil
}

// collectiveNamed finds a collective by its name in kolo test.
func collectiveNamed(name string) (kolo.Collective, error) {
	names := []string{"barrier"}
	if name == "barrier" {
		return kolo.Barrier, nil
	}
	if name == "gather" {
		return kolo.Gather, nil
	}
	for _, o := range perf.Operators() {
		if o.Collective != o.Collective.Base() {
			continue // their counts are not a matter of choreography
		}
		if o.Name == name {
			return o.Collective, nil
		}
		names = append(names, o.Name)
	}
	return kolo.NoCollective, fmt.Errorf("-c %q: want gather, %s", name, strings.Join(names, ", "))
}

// operatorName is the reverse of collectiveNamed.
func operatorName(c kolo.Collective) string {
	for _, o := range perf.Operators() {
		if o.Collective == c {
			return o.Name
		}
	}
	return strings.ToLower(c.String())
}

// serverSizes reads "4x8" or "8,8,4".
func serverSizes(s string) ([]int, error) {
	bad := fmt.Errorf("--servers %q: want as 4x8 or 8,8,4", s)
	number := func(s string) int {
		k, err := strconv.Atoi(s)
		if err != nil || k < 1 || k > maxPlanRanks {
			return 0
		}
		return k
	}
	if servers, each, ok := strings.Cut(s, "x"); ok {
		g, m := number(servers), number(each)
		if g == 0 || m == 0 || g*m > maxPlanRanks {
			return nil, bad
		}
		var out []int
		for range g {
			out = append(out, m)
		}
		return out, nil
	}
	var out []int
	left := maxPlanRanks
	for part := range strings.SplitSeq(s, ",") {
		k := number(part)
		if left -= k; k == 0 || left < 0 {
			return nil, bad
		}
		out = append(out, k)
	}
	return out, nil
}

// readNetwork finds the network and changes it as the what-ifs say.
func (f *planFlags) readNetwork() (*plan.Network, error) {
	n, err := networkFrom(f.network)
	if err != nil {
		return nil, err
	}
	for _, s := range f.slow {
		link, factor, ok := strings.Cut(s, "=")
		x, err := strconv.ParseFloat(factor, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("--slow %q: want LINK=FACTOR, as npu1>npu2=0.1", s)
		}
		n.Slow = append(n.Slow, plan.SlowLink{Link: link, Factor: x})
	}
	n.Lost = append(n.Lost, f.lost...)
	for _, npu := range f.loseNIC {
		if n, err = n.LoseNIC(npu); err != nil {
			return nil, err
		}
	}
	switch {
	case f.place == "spread":
		n.Place = spread(n.NPUs())
	case f.place != "":
		n.Place = nil
		for part := range strings.SplitSeq(f.place, ",") {
			at, err := strconv.Atoi(part)
			if err != nil {
				return nil, fmt.Errorf("--place %q: want numbers of NPUs, as 0,2,1,3, or spread", f.place)
			}
			n.Place = append(n.Place, at)
		}
	}
	return n, n.Validate()
}

// spread deals ranks out to the two halves of the NPUs in turn.
func spread(n int) (place []int) {
	half := (n + 1) / 2
	for i := range n {
		place = append(place, i/2+i%2*half)
	}
	return place
}

func networkFrom(name string) (*plan.Network, error) {
	data, err := readFile(name, maxInput)
	if errors.Is(err, kolo.ErrLimit) {
		return nil, err
	}
	if err != nil {
		n, named := plan.NetworkNamed(name)
		if named != nil && strings.Contains(name, ":") {
			return nil, named
		}
		if named != nil {
			return nil, fmt.Errorf("--network: %w", err)
		}
		return n, nil
	}
	parse := plan.ParseNetwork
	if ext := filepath.Ext(name); ext == ".yml" || ext == ".yaml" {
		parse = plan.ParseASTRA
	}
	n, err := parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// programs compiles an algorithm for the scene.
func (s *scene) programs(algorithm string) ([]*plan.Program, plan.Key, error) {
	if _, err := plan.Lookup(algorithm); err != nil {
		return nil, plan.Key{}, err
	}
	key := plan.KeyOf(s.call, algorithm)
	programs, err := plan.Programs(key, s.topo)
	return programs, key, err
}

// simulate runs programs on the scene's network, or on its topology if it has none.
func (s *scene) simulate(programs []*plan.Program, keep int) (plan.Timeline, error) {
	if s.net != nil {
		return plan.SimulateOn(programs, s.net, s.call, keep)
	}
	return plan.Simulate(programs, s.topo, s.call)
}

// where is the network or the topology in a line.
func (s *scene) where() string {
	if s.net == nil {
		return s.topo.String()
	}
	name := s.net.Name
	if name == "" {
		name = "network"
	}
	return fmt.Sprintf("%s, %v: %v", name, s.net.Model, s.topo)
}

// planned makes a command that takes algorithms, which are wrong usage if they are
// fewer than least or more than most.
func planned(cmd *cobra.Command, f *planFlags, least, most int, run func(args []string) error) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return &usageError{errors.New("say which: an algorithm of kolo plan list, or a file"), cmd.CommandPath()}
		case len(args) > most:
			return &usageError{fmt.Errorf("%q belongs to no flag", args[most]), cmd.CommandPath()}
		}
		return nil
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error { return run(args) }
	if f != nil {
		f.register(cmd.Flags())
	}
	return cmd
}

// usage marks an error of what the user typed.
func usage(err error, command string) error {
	if err == nil {
		return nil
	}
	return &usageError{err, "kolo plan " + command}
}

// writeJSON writes a document.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeFile makes a file with what write writes. - is standard output.
func (a *app) writeFile(name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(a.out)
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
