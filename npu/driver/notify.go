package driver

import (
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Notify is an npu.Notify: a bit of this process.
type Notify struct {
	device *Device
	flag   npu.Flag
	closed bool
}

// Name is the name that the notify was made with.
func (n *Notify) Name() string { return n.flag.Name }

// Device is the device that the notify is of.
func (n *Notify) Device() npu.Device { return n.device }

// Set is that of npu.Notify.
func (n *Notify) Set() error {
	return n.do("set", func(c *Core) error {
		n.flag.Stamp = c.at
		c.order.Set(&n.flag, nil)
		return nil
	})
}

// Fail is that of npu.Notify.
func (n *Notify) Fail(cause error) error {
	return n.do("fail", func(c *Core) error {
		if cause == nil {
			return fmt.Errorf("%w: no cause", kolo.ErrArgument)
		}
		c.order.Set(&n.flag, cause)
		return nil
	})
}

// Reset is that of npu.Notify.
func (n *Notify) Reset() error {
	return n.do("reset", func(c *Core) error {
		c.order.Reset(&n.flag)
		return nil
	})
}

// Close is that of npu.Notify.
func (n *Notify) Close() error {
	err := n.do("close", func(*Core) error {
		if n.flag.InUse() {
			return fmt.Errorf("%w: a stream signals or awaits it; sync or abort the stream first", npu.ErrBusy)
		}
		n.closed = true
		n.device.handles--
		return nil
	})
	if errors.Is(err, kolo.ErrClosed) {
		return nil
	}
	return err
}

// do does something with the flag, and then what that lets begin.
func (n *Notify) do(op string, f func(*Core) error) error {
	c := n.device.core
	c.Enter()
	defer c.Leave()
	err := kolo.ErrClosed
	if !n.closed && !n.device.closed {
		err = f(c)
	}
	if err != nil {
		return n.device.Error(fmt.Sprintf("%s of notify %q", op, n.flag.Name), err)
	}
	return nil
}
