package npu

import (
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// What callers branch on besides the errors of package kolo, which the ones here
// refine: a test for kolo.ErrArgument finds ErrFreed and ErrForeign.
var (
	ErrBusy    = errors.New("work in flight")                                                      // Sync or Abort first
	ErrFault   = errors.New("device task failed")                                                  // the task's stream is dead until aborted
	ErrFreed   = fmt.Errorf("%w: not allocated", kolo.ErrArgument)                                 // memory that was freed, or never given
	ErrForeign = fmt.Errorf("%w: of another device", kolo.ErrArgument)                             // an event, notify or memory used in the wrong place
	ErrMemory  = fmt.Errorf("%w: out of device memory", kolo.ErrLimit)                             // free something, or ask for less
	ErrLost    = fmt.Errorf("%w: the device is lost; close it and go on without it", kolo.ErrLost) // nothing on it can be relied on
)

// Error says which operation failed, where, and why. It unwraps to its cause, and
// through it to one of the sentinels above or of package kolo.
type Error struct {
	Op     string // "copy", "alloc", or the name of a kernel
	Device int    // index
	Stream string // "" if it concerns none
	Err    error
}

// Error is one line: operation, stream, device, cause.
func (e *Error) Error() string {
	if e.Stream == "" {
		return fmt.Sprintf("npu: %s on device %d: %v", e.Op, e.Device, e.Err)
	}
	return fmt.Sprintf("npu: %s on stream %q of device %d: %v", e.Op, e.Stream, e.Device, e.Err)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }
