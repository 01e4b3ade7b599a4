package pcie

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
)

// New makes the driver of one world, all of whose ranks are in this process. It is
// registered as "pcie". Sends meet their receives as they do in hccs; every receive is
// staged.
func New(c channel.Config) (channel.Driver, error) {
	if c.Engine == nil {
		return nil, fmt.Errorf("%w: the pcie driver needs an engine", kolo.ErrArgument)
	}
	e, err := NewEngine(c.Engine, Config{Always: true})
	if err != nil {
		return nil, err
	}
	c.Engine = e
	inner, err := hccs.New(c)
	if err != nil {
		return nil, err
	}
	return &driver{inner, e}, nil
}

// driver hides what hccs has more than a Driver: its ranks reach nothing directly.
type driver struct {
	channel.Driver
	engine *Engine
}

func (d *driver) Link() kolo.Link { return kolo.LinkPCIe }

// Close waits for the copies that are on their way. The engine beneath is its maker's.
func (d *driver) Close() error {
	err := d.Driver.Close()
	d.engine.Close()
	return err
}
