//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"fmt"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// Launch is what a Kernel's Code is for this driver: it is called once, by the
// device's thread, and launches what it wants on the aclrtStream. It must not block
// nor call this driver.
type Launch func(stream uintptr) error

// Launch notes a kernel.
func (s *stream) Launch(t *driver.Task, k npu.Kernel, _ []driver.Place) error {
	launch, ok := k.Code.(Launch)
	if !ok || launch == nil {
		return fmt.Errorf("%w: the kernel's Code is a %T; an NPU launches an ascend.Launch", kolo.ErrUnsupported, k.Code)
	}
	taskOf(t).issue = func(int) error { return driver.Protect(func() error { return launch(s.handle) }) }
	return nil
}

// Copy notes a copy.
func (s *stream) Copy(t *driver.Task, dst, src driver.Place) error {
	k, n, to, from := taskOf(t), dst.Len(), own(dst.Device), own(src.Device)
	for _, p := range []*device{to, from} {
		if err := s.d.accesses(p); err != nil {
			return err
		}
	}
	if to == from && !aligned(dst.Memory, src.Memory) {
		k.issue = func(int) error { return s.around(k, address(dst.Memory), address(src.Memory), n) }
		return nil
	}
	k.issue = func(int) error {
		return s.move(address(dst.Memory), address(src.Memory), n, s.kind(to, from))
	}
	return nil
}

// accesses says why the device cannot access the memory of a peer; nil is the host.
func (d *device) accesses(p *device) error {
	if p == nil || p == d || d.canReach[p.index] {
		return nil
	}
	return fmt.Errorf("%w: device %d has no access to the memory of device %d; go through the host", kolo.ErrUnsupported, d.index, p.index)
}

// copyAlignment is what addresses of copies within a chip are multiples of.
const copyAlignment = 64

func aligned(a, b kolo.Memory) bool { return (a.Addr|b.Addr)%copyAlignment == 0 }

// kind is the aclrtMemcpyKind of a copy; it enables the access that the copy needs.
// A refusal of that is the copy's to tell.
func (s *stream) kind(to, from *device) uintptr {
	switch {
	case to == nil:
		return deviceToHost
	case from == nil:
		return hostToDevice
	}
	s.d.enable(to)
	s.d.enable(from)
	return deviceToDevice
}

// enable lets the device access a peer's memory.
func (d *device) enable(p *device) {
	if p == d || d.peers[p.index] {
		return
	}
	d.peers[p.index] = d.v.lib.call(fnEnablePeerAccess, uintptr(p.index), 0) == nil
}

func (s *stream) move(dst, src uintptr, n int64, kind uintptr) error {
	return s.d.v.lib.call(fnMemcpyAsync, dst, uintptr(n), src, uintptr(n), kind, s.handle)
}

// around copies within the device by way of the host, piece by piece through one
// buffer, for addresses that the device does not copy between.
func (s *stream) around(k *task, dst, src uintptr, n int64) error {
	b, err := s.bounce(k, min(n, bounceSize))
	for at := int64(0); err == nil && at < n; at += bounceSize {
		size := min(bounceSize, n-at)
		if err = s.move(b, src+uintptr(at), size, deviceToHost); err == nil {
			err = s.move(dst+uintptr(at), b, size, hostToDevice)
		}
	}
	return err
}

// bounce is memory of the host for a task, which goes with it.
func (s *stream) bounce(k *task, n int64) (uintptr, error) {
	d := s.d
	b, err := d.v.lib.made(fnMallocHost, uintptr(n), 0)
	if err != nil {
		return 0, err
	}
	d.v.core.Enter()
	defer d.v.core.Leave()
	before := k.after
	give := func() {
		if before != nil {
			before()
		}
		d.push(func() { _ = d.v.lib.call(fnFreeHost, b) }) // it goes with the process
	}
	if k.over { // the stream was aborted meanwhile
		give()
		return 0, fmt.Errorf("%w: the stream was aborted", kolo.ErrAborted)
	}
	k.after = give
	return b, nil
}

// Reduce notes a reduction: by the device, or on the host what the device cannot do.
func (s *stream) Reduce(t *driver.Task, dst, src driver.Place, dt kolo.DType, op kolo.ReduceOp) error {
	k, n, from := taskOf(t), dst.Len(), own(src.Device)
	if err := s.d.accesses(from); err != nil {
		return err
	}
	kind, dtype, ok := reduction(dt, op)
	switch {
	case !ok:
		s.foldOnHost(k, dst.Memory, src.Memory, from, kernel.OpOf(dt, op, 1))
	case from == s.d:
		k.issue = func(int) error { return s.reduce(address(dst.Memory), address(src.Memory), n, kind, dtype) }
	default:
		k.issue = func(int) error { return s.reducePeer(address(dst.Memory), address(src.Memory), n, kind, dtype, from) }
	}
	return nil
}

// reduction is what aclrtReduceAsync calls an operation on elements of a type.
func reduction(t kolo.DType, op kolo.ReduceOp) (kind, dtype uintptr, ok bool) {
	switch op.Kind {
	case kolo.OpSum:
		kind = reduceSum
	case kolo.OpMax:
		kind = reduceMax
	case kolo.OpMin:
		kind = reduceMin
	default:
		return 0, 0, false
	}
	switch t { // of aclDataType
	case kolo.Float32:
		dtype = 0
	case kolo.Float16:
		dtype = 1
	case kolo.Int8:
		dtype = 2
	case kolo.Int32:
		dtype = 3
	case kolo.Int16:
		dtype = 6
	case kolo.BFloat16:
		dtype = 27
	default:
		return 0, 0, false
	}
	return kind, dtype, true
}

// reduce counts in bytes, as the library does.
func (s *stream) reduce(dst, src uintptr, n int64, kind, dtype uintptr) error {
	return s.d.v.lib.call(fnReduceAsync, dst, src, uintptr(n), kind, dtype, s.handle, 0)
}

// reducePeer brings a peer's memory over piece by piece: the library reduces within a
// device.
func (s *stream) reducePeer(dst, src uintptr, n int64, kind, dtype uintptr, from *device) (err error) {
	for at := int64(0); err == nil && at < n; at += scratchSize {
		size := min(scratchSize, n-at)
		if err = s.bring(src+uintptr(at), size, from); err == nil {
			err = s.reduce(dst+uintptr(at), s.scratch, size, kind, dtype)
		}
	}
	return err
}

// bring copies memory of a peer to the stream's scratch memory.
func (s *stream) bring(src uintptr, n int64, from *device) (err error) {
	if s.scratch == 0 {
		if s.scratch, err = s.d.v.lib.made(fnMalloc, scratchSize, hugeFirst); err != nil {
			return err
		}
	}
	return s.move(s.scratch, src, n, s.kind(s.d, from))
}

// foldOnHost makes a task a reduction by the host, in steps: step i brings the result
// of step i-1 to the device and the operands of its own to the host.
func (s *stream) foldOnHost(k *task, dst, src kolo.Memory, from *device, op kernel.Op) {
	n := dst.Len()
	k.folds = int((n + bounceSize - 1) / bounceSize)
	var a, b uintptr
	piece := func(i int) (at, size int64) {
		at = int64(i) * bounceSize
		return at, min(bounceSize, n-at)
	}
	k.issue = func(i int) (err error) {
		if i == 0 {
			if a, err = s.bounce(k, min(n, bounceSize)); err == nil {
				b, err = s.bounce(k, min(n, bounceSize))
			}
		} else {
			at, size := piece(i - 1)
			err = s.move(address(dst)+uintptr(at), a, size, hostToDevice)
		}
		if err != nil || i == k.folds {
			return err
		}
		at, size := piece(i)
		operand := address(src) + uintptr(at)
		if from != s.d {
			if err = s.bring(operand, size, from); err != nil {
				return err
			}
			operand = s.scratch
		}
		if err = s.move(a, address(dst)+uintptr(at), size, deviceToHost); err == nil {
			err = s.move(b, operand, size, deviceToHost)
		}
		return err
	}
	k.fold = func(i int) error {
		_, size := piece(i)
		op.Accumulate(bytesAt(a, size), bytesAt(b, size))
		return nil
	}
}

// bytesAt are bytes of the host that are none of Go's.
func bytesAt(p uintptr, n int64) []byte { return unsafe.Slice((*byte)(pointer(p)), n) }
