package rank

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/msccl"
)

// ReadPlans reads a directory of plans of MSCCL and MSCCL++, for Config.Plans: every file
// whose name ends in .xml or .json, in the order of their names. Each plan is proven; it is
// named like its file, without the ending. The error names each file that is none.
func ReadPlans(dir fs.FS) (*plan.Library, error) {
	files, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fmt.Errorf("plans: %w", err)
	}
	lib := &plan.Library{}
	var errs []error
	for _, f := range files {
		if ext := path.Ext(f.Name()); f.IsDir() || ext != ".xml" && ext != ".json" {
			continue
		}
		if err := readPlan(lib, dir, f.Name()); err != nil {
			errs = append(errs, fmt.Errorf("plans: %s: %w", f.Name(), err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return lib, nil
}

// maxPlanFile is the largest file of a plan that is read, in bytes.
const maxPlanFile = 256 << 20

func readPlan(lib *plan.Library, dir fs.FS, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPlanFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if len(data) > maxPlanFile {
		return fmt.Errorf("%w: it has more than %d MiB", kolo.ErrLimit, maxPlanFile>>20)
	}
	p, err := msccl.Import(data)
	if err != nil {
		return err
	}
	e, err := p.Entry()
	if err != nil {
		return err
	}
	e.Name = strings.TrimSuffix(name, path.Ext(name))
	return lib.Add(e)
}

// imported is the plan from outside for calls that are made together, nil where none
// serves; why says what is wrong where one was asked for by name.
func (p *plans) imported(calls func(yield func(*kolo.Call) bool)) (e *plan.Entry, why error) {
	serves := func(e *plan.Entry) error {
		if p.blind { // all must choose alike; a rank that is in the other place copies
			e = e.Anywhere()
		}
		for c := range calls {
			if err := e.Serves(c, p.topo.Ranks()); err != nil {
				return err
			}
		}
		if p.policy.Reproducible && !e.Report.OnePass {
			return fmt.Errorf("%w: plan %s does not fold all contributions in one pass, as reproducible bits ask for", kolo.ErrUnsupported, e.Name)
		}
		return nil
	}
	if p.forced != nil {
		return p.forced, serves(p.forced)
	}
	if p.policy.Algorithm != "" || p.policy.HCCLAlgo != "" {
		return nil, nil
	}
	for _, e := range p.library.Entries() {
		if serves(e) == nil {
			return e, nil
		}
	}
	return nil, nil
}

// explain is the choice of an entry.
func (p *plans) explain(e *plan.Entry, c *kolo.Call) plan.Choice {
	size, err := plan.VectorSize(c, p.topo.Ranks())
	if err != nil {
		size = 0 // an entry serves no such call
	}
	why := "the first of the registered plans that is for such calls"
	if p.forced != nil {
		why = "set by name"
	}
	return plan.Choice{Algorithm: e.Name, Why: why, Collective: c.Collective, Size: size, Policy: p.policy}
}
