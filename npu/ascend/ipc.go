//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// keySize is the room for a key of AscendCL's memory.
const keySize = 65

// flags of keys.
const (
	exportAnyProcess = 1 // the importing process need not be named
	importPeerAccess = 1
)

// Export makes a key for memory, the whole or a part of what an Alloc gave, by which
// another process of this host reaches it. pids are the processes that may; none
// means all that have the key. The memory is not freed before they have closed it.
func (v *Driver) Export(m kolo.Memory, pids ...int) (key []byte, err error) {
	d, err := v.owner(m)
	if err == nil {
		err = d.do(func() (err error) {
			key, err = v.lib.exportMemory(m, pids)
			return err
		}, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("export memory: %w", err)
	}
	return key, nil
}

func (l *library) exportMemory(m kolo.Memory, pids []int) ([]byte, error) {
	k := make([]byte, keySize)
	flags := uintptr(0)
	if len(pids) == 0 {
		flags = exportAnyProcess
	}
	err := l.call(fnIpcMemGetExportKey, uintptr(m.Addr), uintptr(m.Size), uintptr(unsafe.Pointer(&k[0])), keySize, flags)
	if err == nil && len(pids) > 0 {
		list := make([]int32, len(pids))
		for i, p := range pids {
			list[i] = int32(p)
		}
		err = l.call(fnIpcMemSetImportPid, uintptr(unsafe.Pointer(&k[0])), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)))
	}
	key, _, _ := bytes.Cut(k, []byte{0})
	return key, err
}

// owner is the device that memory is of.
func (v *Driver) owner(m kolo.Memory) (*device, error) {
	v.core.Lock()
	defer v.core.Unlock()
	p, err := v.core.Locate(m)
	if err == nil && p.Block == nil {
		err = fmt.Errorf("%w: %d bytes of space %d", npu.ErrForeign, m.Len(), m.Space)
	}
	return own(p.Device), err
}

// Import reaches memory of another process, of size bytes, by its key: it is used as
// memory of the device, whose streams alone copy it. Close it with Unimport. Memory of
// this process, or that was imported before, is refused with kolo.ErrOverlap.
func (v *Driver) Import(dev npu.Device, key []byte, size int64) (kolo.Memory, error) {
	m, err := v.importMemory(dev, key, size)
	if err != nil {
		return kolo.Memory{}, fmt.Errorf("import memory: %w", err)
	}
	return m, nil
}

func (v *Driver) importMemory(dev npu.Device, key []byte, size int64) (kolo.Memory, error) {
	x, ok := dev.(*driver.Device)
	if !ok || x == nil || x.Core() != v.core {
		return kolo.Memory{}, fmt.Errorf("%w: the device is of another driver", npu.ErrForeign)
	}
	if size <= 0 || len(key) == 0 || len(key) >= keySize {
		return kolo.Memory{}, fmt.Errorf("%w: a key of %d bytes for %d bytes of memory", kolo.ErrArgument, len(key), size)
	}
	d, k := own(x), append(bytes.Clone(key), 0)
	var at uintptr
	err := d.do(func() (err error) {
		at, err = v.lib.made(fnIpcMemImportByKey, uintptr(unsafe.Pointer(&k[0])), importPeerAccess)
		return err
	}, func() { _ = v.lib.call(fnIpcMemClose, uintptr(unsafe.Pointer(&k[0]))) }) // nobody has used it
	if err != nil {
		return kolo.Memory{}, err
	}
	m, err := d.Import(&npu.Block{Addr: uint64(at), Size: size, Own: allocation{key: k}})
	if err != nil && !errors.Is(err, kolo.ErrOverlap) { // what is here already is not closed for who has it
		_ = d.do(func() error { return v.lib.call(fnIpcMemClose, uintptr(unsafe.Pointer(&k[0]))) }, nil) // nobody has used it
	}
	return m, err
}

// Unimport closes memory that was imported. It is refused with npu.ErrBusy while a
// task uses it.
func (v *Driver) Unimport(m kolo.Memory) error {
	d, err := v.owner(m)
	var b *npu.Block
	if err == nil {
		b, err = d.Unimport(m)
	}
	if err == nil {
		key := b.Own.(allocation).key
		err = d.do(func() error { return v.lib.call(fnIpcMemClose, uintptr(unsafe.Pointer(&key[0]))) }, nil)
	}
	if err != nil {
		return fmt.Errorf("close imported memory: %w", err)
	}
	return nil
}
