package kolo

import (
	"fmt"
	"time"
)

// Link is the kind of a connection between two ranks, best first.
type Link uint8

// The links. A topology prefers the smaller number where several exist.
const (
	LinkSelf Link = iota // a rank and itself
	LinkHCCS             // one process, or devices with peer access
	LinkSHM              // processes of one host
	LinkRoCE             // hosts, RDMA over converged Ethernet
	LinkPCIe             // staged through host memory
	LinkTCP              // hosts, sockets
)

// String is the usual name of the link.
func (l Link) String() string {
	switch l {
	case LinkSelf:
		return "self"
	case LinkHCCS:
		return "hccs"
	case LinkSHM:
		return "shm"
	case LinkRoCE:
		return "roce"
	case LinkPCIe:
		return "pcie"
	case LinkTCP:
		return "tcp"
	}
	return fmt.Sprintf("Link(%d)", uint8(l))
}

// Edge is one measured or declared way from a rank to another. A message of n
// bytes takes about Latency + n/Bandwidth.
type Edge struct {
	Link      Link
	Latency   time.Duration // one way, of an empty message
	Bandwidth float64       // bytes per second, one way
}

// RateString writes bytes per second with a decimal unit, as "9.87 GB/s".
func RateString(x float64) string {
	switch {
	case x >= 1e9:
		return fmt.Sprintf("%.3g GB/s", x/1e9)
	case x >= 1e6:
		return fmt.Sprintf("%.3g MB/s", x/1e6)
	}
	return fmt.Sprintf("%.3g kB/s", x/1e3)
}
