package npu

import (
	"context"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Device is an accelerator that is open. All its methods may be called by any
// goroutine.
type Device interface {
	// Info says what the device is. It never changes.
	Info() Info
	// Alloc gives size bytes of device memory, at an address that is a multiple of
	// Alignment. The bytes are of no stated value.
	Alloc(size int64) (kolo.Memory, error)
	// Free gives back memory, the whole of what an Alloc gave. It is refused with
	// ErrBusy while a task that was accepted and has not ended uses any part.
	Free(m kolo.Memory) error
	// NewStream makes a stream.
	NewStream(c StreamConfig) (Stream, error)
	// NewEvent makes an event that has not been recorded.
	NewEvent(name string) (Event, error)
	// NewNotify makes a notify that is not set.
	NewNotify(name string) (Notify, error)
	// Edge says how this device reaches the memory of a space, in either direction, and
	// whether it does: its own memory, the host's, that of its peers. The figures are
	// declared by the driver, not measured; zeros are unknown.
	Edge(s kolo.Space) (kolo.Edge, bool)
	// Health says how the device is.
	Health() Health
	// Abort aborts every stream of the device with one cause, as Stream.Abort does.
	Abort(cause error)
	// Close aborts what is in flight with kolo.ErrClosed, waits until it has ended, and
	// gives back everything: streams, events, notifies, memory. Their methods return
	// errors from then on. It may be called again, and with another context if the first
	// has ended before.
	Close(ctx context.Context) error
}

// Watched is a Device that tells when it is lost, for who has nothing in flight on it
// that would fail.
type Watched interface {
	// OnLost has f called once when the device is lost, at once if it is already, and never
	// if it is closed before. It is called with Health's Err, by a goroutine of the driver or
	// from OnLost, and must not block. forget takes f back; a call that is on its way comes.
	OnLost(f func(cause error)) (forget func())
}

// Alignment is what addresses of device memory are multiples of, in bytes.
const Alignment = 512

// Info says what a device is.
type Info struct {
	Driver    string     // the driver's name
	Index     int        // the device's number in its driver
	Server    int        // devices of one number share a server
	Space     kolo.Space // where its memory is
	Name      string     // the make
	Memory    int64      // bytes
	Simulated bool       // the driver keeps a clock of its own: what Edge declares holds to the nanosecond
}

// Health is the state of a device.
type Health struct {
	Err     error // nil while it works; ErrLost once it does not
	Used    int64 // bytes of memory that are allocated
	Buffers int   // how many allocations that are
	Streams int   // streams that are open
	Tasks   int   // tasks that were accepted and have not ended
}

// StreamConfig is how a stream is made. The zero value works.
type StreamConfig struct {
	Name     string // for errors and pictures; "" means a name made of its number
	Priority int    // larger first, where streams compete for an engine
}

// Stream is a list of tasks that run one after the other. Its methods may be called
// by any goroutine, also by callbacks; calls made at the same time are accepted in
// some order. All but Sync return at once.
//
// From the call on until the task has ended, the memory and the handles that it names
// belong to the stream: they are not freed, closed, read or written. Memory of the
// host is kept alive by the caller.
type Stream interface {
	// Name is the name from StreamConfig.
	Name() string
	// Device is where the stream runs.
	Device() Device
	// Copy moves src to dst, which are of one length and do not overlap. At least one
	// of them is memory of the stream's device, the other may be the host's or a peer's.
	// An overlap in memory of a device is refused with kolo.ErrOverlap.
	Copy(dst, src kolo.Memory) error
	// Reduce sets dst to dst op src, element by element. dst is memory of the stream's
	// device, src of it or of a peer: dst itself, or memory that does not overlap it. Sum,
	// product, maximum and minimum are for every driver to have or to refuse with
	// kolo.ErrUnsupported.
	Reduce(dst, src kolo.Memory, d kolo.DType, op kolo.ReduceOp) error
	// Launch runs a kernel.
	Launch(k Kernel) error
	// Record makes the event mean this point of the stream: it is done when all before
	// it has ended.
	Record(e Event) error
	// Wait holds the stream until the event is done, as it was last recorded when Wait
	// was called. The event must be of the stream's device.
	Wait(e Event) error
	// Signal sets the notify, which may be of a peer.
	Signal(n Notify) error
	// Await holds the stream until the notify is set, and clears it. The notify must be
	// of the stream's device. Of several streams that await one notify, the first to
	// come to it takes it.
	Await(n Notify) error
	// Callback has f called once, by a goroutine of the driver, when all before it has
	// ended; what comes later begins when f has returned. Its argument is nil, or why the
	// stream failed or was aborted. f must not block, and not close a device or a driver.
	Callback(f func(error)) error
	// Query says whether everything has ended, and the error of the stream.
	Query() (idle bool, err error)
	// Sync waits until everything that was accepted has ended, or for the context, and
	// returns the error of the stream.
	Sync(ctx context.Context) error
	// Abort drops what has not begun. A task that runs goes on to its end, then
	// everything behind it is resolved with cause: callbacks, events, notifies, Sync. The
	// stream is then as good as new, also if it had failed. It does not wait. A nil cause
	// is kolo.ErrAborted.
	Abort(cause error)
	// Close ends the stream. It is refused with ErrBusy while there is something in
	// flight. Closed once, it may be called again; that holds for events and notifies too.
	Close() error
}

// Event is a point of a stream, to be waited for by other streams and by the host.
type Event interface {
	// Name is the name that the event was made with.
	Name() string
	// Device is where the event belongs.
	Device() Device
	// Query says whether the latest Record is done, and the error that kept it from
	// being reached. An event that was never recorded is done.
	Query() (done bool, err error)
	// Sync waits for the latest Record, or for the context.
	Sync(ctx context.Context) error
	// Since is the device's time between the latest Records of two events, which both
	// must be done.
	Since(earlier Event) (time.Duration, error)
	// Close gives the event back. It is refused with ErrBusy while a stream has it.
	Close() error
}

// Notify is one bit that holds streams.
type Notify interface {
	// Name is the name that the notify was made with.
	Name() string
	// Device is where the notify belongs.
	Device() Device
	// Set sets the bit from the host. A bit that is set stays set.
	Set() error
	// Fail makes every stream that awaits the notify, or will, fail with cause. It stays
	// so until Reset.
	Fail(cause error) error
	// Reset clears the bit and the failure.
	Reset() error
	// Close gives the notify back. It is refused with ErrBusy while a stream has it.
	Close() error
}

// Kernel is a computation for Launch.
type Kernel struct {
	Name string
	// Args is the memory that the kernel reads and writes, of the stream's device.
	Args []kolo.Memory
	// Host is what a simulated device computes: it is called when the kernel ends, with
	// the bytes of Args, on a goroutine of the driver. An error of it is the kernel's.
	// A nil Host computes nothing.
	Host func(args [][]byte) error
	// FLOPs and Bytes are what it costs on a simulated device: operations, and bytes of
	// device memory read and written; the slower of the two counts. Time, if not zero,
	// counts instead.
	FLOPs float64
	Bytes int64
	Time  time.Duration
	// Code is what a real device runs, in the form that its driver states.
	Code any
}
