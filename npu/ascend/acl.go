//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/dynlib"

	"github.com/ebitengine/purego"
)

// fn numbers a function of the library.
type fn int

// The functions, in the order of symbols.
const (
	fnInit fn = iota
	fnRecentErrMsg
	fnGetVersion
	fnGetSocName
	fnGetDeviceCount
	fnSetDevice
	fnResetDevice
	fnGetCurrentContext
	fnSetCurrentContext
	fnCreateStream
	fnDestroyStream
	fnStreamQuery
	fnSubscribeReport
	fnUnSubscribeReport
	fnLaunchCallback
	fnProcessReport
	fnCreateEvent
	fnDestroyEvent
	fnRecordEvent
	fnStreamWaitEvent
	fnEventElapsedTime
	fnMalloc
	fnFree
	fnMallocHost
	fnFreeHost
	fnMemcpyAsync
	fnReduceAsync
	fnGetMemInfo
	fnCanAccessPeer
	fnEnablePeerAccess
	numRequired // what comes behind may be missing

	fnResetDeviceForce = iota - 1
	fnQueryDeviceStatus
	fnCreateStreamWithConfig
	fnDestroyStreamForce
	fnStreamAbort
	fnSetStreamFailureMode
	fnCreateEventExWithFlag
	fnGetDevicesTopo
	fnIpcMemGetExportKey
	fnIpcMemImportByKey
	fnIpcMemSetImportPid
	fnIpcMemClose
	numFns
)

// symbols are the names of the functions.
var symbols = [numFns]string{
	fnInit: "aclInit", fnRecentErrMsg: "aclGetRecentErrMsg",
	fnGetVersion: "aclrtGetVersion", fnGetSocName: "aclrtGetSocName", fnGetDeviceCount: "aclrtGetDeviceCount",
	fnSetDevice: "aclrtSetDevice", fnResetDevice: "aclrtResetDevice",
	fnGetCurrentContext: "aclrtGetCurrentContext", fnSetCurrentContext: "aclrtSetCurrentContext",
	fnCreateStream: "aclrtCreateStream", fnDestroyStream: "aclrtDestroyStream", fnStreamQuery: "aclrtStreamQuery",
	fnSubscribeReport: "aclrtSubscribeReport", fnUnSubscribeReport: "aclrtUnSubscribeReport",
	fnLaunchCallback: "aclrtLaunchCallback", fnProcessReport: "aclrtProcessReport",
	fnCreateEvent: "aclrtCreateEvent", fnDestroyEvent: "aclrtDestroyEvent", fnRecordEvent: "aclrtRecordEvent",
	fnStreamWaitEvent: "aclrtStreamWaitEvent", fnEventElapsedTime: "aclrtEventElapsedTime",
	fnMalloc: "aclrtMalloc", fnFree: "aclrtFree", fnMallocHost: "aclrtMallocHost", fnFreeHost: "aclrtFreeHost",
	fnMemcpyAsync: "aclrtMemcpyAsync", fnReduceAsync: "aclrtReduceAsync", fnGetMemInfo: "aclrtGetMemInfo",
	fnCanAccessPeer: "aclrtDeviceCanAccessPeer", fnEnablePeerAccess: "aclrtDeviceEnablePeerAccess",
	fnResetDeviceForce: "aclrtResetDeviceForce", fnQueryDeviceStatus: "aclrtQueryDeviceStatus",
	fnCreateStreamWithConfig: "aclrtCreateStreamWithConfig", fnDestroyStreamForce: "aclrtDestroyStreamForce",
	fnStreamAbort: "aclrtStreamAbort", fnSetStreamFailureMode: "aclrtSetStreamFailureMode",
	fnCreateEventExWithFlag: "aclrtCreateEventExWithFlag", fnGetDevicesTopo: "aclrtGetDevicesTopo",
	fnIpcMemGetExportKey: "aclrtIpcMemGetExportKey", fnIpcMemImportByKey: "aclrtIpcMemImportByKey",
	fnIpcMemSetImportPid: "aclrtIpcMemSetImportPid", fnIpcMemClose: "aclrtIpcMemClose",
}

// Numbers of the ABI (AscendCL's reference, header version 1.17).
const (
	hostToDevice   = 1 // aclrtMemcpyKind
	deviceToHost   = 2
	deviceToDevice = 3

	hugeFirst    = 0 // aclrtMemMallocPolicy
	hugeFirstP2P = 3

	reduceSum = 10 // aclrtReduceKind
	reduceMax = 11
	reduceMin = 12

	attrHBM = 1 // aclrtMemAttr

	eventSync     = 1 // flags of aclrtCreateEventExWithFlag
	eventTimeLine = 8

	stopOnFailure = 1 // aclrtSetStreamFailureMode

	notBlocking = 0 // aclrtCallbackBlockType

	topoHCCS   = 0x01 // aclrtGetDevicesTopo
	topoPIX    = 0x02
	topoPHB    = 0x08
	topoSYS    = 0x10
	topoSIO    = 0x20
	topoSwitch = 0x40
)

// library is AscendCL's, bound. Its functions may be called from any thread, but
// for what AscendCL keeps per thread.
type library struct {
	path    string
	fns     [numFns]uintptr
	missing []string // optional functions that it lacks
	version [3]int32
	handle  uintptr
	pthread uintptr // pthread_self

	initOnce sync.Once
	initErr  error
}

// libraries are those of the process: AscendCL is initialised once in a process and then
// serves every driver, so it is never unloaded and never finalised.
var libraries = sync.OnceValue(func() *dynlib.Shelf[library] { return &dynlib.Shelf[library]{} })

// load finds and binds the first library of the list that can be.
func load(places []string) (*library, error) {
	l, tried, err := libraries().Load(places, bind)
	if l == nil && err == nil {
		err = fmt.Errorf("%w: AscendCL is not here. Install CANN, source its set_env.sh, or say lib=/path/of/%s. Looked in this order:\n\t%s",
			kolo.ErrUnsupported, libraryName, strings.Join(tried, "\n\t"))
	}
	return l, err
}

var errIncomplete = fmt.Errorf("%w: the library lacks functions", kolo.ErrUnsupported)

func bind(path string, handle uintptr) (l *library, err error) {
	l = &library{path: path, handle: handle}
	var required []string
	for _, i := range dynlib.Bind(handle, symbols[:], l.fns[:]) {
		if fn(i) < numRequired {
			required = append(required, symbols[i])
		} else {
			l.missing = append(l.missing, symbols[i])
		}
	}
	if len(required) > 0 {
		return nil, fmt.Errorf("%w: %s has no %s; it is no libascendcl.so, or of a CANN that is too old", errIncomplete, path, strings.Join(required, ", "))
	}
	if l.pthread, err = dynlib.LibC("pthread_self"); err != nil {
		return nil, fmt.Errorf("%w: pthread_self: %w", errIncomplete, err)
	}
	return l, nil
}

// init initialises the library, once, and asks what it is. The calling goroutine is
// locked to its thread.
func (l *library) init() error {
	l.initOnce.Do(func() {
		if err := l.call(fnInit, 0); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != codeRepeatedInit { // somebody else in this process has
				l.initErr = err
				return
			}
		}
		v := &l.version
		if err := l.call(fnGetVersion, uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])), uintptr(unsafe.Pointer(&v[2]))); err != nil {
			l.version = [3]int32{}
		}
	})
	return l.initErr
}

// has says whether the library has a function.
func (l *library) has(f fn) bool { return l.fns[f] != 0 }

// call calls a function and makes an error of what it returns, with the text that
// the library keeps for the calling thread.
//
//go:uintptrescapes
func (l *library) call(f fn, args ...uintptr) error {
	if l.fns[f] == 0 {
		return fmt.Errorf("%w: %s has no %s", kolo.ErrUnsupported, l.path, symbols[f])
	}
	r, _, _ := purego.SyscallN(l.fns[f], args...)
	if int32(r) == 0 {
		return nil
	}
	text, _, _ := purego.SyscallN(l.fns[fnRecentErrMsg])
	return &Error{Call: symbols[f], Code: int32(r), Text: goString(text)}
}

// maxText is the longest text that is taken from the library.
const maxText = 4096

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := pointer(p)
	n := 0
	for n < maxText && *(*byte)(unsafe.Add(at, n)) != 0 {
		n++
	}
	return strings.TrimSpace(string(unsafe.Slice((*byte)(at), n)))
}

// pointer makes a pointer of an address that is none of Go's memory.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// thread is the calling thread's number for aclrtSubscribeReport.
func (l *library) thread() uintptr {
	r, _, _ := purego.SyscallN(l.pthread)
	return r
}

func (l *library) devices() (int, error) {
	var n uint32
	err := l.call(fnGetDeviceCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// socName is the make of the chip, once a device is set.
func (l *library) socName() string {
	r, _, _ := purego.SyscallN(l.fns[fnGetSocName])
	return goString(r)
}

// made calls a function whose first argument is where a handle goes.
func (l *library) made(f fn, a, b uintptr) (h uintptr, err error) {
	err = l.call(f, uintptr(unsafe.Pointer(&h)), a, b) // one that takes fewer does not look
	return h, err
}

func (l *library) newStream(priority int) (uintptr, error) {
	if priority != 0 && l.has(fnCreateStreamWithConfig) {
		return l.made(fnCreateStreamWithConfig, uintptr(level(priority)), 0)
	}
	return l.made(fnCreateStream, 0, 0)
}

// level is AscendCL's priority: 0 is the first of 8.
func level(priority int) int { return min(max(4-priority, 0), 7) }

func (l *library) newEvent() (uintptr, error) {
	if l.has(fnCreateEventExWithFlag) {
		return l.made(fnCreateEventExWithFlag, eventSync|eventTimeLine, 0)
	}
	return l.made(fnCreateEvent, 0, 0)
}

// elapsed is the device's time between two records.
func (l *library) elapsed(from, to uintptr) (time.Duration, error) {
	var ms float32
	err := l.call(fnEventElapsedTime, uintptr(unsafe.Pointer(&ms)), from, to)
	return time.Duration(float64(ms) * 1e6), err
}

// streamIdle asks whether a stream has nothing to do.
func (l *library) streamIdle(stream uintptr) (bool, error) {
	var status int32 // 0 is complete
	err := l.call(fnStreamQuery, stream, uintptr(unsafe.Pointer(&status)))
	return status == 0, err
}

// deviceNormal asks whether a device is well. A library that cannot say says yes.
func (l *library) deviceNormal(device int) (bool, error) {
	if !l.has(fnQueryDeviceStatus) {
		return true, nil
	}
	var status int32 // 0 is normal
	err := l.call(fnQueryDeviceStatus, uintptr(device), uintptr(unsafe.Pointer(&status)))
	return status == 0, err
}

func (l *library) memory() (total int64, err error) {
	var free, all uintptr
	err = l.call(fnGetMemInfo, attrHBM, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&all)))
	return int64(all), err
}

// reaches asks whether a device can access the memory of another.
func (l *library) reaches(device, peer int) (bool, error) {
	var can int32
	err := l.call(fnCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(device), uintptr(peer))
	return can != 0, err
}

// topo is what lies between two devices, as bits; 0 if the library cannot say.
func (l *library) topo(a, b int) uint64 {
	var bits uint64
	if !l.has(fnGetDevicesTopo) || l.call(fnGetDevicesTopo, uintptr(a), uintptr(b), uintptr(unsafe.Pointer(&bits))) != nil {
		return 0
	}
	return bits
}
