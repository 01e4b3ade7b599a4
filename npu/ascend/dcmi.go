//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/kolo-ccl/kolo"

	"github.com/ebitengine/purego"
)

// dcmi is the library of the device management interface: health and topology. Its
// functions may be called from any thread; each returns 0 if it has worked.
type dcmi struct {
	path     string
	asks     uintptr
	network  uintptr
	topology uintptr
	places   []dcmiPlace // by device number of AscendCL
}

// dcmiPlace is how DCMI calls a device.
type dcmiPlace struct {
	card, device int32
	ok           bool
}

// limits of what DCMI may say.
const (
	maxCards     = 64
	maxCardChips = 8
)

// loadDCMI loads the first library of the list that can be, and asks which devices
// there are.
func loadDCMI(places []string) (*dcmi, error) {
	var tried []string
	if len(places) == 0 {
		return nil, fmt.Errorf("%w: DCMI is not asked", kolo.ErrUnsupported)
	}
	for _, p := range places {
		h, err := purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s: %s", p, strings.TrimPrefix(err.Error(), p+": ")))
			continue
		}
		c := &dcmi{path: p}
		if err = c.bind(h); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		return c, nil
	}
	return nil, fmt.Errorf("%w: DCMI is not here. It comes with the kernel driver. Looked in this order:\n\t%s", kolo.ErrUnsupported, strings.Join(tried, "\n\t"))
}

func (c *dcmi) bind(h uintptr) error {
	var lacks []string
	find := func(name string) uintptr {
		p, err := purego.Dlsym(h, name)
		if err != nil {
			lacks = append(lacks, name)
		}
		return p
	}
	start, cards := find("dcmi_init"), find("dcmi_get_card_list")
	chips, logic := find("dcmi_get_device_num_in_card"), find("dcmi_get_device_logic_id")
	c.asks = find("dcmi_get_device_health")
	if len(lacks) > 0 {
		return fmt.Errorf("%w: it lacks %s", kolo.ErrUnsupported, strings.Join(lacks, ", "))
	}
	c.network, c.topology = find("dcmi_get_device_network_health"), find("dcmi_get_topo_info_by_device_id") // optional
	if err := dcmiCall("dcmi_init", start); err != nil {
		return err
	}
	var n int32
	list := new([maxCards]int32)
	if err := dcmiCall("dcmi_get_card_list", cards, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&list[0])), maxCards); err != nil {
		return err
	}
	for _, card := range list[:max(0, min(int(n), maxCards))] {
		var in int32
		if dcmiCall("dcmi_get_device_num_in_card", chips, uintptr(card), uintptr(unsafe.Pointer(&in))) != nil {
			continue
		}
		for device := range min(in, maxCardChips) {
			var id int32
			if dcmiCall("dcmi_get_device_logic_id", logic, uintptr(unsafe.Pointer(&id)), uintptr(card), uintptr(device)) == nil &&
				id >= 0 && id < maxCards*maxCardChips {
				for len(c.places) <= int(id) {
					c.places = append(c.places, dcmiPlace{})
				}
				c.places[id] = dcmiPlace{card, device, true}
			}
		}
	}
	return nil
}

//go:uintptrescapes
func dcmiCall(name string, f uintptr, args ...uintptr) error {
	if f == 0 {
		return fmt.Errorf("%w: there is no %s", kolo.ErrUnsupported, name)
	}
	if r, _, _ := purego.SyscallN(f, args...); int32(r) != 0 {
		return fmt.Errorf("%s: error %d", name, int32(r))
	}
	return nil
}

func (c *dcmi) place(index int) (dcmiPlace, bool) {
	if index < 0 || index >= len(c.places) || !c.places[index].ok {
		return dcmiPlace{}, false
	}
	return c.places[index], true
}

// health is what DCMI says of a device; false if it says nothing.
func (c *dcmi) health(index int) (Condition, bool) {
	p, ok := c.place(index)
	var h uint32
	if !ok || dcmiCall("dcmi_get_device_health", c.asks, uintptr(p.card), uintptr(p.device), uintptr(unsafe.Pointer(&h))) != nil {
		return 0, false
	}
	return Condition(h), true
}

// networkHealth says what is wrong with a device's network port, nil if nothing.
func (c *dcmi) networkHealth(index int) error {
	p, ok := c.place(index)
	if !ok {
		return fmt.Errorf("%w: DCMI knows no device %d", kolo.ErrUnsupported, index)
	}
	var h int32
	if err := dcmiCall("dcmi_get_device_network_health", c.network, uintptr(p.card), uintptr(p.device), uintptr(unsafe.Pointer(&h))); err != nil {
		return err
	}
	names := []string{"", "no socket", "nothing received in time", "not reachable", "time exceeded", "not sent", "not initialised", "no thread", "no address set"}
	switch {
	case h == 0:
		return nil
	case int(h) < len(names) && h > 0:
		return errors.New(names[h])
	}
	return fmt.Errorf("network health %d", h)
}

// path is what DCMI says lies between two devices.
func (c *dcmi) between(a, b int) (Path, bool) {
	p, ok := c.place(a)
	q, also := c.place(b)
	var way int32
	if !ok || !also || dcmiCall("dcmi_get_topo_info_by_device_id", c.topology,
		uintptr(p.card), uintptr(p.device), uintptr(q.card), uintptr(q.device), uintptr(unsafe.Pointer(&way))) != nil {
		return PathUnknown, false
	}
	list := []Path{PathSelf, PathSYS, PathPHB, PathHCCS, PathPXB, PathPIX, PathSIO, PathSwitch}
	if way < 0 || int(way) >= len(list) {
		return PathUnknown, false
	}
	return list[way], true
}
