// Package roce is the channel driver between hosts by RoCE v2: RDMA over Converged
// Ethernet, the reliable connection in user space over a UDP socket. What goes over
// the wire are the packets that an adapter would send, and outside tools read them.
//
// Package rc has the protocol, pure; here is its rim. A link, one per rank and peer, is
// an actor without a goroutine of its own: posts, packets and timers are events that it
// handles one at a time, on whichever goroutine brings one to it while it is idle: the
// rank that posts, the reader of the socket, a timer. Large amounts of data go out on
// the driver's pump, so that Post returns at once.
//
// A small message is a SEND. A large one is offered; the receiver registers the memory
// of its receive as a region and gives the key; the sender WRITEs into it, on several
// queue pairs if so configured, and the immediate data says that all is there. Queue
// pair numbers, first PSNs and windows are exchanged by datagrams of our own (queue
// pair 2) between the addresses that Address gives.
//
// The default is IPv6. The CRC of a packet covers the IPv4 identification, which a
// socket does not see. It is 0 for a packet that goes out alone (the kernel writes that for
// unconnected sockets that forbid fragments), and 0, 1, 2 ... for those that the kernel
// cuts from one call (segmentation offload, which is what makes large messages fast); so the
// sender knows it, and the receiver accepts any of 64. Where an adapter cuts packets and
// numbers them in another way, an adapter at the other end refuses them: use IPv6.
package roce
