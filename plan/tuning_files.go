package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Tuner files of others. Both are read as far as they make sense here; what does not is
// listed, so that a user sees it. What is written is read by their programs as far as
// they know the algorithms.

// hcclTuning is the file of HCCL's example of a tuner plug-in
// (examples/06_tuner_plugin of the hccl repository).
type hcclTuning struct {
	Version int                    `json:"version"`
	OpTypes map[string]hcclTunerOp `json:"op_types"`
}

type hcclTunerOp struct {
	Rules []hcclTunerRule `json:"rules"`
}

type hcclTunerRule struct {
	Match    map[string]any `json:"match"`
	Engine   string         `json:"engine"`
	Executor string         `json:"executor"`
	Template string         `json:"template"`
	Cost     float64        `json:"cost"`
	Measured int64          `json:"measured_ns,omitempty"` // ours
}

// hcclTemplates are HCCL's names of templates where they are not ours.
var hcclTemplates = [][2]string{{"meshtwoshot", "mesh"}, {"meshoneshot", "mesh-oneshot"}, {"mesh1d", "mesh"}}

// tunerOps are the names of collectives in tuner files.
var tunerOps = []struct {
	name string
	c    kolo.Collective
}{
	{"allreduce", kolo.AllReduce}, {"allgather", kolo.AllGather}, {"reducescatter", kolo.ReduceScatter},
	{"broadcast", kolo.Broadcast}, {"reduce", kolo.Reduce}, {"alltoall", kolo.AllToAll},
	{"gather", kolo.Gather}, {"scatter", kolo.Scatter}, {"barrier", kolo.Barrier},
}

func tunerOp(name string) (kolo.Collective, bool) {
	plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	for _, o := range tunerOps {
		if o.name == plain {
			return o.c, true
		}
	}
	return kolo.NoCollective, false
}

func tunerOpName(c kolo.Collective) string {
	for _, o := range tunerOps {
		if o.c == c {
			return o.name
		}
	}
	return strings.ToLower(c.String())
}

// matchFields are the limits that a rule of HCCL's file may have, and where they go.
func matchFields(r *Rule) map[string]func(int64) {
	set := func(to *int) func(int64) { return func(v int64) { *to = int(v) } }
	return map[string]func(int64){
		"min_bytes": func(v int64) { r.MinBytes = v }, "max_bytes": func(v int64) { r.MaxBytes = v },
		"min_ranks": set(&r.MinRanks), "max_ranks": set(&r.MaxRanks),
		"min_servers": set(&r.MinServers), "max_servers": set(&r.MaxServers),
		"min_npus_per_server": set(&r.MinEach), "max_npus_per_server": set(&r.MaxEach),
	}
}

// maxTunerFile is the largest tuner file, in bytes.
const maxTunerFile = 16 << 20

// ParseHCCLTuning reads a JSON file in the form of HCCL's tuner plug-in:
//
//	{"version":1, "op_types":{"allreduce":{"rules":[
//	  {"match":{"min_ranks":8, "max_ranks":8, "max_bytes":65536},
//	   "engine":"aicpu", "executor":"sole", "template":"nhr", "cost":0}]}}}
//
// The first rule that matches wins; a cost below 0 disables the algorithm. A template
// is one of HCCL's or of this package's names; with the executor sequence it may be two,
// as mesh+nhr, in servers and between them. The engine does not matter here. Bytes are
// those of the whole vector. skipped are rules that were left out, and why: templates
// that do not exist here, and matches on element types, names of communicators, pods
// and buffers.
func ParseHCCLTuning(data []byte) (t *Tuning, skipped []string, err error) {
	var file hcclTuning
	if len(data) > maxTunerFile {
		return nil, nil, fmt.Errorf("%w: a tuner file of %d bytes; the most is %d", kolo.ErrLimit, len(data), maxTunerFile)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&file); err != nil {
		return nil, nil, fmt.Errorf("%w: HCCL tuner file: %v", kolo.ErrArgument, err)
	}
	if file.Version != 1 {
		return nil, nil, fmt.Errorf("%w: HCCL tuner file of version %d; known is 1", kolo.ErrArgument, file.Version)
	}
	t = &Tuning{}
	var names []string
	for name := range file.OpTypes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c, ok := tunerOp(name)
		if !ok {
			skipped = append(skipped, fmt.Sprintf("%.40q: no such collective", name))
			continue
		}
		for i, x := range file.OpTypes[name].Rules {
			r, why := x.rule(c)
			if why != "" {
				skipped = append(skipped, fmt.Sprintf("%s rule %d: %s", name, i, why))
				continue
			}
			t.Rules = append(t.Rules, r)
		}
	}
	return t, skipped, t.Validate()
}

// rule is the rule in this package's form, or why there is none.
func (x *hcclTunerRule) rule(c kolo.Collective) (Rule, string) {
	r := Rule{Collective: c, Disabled: x.Cost < 0, Measured: time.Duration(x.Measured)}
	fields := matchFields(&r)
	var keys []string
	for key := range x.Match {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		set := fields[key]
		if set == nil {
			return r, fmt.Sprintf("a match on %.40q", key)
		}
		number, _ := x.Match[key].(json.Number) // "" if it is none, which is no integer
		v, err := number.Int64()
		if err != nil || v < 0 {
			return r, fmt.Sprintf("%s is %.40q", key, fmt.Sprint(x.Match[key]))
		}
		set(v)
	}
	name := x.Template
	for _, k := range hcclTemplates {
		if strings.EqualFold(k[0], name) {
			name = k[1]
		}
	}
	if strings.EqualFold(x.Executor, "sequence") && !strings.HasPrefix(name, hierPrefix) {
		name = hierPrefix + name
	}
	if _, err := Lookup(name); err != nil {
		return r, fmt.Sprintf("executor %.40q with template %.40q is no algorithm here", x.Executor, x.Template)
	}
	r.Algorithm = name
	return r, ""
}

// HCCL is the table as a file that ParseHCCLTuning reads back.
func (t *Tuning) HCCL() []byte {
	file := hcclTuning{Version: 1, OpTypes: map[string]hcclTunerOp{}}
	for _, r := range t.Rules {
		x := hcclTunerRule{Match: map[string]any{}, Engine: "host", Executor: "sole", Template: r.Algorithm, Measured: int64(r.Measured)}
		for _, k := range []struct {
			name string
			v    int64
		}{{"min_bytes", r.MinBytes}, {"max_bytes", r.MaxBytes}, {"min_ranks", int64(r.MinRanks)}, {"max_ranks", int64(r.MaxRanks)},
			{"min_servers", int64(r.MinServers)}, {"max_servers", int64(r.MaxServers)},
			{"min_npus_per_server", int64(r.MinEach)}, {"max_npus_per_server", int64(r.MaxEach)}} {
			if k.v != 0 {
				x.Match[k.name] = k.v
			}
		}
		for _, k := range hcclTemplates[:2] {
			if k[1] == r.Algorithm {
				x.Template = k[0]
			}
		}
		if two, ok := strings.CutPrefix(r.Algorithm, hierPrefix); ok {
			x.Executor, x.Template = "sequence", two
		}
		if r.Disabled {
			x.Cost = -1
		}
		name := tunerOpName(r.Collective)
		op := file.OpTypes[name]
		op.Rules = append(op.Rules, x)
		file.OpTypes[name] = op
	}
	out, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic("plan: a tuning cannot be written: " + err.Error()) // it is numbers and words
	}
	return append(out, '\n')
}

// ncclNames are NCCL's names of algorithms where they are not ours. Its tree is the
// double binary one.
var ncclNames = [][2]string{{"tree", "double-tree"}}

const ncclHeader = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

// ParseNCCLTuning reads a CSV file in the form of NCCL's example of a tuner plug-in, 8
// to 10 fields a line:
//
//	collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
//	allreduce,0,65536,tree,ll,2,1,8,-1,-1
//
// -1 is anything; # begins a comment; the first line that matches wins. Protocol,
// channels, pipelined operations and buffers do not matter here. skipped are lines that
// were left out, and why: algorithms that are NCCL's own, such as nvls.
func ParseNCCLTuning(data []byte) (t *Tuning, skipped []string, err error) {
	if len(data) > maxTunerFile {
		return nil, nil, fmt.Errorf("%w: a tuner file of %d bytes; the most is %d", kolo.ErrLimit, len(data), maxTunerFile)
	}
	t = &Tuning{}
	number := 0
	measured := time.Duration(0)
	for line := range strings.Lines(string(data)) {
		number++
		line, comment, _ := strings.Cut(strings.TrimSpace(line), "#")
		if words := strings.Fields(comment); len(words) == 2 && words[0] == "measured" {
			measured, _ = time.ParseDuration(words[1]) // a comment that is none of ours says nothing
			measured = max(measured, 0)
		}
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "collective_type,") {
			continue
		}
		r, skip, why := ncclRule(line)
		r.Measured, measured = measured, 0
		switch {
		case why != "":
			return nil, nil, fmt.Errorf("%w: NCCL tuner file, line %d: %s", kolo.ErrArgument, number, why)
		case skip != "":
			skipped = append(skipped, fmt.Sprintf("line %d: %s", number, skip))
		default:
			t.Rules = append(t.Rules, r)
		}
	}
	return t, skipped, t.Validate()
}

// ncclRule reads a line; skip says that it makes no sense here, why that it makes none
// at all.
func ncclRule(line string) (r Rule, skip, why string) {
	fields := strings.Split(line, ",")
	if len(fields) < 8 || len(fields) > 10 {
		return r, "", fmt.Sprintf("%d fields; want 8 to 10: %s", len(fields), ncclHeader)
	}
	numbers := make([]int64, len(fields))
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
		if i == 0 || i == 3 || i == 4 {
			continue
		}
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || v < -1 {
			return r, "", fmt.Sprintf("field %d is %.40q; want a number, -1 for any", i+1, fields[i])
		}
		numbers[i] = v
	}
	r.MinBytes, r.MaxBytes = max(numbers[1], 0), max(numbers[2], 0)
	if numbers[2] == 0 {
		r.MaxBytes = 1 // only calls of nothing; 0 would be no limit
	}
	if v := numbers[6]; v > 0 {
		r.MinServers, r.MaxServers = int(v), int(v)
	}
	if v := numbers[7]; v > 0 {
		r.MinRanks, r.MaxRanks = int(v), int(v)
	}
	c, ok := tunerOp(fields[0])
	if !ok {
		return r, fmt.Sprintf("no collective %.40q", fields[0]), ""
	}
	r.Collective, r.Algorithm = c, strings.ToLower(fields[3])
	for _, k := range ncclNames {
		if k[0] == r.Algorithm {
			r.Algorithm = k[1]
		}
	}
	if r.Algorithm == "binary-tree" { // what ours of the name tree is called in such a file
		r.Algorithm = tree.Name
	}
	if _, err := Lookup(r.Algorithm); err != nil {
		return r, fmt.Sprintf("no algorithm %.40q here", fields[3]), ""
	}
	return r, "", ""
}

// NCCL is the table as a file that ParseNCCLTuning reads back, with what was measured as
// comments. It has no room for some rules: for a range of ranks or servers, for ranks
// per server, and for disabled algorithms. skipped are those.
func (t *Tuning) NCCL() (data []byte, skipped []string) {
	var b strings.Builder
	b.WriteString("# " + ncclHeader + "\n")
	for i, r := range t.Rules {
		if r.Disabled || r.MinRanks != r.MaxRanks || r.MinServers != r.MaxServers || r.MinEach+r.MaxEach > 0 {
			skipped = append(skipped, fmt.Sprintf("rule %d, %v", i, r))
			continue
		}
		any := func(v int64) int64 {
			if v == 0 {
				return -1
			}
			return v
		}
		name := r.Algorithm
		switch name {
		case doubleTree.Name:
			name = "tree"
		case tree.Name:
			name = "binary-tree"
		}
		if r.Measured > 0 {
			fmt.Fprintf(&b, "# measured %v\n", r.Measured)
		}
		fmt.Fprintf(&b, "%s,%d,%d,%s,simple,-1,%d,%d,-1,-1\n", tunerOpName(r.Collective), r.MinBytes, any(r.MaxBytes), name, any(int64(r.MinServers)), any(int64(r.MinRanks)))
	}
	return []byte(b.String()), skipped
}

// ParseTuning reads a tuner file of either form: JSON begins with a brace.
func ParseTuning(data []byte) (*Tuning, []string, error) {
	text := bytes.TrimSpace(data)
	if len(text) == 0 {
		return nil, nil, fmt.Errorf("%w: the tuner file is empty", kolo.ErrArgument)
	}
	if text[0] == '{' {
		return ParseHCCLTuning(data)
	}
	return ParseNCCLTuning(data)
}
