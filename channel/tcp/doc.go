// Package tcp is the channel driver between processes and hosts over TCP. Linked in,
// it is the driver "tcp"; a Config makes others.
//
// Two ranks share one control connection, dialled by whichever has something for the
// other first. It carries small messages with their bytes (as far as the receiver has
// granted a window), offers of large ones, and what concerns them. The bytes of a large
// message go once its receive is there, straight from the sender's memory and straight
// into the receiver's: up to Config.Inline on the same connection, else on data connections
// of their own. Between processes of one host that have no second processor for those
// everything goes on the same one, in pieces between which small messages get in.
//
// A connection begins with a greeting: job, epoch, ranks, limits, and a digest of them. Who
// is somebody else is told why and closed, and nobody hears of it but the dialler.
// There is no second connection after a loss: all ops of the link end with kolo.ErrLost,
// when the kernel says so: at once if the peer's process has ended, within Config.Timeout
// if its host is silent. A process that is stopped but whose host answers is noticed only
// if it owes the reading of bytes; heartbeats are not this package's.
//
// On Linux the control connections are not in the runtime's poller but in an epoll set
// of the driver, so that a rank that waits reads them itself (channel.Poller) and a
// packet wakes no other goroutine meanwhile. Connections with TLS, and other systems,
// have two goroutines each.
//
// A send that was within the window is complete when the kernel has its bytes. A link
// that is closed still delivers those.
package tcp
