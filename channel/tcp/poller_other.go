//go:build !linux

package tcp

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// poller is what only Linux has: elsewhere each connection has goroutines of its own.
type poller struct{ lone atomic.Bool }

func newPoller() (*poller, error)             { return nil, nil }
func (p *poller) close()                      {}
func (p *poller) crowd(int, int)              {}
func (p *poller) serve()                      {}
func (p *poller) poll(*atomic.Uint32)         {}
func (p *poller) add(s socket, w *wire) error { return errors.ErrUnsupported }
func detach(c *net.TCPConn) (socket, error)   { return nil, errors.ErrUnsupported }

const gentle = ""

func local(syscall.RawConn, string) string       { return "" }
func tune(c *net.TCPConn, _ time.Duration) error { return nil }
