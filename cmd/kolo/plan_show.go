package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/draw"
	"github.com/kolo-ccl/kolo/plan"
)

// algorithmLine is a line of kolo plan list.
type algorithmLine struct {
	Name   string   `json:"name"`
	Serves []string `json:"serves"`
	Source string   `json:"source"`
	Why    string   `json:"why,omitempty"` // why it does not serve the collective that was asked for
}

// planList is kolo plan list.
func (a *app) planList() *cobra.Command {
	f := &planFlags{}
	cmd := &cobra.Command{Use: "list", Short: "List the algorithms, and which collectives they serve for these ranks"}
	return planned(cmd, f, 0, 0, func([]string) error {
		s, err := f.scene()
		if err != nil {
			return usage(err, "list")
		}
		var lines []algorithmLine
		for _, alg := range plan.Algorithms() {
			l := algorithmLine{Name: alg.Name, Source: alg.Source, Serves: []string{}}
			for _, c := range kolo.Collectives() {
				if c == c.Base() && alg.Serves(c, s.topo) == nil {
					l.Serves = append(l.Serves, operatorName(c))
				}
			}
			if err := alg.Serves(s.call.Collective, s.topo); err != nil {
				l.Why = strings.TrimPrefix(err.Error(), kolo.ErrUnsupported.Error()+": ")
			}
			lines = append(lines, l)
		}
		if f.json {
			return writeJSON(a.out, lines)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "algorithm\tserves\tsource")
		for _, l := range lines {
			serves := strings.Join(l.Serves, " ")
			if serves == "" {
				serves = "- " + l.Why[strings.LastIndex(l.Why, ": ")+2:]
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", l.Name, serves, l.Source)
		}
		return w.Flush()
	})
}

// programDocument is a Program in JSON.
type programDocument struct {
	Algorithm  string         `json:"algorithm"`
	Collective string         `json:"collective"`
	Rank       int            `json:"rank"`
	Ranks      int            `json:"ranks"`
	Root       int            `json:"root"`
	InPlace    bool           `json:"in_place"`
	Chunks     int            `json:"chunks"`
	Parts      int            `json:"parts"`
	Blocks     map[string]int `json:"blocks"`
	Steps      []stepDocument `json:"steps"`
}

type stepDocument struct {
	Op    string      `json:"op"`
	Peers []int       `json:"peers,omitempty"`
	Lane  int         `json:"lane,omitempty"`
	Src   []placeList `json:"src,omitempty"`
	Dst   []placeList `json:"dst,omitempty"`
	After []int32     `json:"after,omitempty"`
	Final bool        `json:"final,omitempty"`
}

// placeList are blocks of a buffer, in order.
type placeList struct {
	Buffer string `json:"buffer"`
	Blocks []int  `json:"blocks"`
}

func documentOf(p *plan.Program) programDocument {
	d := programDocument{Algorithm: p.Algorithm, Collective: operatorName(p.Collective), Rank: int(p.Rank), Ranks: p.Ranks,
		Root: int(p.Root), InPlace: p.InPlace, Chunks: p.Chunks, Parts: p.Parts, Blocks: map[string]int{}, Steps: []stepDocument{}}
	for b, n := range p.Blocks {
		d.Blocks[plan.Buffer(b).String()] = n
	}
	places := func(spans []plan.Span) (out []placeList) {
		for _, s := range spans {
			l := placeList{Buffer: s.Buf.String()}
			p.At(s, func(block int) { l.Blocks = append(l.Blocks, block) })
			out = append(out, l)
		}
		return out
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		step := stepDocument{Op: s.Op.String(), Lane: int(s.Lane), Src: places(s.Src), Dst: places(s.Dst), After: s.After, Final: s.Final}
		for _, q := range s.Peers {
			step.Peers = append(step.Peers, int(p.Peer(q)))
		}
		d.Steps = append(d.Steps, step)
	}
	return d
}

// planShow is kolo plan show.
func (a *app) planShow() *cobra.Command {
	f := &planFlags{}
	var rank, svg, page string
	cmd := &cobra.Command{
		Use:   "show ALGORITHM",
		Short: "Print what each rank does, or draw it",
		Example: `  kolo plan show nhr -p 6 --rank 1
  kolo plan show ring -p 4 --svg ring.svg
  kolo plan show hier:mesh+ring --servers 2x4 --html two-level.html`,
	}
	cmd.Flags().StringVar(&rank, "rank", "0", "`rank` to print, or all")
	cmd.Flags().StringVar(&svg, "svg", "", "draw all ranks to `file` instead: ranks as rows, messages as arrows")
	cmd.Flags().StringVar(&page, "html", "", "write a page with the picture and all steps to `file` instead")
	return planned(cmd, f, 1, 1, func(args []string) error {
		s, err := f.scene()
		if err != nil {
			return usage(err, "show")
		}
		programs, _, err := s.programs(args[0])
		if err != nil {
			return err
		}
		if svg != "" || page != "" {
			return a.drawPlan(s, programs, svg, page)
		}
		if rank != "all" {
			r, err := strconv.Atoi(rank)
			if err != nil || r < 0 || r >= len(programs) {
				return usage(fmt.Errorf("--rank %q: want 0 to %d, or all", rank, len(programs)-1), "show")
			}
			programs = programs[r : r+1]
		}
		return a.printPrograms(programs, f.json)
	})
}

func (a *app) printPrograms(programs []*plan.Program, asJSON bool) error {
	if asJSON {
		var list []programDocument
		for _, p := range programs {
			list = append(list, documentOf(p))
		}
		return writeJSON(a.out, list)
	}
	for _, p := range programs {
		if _, err := io.WriteString(a.out, p.String()); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) drawPlan(s *scene, programs []*plan.Program, svg, page string) error {
	picture := draw.Picture{Programs: programs, Server: s.topo.Server}
	if alg, err := plan.Lookup(programs[0].Algorithm); err == nil {
		picture.Subtitle = alg.Source
	}
	for _, o := range []struct {
		name  string
		write func(io.Writer) error
	}{{svg, picture.WriteSVG}, {page, picture.WriteHTML}} {
		if o.name == "" {
			continue
		}
		if err := a.writeFile(o.name, o.write); err != nil {
			return err
		}
	}
	return nil
}

// proofLine is a line of kolo plan verify.
type proofLine struct {
	Algorithm  string `json:"algorithm"`
	Collective string `json:"collective"`
	plan.Report
	Fault string `json:"fault,omitempty"`
}

// planVerify is kolo plan verify.
func (a *app) planVerify() *cobra.Command {
	f := &planFlags{}
	var list string
	cmd := &cobra.Command{
		Use:   "verify [ALGORITHM]",
		Short: "Prove that choreographies are right, or say where they are not",
		Long: `Verify proves, for every count and every timing, that the ranks' programs fit
together, cannot deadlock, have no race, and leave the right value in every block.
Without a name it proves every algorithm that serves the collective.`,
		Example: "  kolo plan verify nhr --ranks 1-33\n  kolo plan verify -c reduce_scatter --servers 4x8",
	}
	cmd.Flags().StringVar(&list, "ranks", "", "`numbers` of ranks instead of one, as 1-33 or 2,7,64")
	return planned(cmd, f, 0, 1, func(args []string) error {
		numbers, err := numberList(list)
		if err != nil {
			return usage(err, "verify")
		}
		var lines []proofLine
		for _, n := range numbers {
			if n > 0 {
				f.ranks = n
			}
			s, err := f.scene()
			if err != nil {
				return usage(err, "verify")
			}
			got, err := prove(s, args)
			if err != nil {
				return err
			}
			lines = append(lines, got...)
		}
		return a.printProofs(lines, f.json)
	})
}

// prove verifies the algorithm of args, or all that serve.
func prove(s *scene, args []string) (lines []proofLine, err error) {
	for _, alg := range plan.Algorithms() {
		if len(args) == 0 && alg.Serves(s.call.Collective, s.topo) == nil || len(args) > 0 && args[0] == alg.Name {
			programs, key, err := s.programs(alg.Name)
			if err != nil {
				return nil, err
			}
			l := proofLine{Algorithm: alg.Name, Collective: operatorName(s.call.Collective)}
			if l.Report, err = plan.Verify(key, programs); err != nil {
				l.Fault = err.Error()
			}
			lines = append(lines, l)
		}
	}
	if len(args) > 0 && len(lines) == 0 {
		_, err = plan.Lookup(args[0])
	}
	return lines, err
}

func (a *app) printProofs(lines []proofLine, asJSON bool) error {
	wrong := 0
	for _, l := range lines {
		if l.Fault != "" {
			wrong++
		}
	}
	var failed error
	if wrong > 0 {
		failed = fmt.Errorf("%d of %d choreographies are wrong", wrong, len(lines))
	}
	if asJSON {
		return errors.Join(writeJSON(a.out, lines), failed)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "algorithm\tcollective\tranks\tsteps\tmessages\tcredits\twasted\tsame bits\tone pass\tproof")
	for _, l := range lines {
		proof := "right"
		if l.Fault != "" {
			proof = l.Fault
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%v\t%v\t%s\n", l.Algorithm, l.Collective, l.Ranks, l.Steps, l.Messages, l.Credits, l.Wasted, yes(l.SameBits), yes(l.OnePass), proof)
	}
	return errors.Join(w.Flush(), failed)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// numberList reads "1-33" or "2,7,64"; "" is one 0.
func numberList(s string) ([]int, error) {
	if s == "" {
		return []int{0}, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 1 || b < a || b > maxPlanRanks || len(out)+b-a > maxPlanRanks {
			return nil, fmt.Errorf("--ranks %q: want as 1-33 or 2,7,64", s)
		}
		for k := a; k <= b; k++ {
			out = append(out, k)
		}
	}
	return out, nil
}

// rowDocument is a row of kolo plan explain.
type rowDocument struct {
	Name    string  `json:"name"`
	Serves  bool    `json:"serves"`
	CostNS  int64   `json:"cost_ns,omitempty"`
	Rounds  float64 `json:"rounds"`
	Bytes   float64 `json:"bytes"`
	Reduced float64 `json:"reduced"`
	Why     string  `json:"why"`
}

// planExplain is kolo plan explain.
func (a *app) planExplain() *cobra.Command {
	f := &planFlags{}
	var algo string
	var static, reproducible, process bool
	cmd := &cobra.Command{Use: "explain", Short: "Print which algorithm is chosen, what each would cost, and why the others lost"}
	cmd.Flags().StringVar(&algo, "algo", "", "`algorithm` to force: a name, or an expression as in HCCL_ALGO")
	cmd.Flags().BoolVar(&static, "static", false, "choose by the number of ranks alone: ring, tree, mesh")
	cmd.Flags().BoolVar(&reproducible, "reproducible", false, "only algorithms whose bits depend on the order of the ranks alone")
	cmd.Flags().BoolVar(&process, "process", false, "the ranks share one process")
	return planned(cmd, f, 0, 0, func([]string) error {
		s, err := f.scene()
		if err != nil {
			return usage(err, "explain")
		}
		if process {
			s.topo = plan.OneProcess(s.topo.Ranks())
		}
		policy := plan.Policy{Reproducible: reproducible}.Force(algo)
		if static {
			policy.Method = plan.Static
		}
		choice, err := plan.Choose(s.call, s.topo, policy)
		if err != nil {
			return err
		}
		if !f.json {
			_, err := io.WriteString(a.out, choice.Explain())
			return err
		}
		doc := struct {
			Algorithm  string        `json:"algorithm"`
			Collective string        `json:"collective"`
			Ranks      int           `json:"ranks"`
			Size       int64         `json:"size"`
			Why        string        `json:"why"`
			Rows       []rowDocument `json:"rows"`
		}{choice.Algorithm, operatorName(choice.Collective), s.topo.Ranks(), choice.Size, choice.Why, nil}
		for _, r := range choice.Rows {
			row := rowDocument{Name: r.Name, Serves: r.Serves, Rounds: r.Rounds, Bytes: r.Bytes, Reduced: r.Reduced, Why: r.Why}
			if r.Cost != plan.NoCost {
				row.CostNS = r.Cost.Nanoseconds()
			}
			doc.Rows = append(doc.Rows, row)
		}
		return writeJSON(a.out, doc)
	})
}
