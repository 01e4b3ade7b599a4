package launch

import (
	"fmt"
	"io"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Bind says which processors of this machine a process may use.
type Bind string

// What a process is bound to. Processors are those that the launcher itself may use.
const (
	BindNone  Bind = "none"  // nothing: those of the launcher
	BindCore  Bind = "core"  // one core, with all its hardware threads; no two processes the same
	BindShare Bind = "share" // an equal part of the cores, neighbours
)

// core is the hardware threads of a core, by number, of those that may be used.
type core []int

// bindings are the processors of each process, or nil where none is bound, and what there is
// to say about that. There have to be as many cores as processes.
func (b Bind) bindings(processes int, cores []core) (list []core, remark string) {
	if b == BindNone || b == "" || processes == 0 {
		return nil, ""
	}
	if processes > len(cores) {
		return nil, fmt.Sprintf("--bind %s: not bound: %d processes, %d cores that may be used", b, processes, len(cores))
	}
	each := 1
	if b == BindShare {
		each = len(cores) / processes
	}
	for i := range processes {
		list = append(list, slices.Concat(cores[i*each:(i+1)*each]...))
	}
	return list, ""
}

// bind prepares the binding of the processes, by place.
func (j *Job) bind(log io.Writer) ([]core, error) {
	if j.Bind == BindNone || j.Bind == "" {
		return nil, nil
	}
	n := 0
	for _, h := range j.Hosts {
		n += h.Slots
	}
	cores, err := usable()
	if err != nil {
		return nil, fmt.Errorf("--bind %s: %w", j.Bind, err)
	}
	list, remark := j.Bind.bindings(n, cores)
	if remark != "" {
		say(log, "%s", remark)
	}
	return list, nil
}

// checkBind says what is wrong with the binding.
func (j *Job) checkBind() error {
	switch j.Bind {
	case "", BindNone:
		return nil
	case BindCore, BindShare:
	default:
		return fmt.Errorf("%w: --bind %q; want none, core or share", kolo.ErrArgument, j.Bind)
	}
	for _, h := range j.Hosts {
		if h.Name != "" {
			return fmt.Errorf("%w: --bind %s is for processes of this machine, and %s is another: bind there by the program's own means, as taskset", kolo.ErrUnsupported, j.Bind, h.Name)
		}
	}
	return nil
}
