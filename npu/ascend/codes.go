package ascend

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Error is what an AscendCL call returned. It unwraps to the sentinel of its class.
type Error struct {
	Call string // the function
	Code int32
	Text string // what the library said on that thread, "" if nothing
}

// Error is one line: function, number, name, class, and the library's text.
func (e *Error) Error() string {
	name := Name(e.Code)
	if name == "" {
		name = "no number that is known here"
	}
	s := fmt.Sprintf("%s: error %d (%s): %v", e.Call, e.Code, name, ClassOf(e.Code))
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Unwrap is the class's sentinel, npu.ErrMemory for memory that ran out.
func (e *Error) Unwrap() error {
	switch e.Code {
	case codeMemory, codeDeviceMemory, codeBadAlloc:
		return npu.ErrMemory
	case codeUnsupported, codeNotSupported, codeTaskType:
		return kolo.ErrUnsupported
	}
	switch ClassOf(e.Code) {
	case CallerBug:
		return kolo.ErrArgument
	case Resource:
		return kolo.ErrLimit
	case Timeout:
		return kolo.ErrDeadline
	case PeerLost:
		return kolo.ErrLost
	case DeviceLost:
		return npu.ErrLost
	}
	return npu.ErrFault
}

// Class says what an error number means for who made the call.
type Class uint8

// The classes.
const (
	Success    Class = iota
	CallerBug        // the call was wrong: never to be repeated as it was
	Resource         // something ran out, or may not be used: later, or less
	Timeout          // it did not end in time
	Fault            // a task failed: the stream is dead, the device is not
	PeerLost         // a link or the device at its other end: the stream is dead, this device is not
	DeviceLost       // nothing on the device can be relied on
)

// String is the class in words.
func (c Class) String() string {
	switch c {
	case Success:
		return "success"
	case CallerBug:
		return "the call is wrong"
	case Resource:
		return "out of a resource"
	case Timeout:
		return "not in time"
	case Fault:
		return "a task failed"
	case PeerLost:
		return "a link or a peer is lost"
	case DeviceLost:
		return "device lost"
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// numbers that the driver looks for.
const (
	codeUninitialised = 100001
	codeRepeatedInit  = 100002
	codeWaitCallback  = 100036
	codeParameter     = 107000
	codeDeviceID      = 107001
	codeNoContext     = 107002
	codeNotSubscribed = 107012
	codeWaitTimeout   = 107019
	codeBadAlloc      = 200000
	codeNotSupported  = 200001
	codeUnsupported   = 207000
	codeMemory        = 207001
	codeNoDevice      = 207004
	codeDeviceMemory  = 207018
	codeTaskType      = 507009
	codeReportTimeout = 507012
)

// code is a number of AscendCL's documentation.
type code struct {
	number int32
	class  Class
	name   string
}

// codes are the numbers that have a class or a name of their own, ascending. A number
// that is not here has the class of its band: 1xxxxx the caller's, 2xxxxx resources,
// 5xxxxx faults.
var codes = []code{
	{0, Success, "success"},
	{100000, CallerBug, "invalid parameter"},
	{codeUninitialised, CallerBug, "not initialised"},
	{codeRepeatedInit, CallerBug, "initialised again"},
	{codeWaitCallback, Timeout, "no callback in time"},
	{codeParameter, CallerBug, "invalid parameter"},
	{codeDeviceID, CallerBug, "invalid device id"},
	{codeNoContext, CallerBug, "no current context"},
	{107003, CallerBug, "stream not of this context"},
	{107004, CallerBug, "model not of this context"},
	{107005, CallerBug, "stream not of this model"},
	{107006, CallerBug, "event without a time"},
	{107007, CallerBug, "events in reverse"},
	{107008, CallerBug, "unaligned address"},
	{107009, CallerBug, "file not opened"},
	{107010, CallerBug, "file not written"},
	{107011, CallerBug, "stream subscription"},
	{codeNotSubscribed, CallerBug, "thread subscription"},
	{107013, CallerBug, "group not set"},
	{107014, CallerBug, "group not created"},
	{107015, CallerBug, "no callback registered for the stream"},
	{107016, CallerBug, "invalid kind of memory"},
	{107017, CallerBug, "invalid handle"},
	{107018, CallerBug, "invalid kind of allocation"},
	{codeWaitTimeout, Timeout, "wait timed out"},
	{107020, Timeout, "task timed out"},
	{107022, Fault, "tasks of the device were aborted"},
	{codeBadAlloc, Resource, "allocation failed"},
	{codeNotSupported, CallerBug, "interface not supported"},
	{codeUnsupported, CallerBug, "feature not supported"},
	{codeMemory, Resource, "out of memory"},
	{207002, Resource, "memory not freed"},
	{207003, Fault, "overflow in a core"},
	{codeNoDevice, Resource, "no device"},
	{207005, Resource, "out of resources"},
	{207006, Resource, "no permission"},
	{207007, Resource, "out of events"},
	{207008, Resource, "out of streams"},
	{207009, Resource, "out of notifies"},
	{207010, Resource, "out of models"},
	{207011, Resource, "out of queues"},
	{207012, Resource, "over the limit"},
	{207013, Resource, "queue empty"},
	{207014, Resource, "queue full"},
	{207015, CallerBug, "initialised again"},
	{207016, Fault, "overflow in a vector core"},
	{codeDeviceMemory, Resource, "out of device memory"},
	{500000, Fault, "internal error"},
	{507000, Fault, "internal error of the runtime"},
	{507001, Fault, "internal error of the task scheduler"},
	{507002, Resource, "stream full"},
	{507008, CallerBug, "wrong chip version"},
	{codeTaskType, CallerBug, "kind of task not supported"},
	{507010, DeviceLost, "task scheduler's heartbeat lost"},
	{507011, Fault, "model failed"},
	{codeReportTimeout, Timeout, "no report in time"},
	{507013, Fault, "error of the DMA engine"},
	{507014, Timeout, "AI core timed out"},
	{507015, Fault, "exception in an AI core"},
	{507016, Fault, "trap in an AI core"},
	{507017, Timeout, "AI CPU timed out"},
	{507018, Fault, "exception in an AI CPU"},
	{507022, Fault, "error between processes"},
	{507033, DeviceLost, "device not set up"},
	{507034, Timeout, "vector core timed out"},
	{507035, Fault, "exception in a vector core"},
	{507036, Fault, "trap in a vector core"},
	{507046, Timeout, "stream not synchronised in time"},
	{507047, Timeout, "event not synchronised in time"},
	{507048, Timeout, "task group timed out"},
	{507049, Fault, "exception in a task group"},
	{507050, Fault, "trap in a task group"},
	{507051, Fault, "message not sent"},
	{507052, Fault, "data not copied"},
	{507053, DeviceLost, "error of device memory"},
	{507054, DeviceLost, "several bits of memory wrong (ECC)"},
	{507055, DeviceLost, "suspected error of device memory"},
	{507056, PeerLost, "error of a link"},
	{507057, PeerLost, "suspected error of a peer"},
	{507899, Fault, "internal error of the kernel driver"},
	{507900, Fault, "internal error of an AI CPU"},
	{507901, DeviceLost, "connection to the device closed"},
	{507904, Fault, "collective not repeated with success"},
	{507914, PeerLost, "error of a port"},
}

// Codes lists the documented error numbers that are known here, ascending, without 0.
func Codes() []int32 {
	var list []int32
	for _, c := range codes[1:] {
		list = append(list, c.number)
	}
	return list
}

// Name says in a few words what an error number is, "" if that is not known.
func Name(number int32) string {
	c, _ := lookup(number)
	return c.name
}

// ClassOf is the class of an error number.
func ClassOf(number int32) Class {
	c, ok := lookup(number)
	switch {
	case ok:
		return c.class
	case number >= 100000 && number < 200000:
		return CallerBug
	case number >= 200000 && number < 300000:
		return Resource
	}
	return Fault
}

func lookup(number int32) (code, bool) {
	for _, c := range codes {
		if c.number == number {
			return c, true
		}
	}
	return code{}, false
}
