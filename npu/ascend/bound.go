//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"fmt"
	"runtime"
)

// bound looks for AscendCL and DCMI.
func (r *Report) bound(c Config) {
	r.Library.Name, r.DCMI.Name = libraryName, "libdcmi.so"
	lib, err := load(c.places())
	if err == nil {
		runtime.LockOSThread() // for the error text
		defer runtime.UnlockOSThread()
		r.Library.Path = lib.path
		if err = lib.init(); err == nil {
			v := lib.version
			r.Library.Version = fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
			r.Devices, err = lib.devices()
		}
	}
	r.Library.Err = err
	d, err := loadDCMI(c.dcmiPlaces())
	if r.DCMI.Err = err; err != nil {
		return
	}
	r.DCMI.Path = d.path
	n := len(d.places)
	m, complete := &Matrix{}, n > 0
	for i := range n {
		h, ok := d.health(i)
		if !ok {
			h = Absent
		}
		r.Health = append(r.Health, h)
		if err := d.networkHealth(i); d.network != 0 {
			r.Network = append(r.Network, err)
		}
		row := make([]Path, n)
		for k := range n {
			row[k], ok = d.between(i, k)
			complete = complete && ok
		}
		m.Devices, m.Paths, m.Affinity = append(m.Devices, i), append(m.Paths, row), append(m.Affinity, "")
	}
	if complete && m.check() == nil {
		r.Topology = m
	}
}
