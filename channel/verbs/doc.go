// Package verbs is the channel driver for RDMA adapters: RoCE v2 reliable connections
// that an adapter carries out, through libibverbs.
//
// The library is bound when the driver is opened, with purego: no cgo, no header, and one
// binary that also runs where there is none; the tag noverbs leaves the binding out. What
// libibverbs has as inline functions in its header (post and poll) goes through the
// function pointers of a device's context, at offsets that are frozen ABI; a test compares
// all offsets and sizes with the header, and the driver checks what a device gives before
// it is used.
//
// Messages, links and the handshake are those of package channel/roce, of which this is
// an Adapter: a small message is a SEND through slots that are registered once, a large
// one a WRITE straight to the memory of its receive, its last piece with immediate data.
// So an end of this driver and one of channel/roce (at port 4791) understand each other.
//
// Memory of the Go heap stays registered between messages, up to Config.Cache bytes,
// which also keeps it alive; all other memory is registered for one message, since nobody
// says when it is unmapped. All links of a driver share a protection domain: a peer could
// reach registered memory with a key that it was not given, by guessing 32 bits.
package verbs
