package npu

import (
	"time"

	"github.com/kolo-ccl/kolo"
)

// Nominal are figures for one direction of a link of which nobody knows better: those
// of a server of eight NPUs, each joined to each. They are rules of thumb, to tell a
// fast way from a slow one before anything was measured. A link that devices do not
// have is without figures.
func Nominal(l kolo.Link) kolo.Edge {
	e := kolo.Edge{Link: l}
	switch l {
	case kolo.LinkSelf: // read and written
		e.Latency, e.Bandwidth = 5*time.Microsecond, 600e9
	case kolo.LinkHCCS:
		e.Latency, e.Bandwidth = 2*time.Microsecond, 56e9
	case kolo.LinkRoCE:
		e.Latency, e.Bandwidth = 5*time.Microsecond, 25e9
	case kolo.LinkPCIe:
		e.Latency, e.Bandwidth = 5*time.Microsecond, 32e9
	}
	return e
}

// NominalByHost is Nominal for two devices that have no access to each other: out of the
// one and into the other over PCIe, by way of the host.
func NominalByHost() kolo.Edge {
	e := Nominal(kolo.LinkPCIe)
	return kolo.Edge{Link: e.Link, Latency: 2 * e.Latency, Bandwidth: e.Bandwidth / 2}
}
