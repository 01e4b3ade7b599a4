//go:build unix

package launch

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// keeper is a shell that outlives the launcher, however that ends, and kills what is left
// of its groups of processes then: what ends a process with its parent does not reach what
// that process has started. nil does nothing: there is no shell here.
type keeper struct {
	mu sync.Mutex // one line at a time
	c  *exec.Cmd
	in io.WriteCloser // ends with the launcher
}

// keep is what the shell does: a line says which group has begun, or ended.
const keep = `l=' '
while read -r what group; do
	case $what in
	begun) l="$l$group " ;;
	ended) l="${l%% $group *} ${l#* $group }" ;;
	esac
done
for group in $l; do kill -KILL "-$group"; done 2>/dev/null`

// newKeeper starts one; close ends it.
func newKeeper() *keeper {
	c := exec.Command("sh", "-c", keep)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal to the launcher's group is for it
	in, err := c.StdinPipe()
	if err != nil || c.Start() != nil {
		return nil
	}
	return &keeper{c: c, in: in}
}

// begun tells of the group of a process.
func (k *keeper) begun(pid int) { k.tell("begun", pid) }

// ended tells that nothing of a group is left: its number may soon be another's.
func (k *keeper) ended(pid int) { k.tell("ended", pid) }

func (k *keeper) tell(what string, pid int) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _ = fmt.Fprintf(k.in, "%s %d\n", what, pid) // somebody has killed it: then there is none
}

// close ends it, when all groups have ended.
func (k *keeper) close() {
	if k != nil {
		_ = k.in.Close() // a pipe
		_ = k.c.Wait()   // it has killed nothing
	}
}
