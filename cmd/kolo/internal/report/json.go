package report

import (
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
)

// Document is what nccl-tests writes under -J, version 2 of it, so that what reads
// those reads these. Names and forms are theirs: truth values and roots are strings,
// times are microseconds, bandwidths 1e9 bytes per second, element types have NCCL's
// names. Ours are kolo_version (in place of nccl_version), config.reproducible, and
// algorithm and check in a result. env has only the variables that the run looks at.
// A placement that was not measured is null, and so is nwrong without a check.
//
//	{"version": 2, "start_time": "2026-01-31 12:00:00", "args": [...], "env": [...], "kolo_version": "...",
//	 "config": {"nthreads": 8, "ngpus": 1, "minimum_bytes": 8, "maximum_bytes": 64, "step_factor": 2,
//	            "warmup_iters": 10, "iterations": 20, ..., "devices": [{"rank": 0, ...}, ...]},
//	 "results": [{"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "-1",
//	              "out_of_place": {"time": 1.5, "alg_bw": 0.005, "bus_bw": 0.009, "nwrong": 0},
//	              "in_place": null, "actual_iterations": 20, "experiment_name": "all_reduce", ...}, ...],
//	 "out_of_bounds": {"count": 0, "okay": "true"},
//	 "average_bus_bandwidth": {"bandwidth": 0.009, "okay": "unchecked"}, "errors": [], "end_time": "..."}
type Document struct {
	Version   int          `json:"version"`
	StartTime string       `json:"start_time"`
	Args      []string     `json:"args"`
	Env       []string     `json:"env"`
	Kolo      string       `json:"kolo_version"`
	Config    Settings     `json:"config"`
	Results   []*Result    `json:"results"`
	Bounds    OutOfBounds  `json:"out_of_bounds"`
	Average   BusBandwidth `json:"average_bus_bandwidth"`
	Errors    []string     `json:"errors"`
	EndTime   string       `json:"end_time"`

	experiment string
	dtype      kolo.DType
	redop      string
	root       string
	sum        float64
	rows       int
}

// Settings are the config of a Document.
type Settings struct {
	Threads      int      `json:"nthreads"`
	GPUs         int      `json:"ngpus"`
	MinimumBytes int64    `json:"minimum_bytes"`
	MaximumBytes int64    `json:"maximum_bytes"`
	StepFactor   float64  `json:"step_factor,omitempty"`
	StepBytes    *int64   `json:"step_bytes,omitempty"`
	Warmup       int      `json:"warmup_iters"`
	Iterations   int      `json:"iterations"`
	Aggregated   int      `json:"aggregated_iterations"`
	Validation   int      `json:"validation"`
	Graph        int      `json:"graph"`
	Blocking     string   `json:"blocking_collectives"`
	PerIteration string   `json:"per_iter_timing"`
	ParallelInit string   `json:"parallel_init"`
	Reproducible string   `json:"reproducible"`
	Devices      []Device `json:"devices"`
}

// Device is where a rank runs.
type Device struct {
	Rank      int    `json:"rank"`
	Group     int    `json:"group"`
	PID       int    `json:"pid"`
	Host      string `json:"hostname"`
	Device    int    `json:"device"`
	DeviceHex string `json:"device_hex"`
	Info      string `json:"device_info"`
}

// Result is one size.
type Result struct {
	Size       int64    `json:"size"`
	Count      int64    `json:"count"`
	Type       string   `json:"type"`
	RedOp      string   `json:"redop"`
	Root       string   `json:"root"`
	OutOfPlace *Figures `json:"out_of_place"`
	InPlace    *Figures `json:"in_place"`
	Iterations int      `json:"actual_iterations"`
	Experiment string   `json:"experiment_name"`
	Algorithm  string   `json:"algorithm"`
	Check      string   `json:"check"`
}

// Figures are those of a size and a placement.
type Figures struct {
	Time  float64 `json:"time"`
	AlgBW float64 `json:"alg_bw"`
	BusBW float64 `json:"bus_bw"`
	Wrong *int64  `json:"nwrong"`
}

// OutOfBounds counts wrong elements.
type OutOfBounds struct {
	Count int64  `json:"count"`
	Okay  string `json:"okay"`
}

// BusBandwidth is the mean over all results.
type BusBandwidth struct {
	Bandwidth float64 `json:"bandwidth"`
	Okay      string  `json:"okay"`
}

// timeForm is how nccl-tests writes a time.
const timeForm = "2006-01-02 15:04:05"

// maxResults is how many results a Document keeps, the latest.
const maxResults = 1 << 16

// NewDocument begins the document of a run. args are the words of the command and
// env lines like NAME=value; devices has one entry per rank.
func NewDocument(c *perf.Config, start time.Time, version string, args, env []string, devices []Device) *Document {
	d := &Document{
		Version: 2, StartTime: start.Format(timeForm), Args: args, Env: env, Kolo: version,
		Results: []*Result{}, Errors: []string{},
		Average:    BusBandwidth{Okay: "unchecked"},
		Bounds:     OutOfBounds{Okay: "true"},
		experiment: c.Operator.Name, dtype: c.DType, redop: "none", root: "-1",
	}
	r := c.Range.Aligned(c.Operator, c.Ranks)
	d.Config = Settings{
		Threads: c.Ranks, GPUs: 1, MinimumBytes: r.Min, MaximumBytes: r.Max, StepFactor: r.Factor,
		Warmup: c.Warmup, Iterations: c.Iterations, Aggregated: 1,
		Blocking: "true", PerIteration: "false", ParallelInit: "false",
		Reproducible: strconv.FormatBool(c.Rank.Reproducible), Devices: devices,
	}
	if r.Factor == 0 {
		d.Config.StepBytes = &r.Step
	}
	if c.Check {
		d.Config.Validation = 1
	}
	if c.Operator.Collective.Reduces() {
		d.redop = c.Op.String()
	}
	if c.Operator.Collective.Rooted() {
		d.root = strconv.Itoa(int(c.Root))
	}
	return d
}

// Add adds a row: to the result before it, if that is of the same size and lacks
// the placement.
func (d *Document) Add(r perf.Row) {
	f := &Figures{Time: r.Time, AlgBW: r.AlgBW, BusBW: r.BusBW}
	if r.Checked {
		wrong := r.Wrong()
		f.Wrong = &wrong
		d.Bounds.Count += wrong
		d.Bounds.Okay = strconv.FormatBool(d.Bounds.Count == 0)
	}
	d.rows++
	d.sum += r.BusBW
	d.Average.Bandwidth = d.sum / float64(d.rows)
	to := d.resultOf(r)
	if r.Placement == perf.InPlace {
		to.InPlace = f
	} else {
		to.OutOfPlace = f
	}
	to.Check = worse(to.Check, r.Verdict())
}

// resultOf is the result that the row belongs to.
func (d *Document) resultOf(r perf.Row) *Result {
	if k := len(d.Results); k > 0 {
		last := d.Results[k-1]
		if last.Size == r.Size && r.Placement == perf.InPlace && last.InPlace == nil {
			return last
		}
	}
	if len(d.Results) == maxResults {
		d.Results = append(d.Results[:0], d.Results[1:]...)
	}
	d.Results = append(d.Results, &Result{
		Size: r.Size, Count: r.Count, Type: typeName(d.dtype), RedOp: d.redop, Root: d.root,
		Iterations: d.Config.Iterations, Experiment: d.experiment, Algorithm: r.Choice.Algorithm, Check: r.Verdict(),
	})
	return d.Results[len(d.Results)-1]
}

// worse is the verdict of two.
func worse(a, b string) string {
	if a == "failed" {
		return a
	}
	return b
}

// typeName is NCCL's name of the element type, ours where NCCL has none.
func typeName(d kolo.DType) string {
	switch d {
	case kolo.Float16:
		return "half"
	case kolo.Float32:
		return "float"
	case kolo.Float64:
		return "double"
	case kolo.BFloat16:
		return "bfloat16"
	}
	return d.String()
}

// Write ends the document and writes it. err is what ended the run early, if
// something did.
func (d *Document) Write(w io.Writer, end time.Time, err error) error {
	d.EndTime = end.Format(timeForm)
	if err != nil {
		d.Errors = append(d.Errors, err.Error())
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}
