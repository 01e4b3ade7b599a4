//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/dynlib"

	"github.com/ebitengine/purego"
)

// fn numbers a function of the library.
type fn int

// The functions, in the order of symbols.
const (
	fnGetDeviceList fn = iota
	fnFreeDeviceList
	fnGetDeviceName
	fnOpenDevice
	fnCloseDevice
	fnQueryDevice
	fnQueryPort
	fnQueryGID
	fnAllocPD
	fnDeallocPD
	fnRegMR
	fnDeregMR
	fnCreateChannel
	fnDestroyChannel
	fnCreateCQ
	fnDestroyCQ
	fnGetCQEvent
	fnAckCQEvents
	fnCreateQP
	fnModifyQP
	fnDestroyQP
	fnGetAsyncEvent
	fnAckAsyncEvent
	fnStatusText
	fnEventText
	numFns
)

// symbols are the names of the functions.
var symbols = [numFns]string{
	fnGetDeviceList: "ibv_get_device_list", fnFreeDeviceList: "ibv_free_device_list", fnGetDeviceName: "ibv_get_device_name",
	fnOpenDevice: "ibv_open_device", fnCloseDevice: "ibv_close_device", fnQueryDevice: "ibv_query_device",
	fnQueryPort: "ibv_query_port", fnQueryGID: "ibv_query_gid", fnAllocPD: "ibv_alloc_pd", fnDeallocPD: "ibv_dealloc_pd",
	fnRegMR: "ibv_reg_mr", fnDeregMR: "ibv_dereg_mr", fnCreateChannel: "ibv_create_comp_channel",
	fnDestroyChannel: "ibv_destroy_comp_channel", fnCreateCQ: "ibv_create_cq", fnDestroyCQ: "ibv_destroy_cq",
	fnGetCQEvent: "ibv_get_cq_event", fnAckCQEvents: "ibv_ack_cq_events", fnCreateQP: "ibv_create_qp",
	fnModifyQP: "ibv_modify_qp", fnDestroyQP: "ibv_destroy_qp", fnGetAsyncEvent: "ibv_get_async_event",
	fnAckAsyncEvent: "ibv_ack_async_event", fnStatusText: "ibv_wc_status_str", fnEventText: "ibv_event_type_str",
}

// library is libibverbs, bound. It stays loaded until the process ends.
type library struct {
	name string // what it was loaded by
	file string // and where that was found
	fns  [numFns]uintptr
	at   uintptr // __errno_location
}

var libraries = sync.OnceValue(func() *dynlib.Shelf[library] { return &dynlib.Shelf[library]{} })

// load finds and binds the first library of the list that can be.
func load(places []string) (*library, error) {
	l, tried, err := libraries().Load(places, bind)
	if l == nil && err == nil {
		err = fmt.Errorf("%w: verbs: libibverbs is not here. Install rdma-core (Debian: libibverbs1 ibverbs-providers), or set Config.Library. Looked in this order, the loader's directories and LD_LIBRARY_PATH for names without a directory:\n\t%s",
			kolo.ErrUnsupported, strings.Join(tried, "\n\t"))
	}
	return l, err
}

func bind(place string, handle uintptr) (l *library, err error) {
	l = &library{name: place}
	var missing []string
	for _, i := range dynlib.Bind(handle, symbols[:], l.fns[:]) {
		missing = append(missing, symbols[i])
	}
	if l.at, err = dynlib.LibC("__errno_location"); err != nil {
		return nil, fmt.Errorf("%w: verbs: errno: %w", kolo.ErrUnsupported, err)
	}
	l.file = fileOf(l.fns[fnOpenDevice])
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: verbs: %s (%s) has no %s; it is no libibverbs of rdma-core 17 or later", kolo.ErrUnsupported, l.name, l.file, strings.Join(missing, ", "))
	}
	return l, nil
}

// fileOf is the file that a function was loaded from, "" if it is not known.
func fileOf(fn uintptr) string {
	for m := range mappings() {
		if m.low <= fn && fn < m.high {
			return m.path
		}
	}
	return ""
}

// call calls a function that returns 0 or an error number.
//
//go:uintptrescapes
func (l *library) call(f fn, args ...uintptr) error {
	r, _, _ := purego.SyscallN(l.fns[f], args...)
	if int32(r) == 0 {
		return nil
	}
	return &callError{symbols[f], syscall.Errno(max(int32(r), -int32(r)))}
}

// make calls a function that returns a pointer, which is nil where it fails.
//
//go:uintptrescapes
func (l *library) make(f fn, args ...uintptr) (uintptr, error) {
	runtime.LockOSThread() // which has the error number
	defer runtime.UnlockOSThread()
	at, _, _ := purego.SyscallN(l.at)
	errno := view[int32](at)
	*errno = 0
	r, _, _ := purego.SyscallN(l.fns[f], args...)
	if r == 0 {
		return 0, &callError{symbols[f], syscall.Errno(*errno)}
	}
	return r, nil
}

// callError is what a function has returned.
type callError struct {
	call  string
	errno syscall.Errno
}

// Error says what to do about it where that is known.
func (e *callError) Error() string {
	what := e.errno.Error()
	if e.errno == 0 {
		what = "it failed and does not say why"
	}
	switch {
	case e.call == symbols[fnRegMR] && (e.errno == syscall.ENOMEM || e.errno == syscall.EAGAIN):
		what += ": raise the limit of locked memory (ulimit -l, LimitMEMLOCK), or lower Config.Cache"
	case e.call == symbols[fnRegMR] && e.errno == syscall.EFAULT:
		what += ": the memory is not mapped, or not writable"
	case e.call == symbols[fnOpenDevice] && (e.errno == syscall.EACCES || e.errno == syscall.EPERM):
		what += ": /dev/infiniband/uverbs* may not be opened by this user or container"
	}
	return e.call + ": " + what
}

// Unwrap is the error number.
func (e *callError) Unwrap() error { return e.errno }

// status is the library's text for the end of a request.
func (l *library) status(n uint32) string {
	r, _, _ := purego.SyscallN(l.fns[fnStatusText], uintptr(n))
	return goString(r)
}

// event is the library's text for an event of a device.
func (l *library) event(n uint32) string {
	r, _, _ := purego.SyscallN(l.fns[fnEventText], uintptr(n))
	return goString(r)
}

// devices calls f for each device, by its handle and name, until it returns false. The
// handles are good until devices returns.
func (l *library) devices(f func(device uintptr, name string) bool) error {
	n := new(int32)
	list, err := l.make(fnGetDeviceList, uintptr(unsafe.Pointer(n)))
	if errors.Is(err, syscall.ENOSYS) { // the kernel has no RDMA
		return nil
	} else if err != nil {
		return err
	}
	defer purego.SyscallN(l.fns[fnFreeDeviceList], list)
	for i := range uintptr(max(0, *n)) {
		device := *view[uintptr](list + i*unsafe.Sizeof(list))
		name, _, _ := purego.SyscallN(l.fns[fnGetDeviceName], device)
		if !f(device, goString(name)) {
			break
		}
	}
	return nil
}

// maxText is the longest text that is taken from the library.
const maxText = 4096

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := unsafe.Pointer(view[byte](p))
	n := 0
	for n < maxText && *(*byte)(unsafe.Add(at, n)) != 0 {
		n++
	}
	return strings.TrimSpace(string(unsafe.Slice((*byte)(at), n)))
}
