// Package pcie is the last resort between devices without peer access, and the driver
// that uses it: every copy goes from one device to the host and from there to the other,
// by bounce buffers of the host. There are two for each copy, so that the way in of a block
// overlaps the way out of the one before it.
//
// An Engine put around that of the devices (rank.Config.Engine) takes this way for
// pairs of devices that have no better one, and says so, once for each pair. The driver
// "pcie" takes it for everything, host memory too. A fold is done on the host, so its bits
// are those of the host's kernels.
package pcie
