package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxWaiting is how many packets may be on their way to a host; further ones are lost.
const maxWaiting = 8192

// packet is one that is on its way.
type packet struct {
	at time.Time // when it arrives
	b  []byte
}

// forward joins the hosts by TUN devices, between which it carries the packets itself,
// late: a kernel need not have netem for that.
func (l *Lab) forward() {
	l.t.Helper()
	devices := map[netip.Addr]*os.File{}
	queues := map[netip.Addr]chan packet{}
	for i := range l.n {
		f, err := tun(l.host(i), "eth0")
		if err != nil {
			l.t.Skipf("a TUN device: %v", err)
		}
		l.t.Cleanup(func() { _ = f.Close() }) // again, where forward has come to its end
		l.IP(i, "link", "set", "eth0", "mtu", strconv.Itoa(l.cfg.MTU))
		l.setAddress(i, "eth0")
		a := netip.MustParseAddr(l.Address(i))
		devices[a], queues[a] = f, make(chan packet, maxWaiting)
	}
	var readers, writers sync.WaitGroup
	for a, f := range devices {
		// ends when the device is closed
		readers.Go(func() { l.take(f, queues) })
		// ends when the readers have
		writers.Go(func() { deliver(f, queues[a]) })
	}
	l.t.Cleanup(func() {
		for _, f := range devices {
			_ = f.Close() // what is on its way is lost
		}
		readers.Wait()
		for _, q := range queues {
			close(q)
		}
		writers.Wait()
	})
}

// take reads the packets of a host and sends them on their way.
func (l *Lab) take(f *os.File, to map[netip.Addr]chan packet) {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // the device is not up
		}
		select {
		case to[destination(buf[:n])] <- packet{time.Now().Add(l.cfg.Delay), append([]byte(nil), buf[:n]...)}:
		default: // a stranger, or too many
		}
	}
}

// deliver gives a host its packets when they are due.
func deliver(f *os.File, q chan packet) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := range q {
		if d := time.Until(p.at); d > 0 {
			timer.Reset(d)
			<-timer.C
		}
		_, _ = f.Write(p.b) // a host whose link is down gets none
	}
}

// destination is where an IP packet wants to go, or no address.
func destination(b []byte) netip.Addr {
	var s []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		s = b[16:20]
	case len(b) >= 40 && b[0]>>4 == 6:
		s = b[24:40]
	}
	a, _ := netip.AddrFromSlice(s) // of no bytes: no address
	return a
}

// tun makes a TUN device in a network namespace.
func tun(namespace, name string) (*os.File, error) {
	type made struct {
		f   *os.File
		err error
	}
	c := make(chan made)
	// ends when the device is there; its thread is in the namespace and ends with it
	go func() {
		runtime.LockOSThread()
		f, err := tunHere("/run/netns/"+namespace, name)
		c <- made{f, err}
	}()
	m := <-c
	return m.f, m.err
}

// tunHere makes a TUN device and leaves this thread in the namespace.
func tunHere(namespace, name string) (*os.File, error) {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }() // it was only named
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter %s: %w", namespace, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil // after TUNSETIFF: before it cannot be polled
}
