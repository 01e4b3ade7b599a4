//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"bytes"
	"path"
	"strings"
	"unsafe"
)

// bound looks for the library and opens each of its devices.
func (r *Report) bound(c Config) {
	lib, err := load(c.places())
	if err != nil {
		r.Err = err
		return
	}
	r.Library = lib.file
	if _, v, ok := strings.Cut(strings.TrimPrefix(path.Base(lib.file), libraryName+"."), "."); ok && strings.Contains(lib.file, libraryName+".") {
		r.Version = v // as 44.0 of libibverbs.so.1.14.44.0
	}
	r.Err = lib.devices(func(device uintptr, name string) bool {
		r.Devices = append(r.Devices, lib.look(device, name))
		return true
	})
}

// look reads what a device is.
func (l *library) look(device uintptr, name string) (d Device) {
	d.Name = name
	context, err := l.make(fnOpenDevice, device)
	if err != nil {
		d.Err = err
		return d
	}
	var a abiDeviceAttr
	if d.Err = l.call(fnQueryDevice, context, uintptr(unsafe.Pointer(&a))); d.Err == nil {
		firmware, _, _ := bytes.Cut(a.firmware[:], []byte{0})
		d.Firmware, d.Vendor, d.Part = string(firmware), a.vendor, a.part
	}
	for port := range min(int(a.ports), 8) {
		var p abiPortAttr
		mtu := 0
		if err := l.call(fnQueryPort, context, uintptr(port+1), uintptr(unsafe.Pointer(&p))); err == nil && p.state == portActive && p.activeMTU <= 5 {
			mtu = 128 << p.activeMTU
		}
		d.MTU = append(d.MTU, mtu)
	}
	if err := l.call(fnCloseDevice, context); err != nil && d.Err == nil {
		d.Err = err
	}
	return d
}
