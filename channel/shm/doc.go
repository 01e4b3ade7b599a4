// Package shm joins processes of one host by shared memory. It is the driver "shm",
// for Linux on amd64 and arm64; elsewhere it opens with kolo.ErrUnsupported.
//
// Two processes share one segment (a memfd, passed over a unix socket) with a ring of
// frames for each direction. A small message travels in the ring and its send is over
// when it is there. Of a large one the ring has an offer: where the bytes lie. The
// receiver claims it, fetches the bytes and says that it is done. There are three ways
// to fetch: from a segment that the sender's Alloc made and the receiver has mapped, in
// place; with process_vm_readv out of the sender's private memory; and where the kernel
// forbids that, in chunks through the ring.
//
// Everything in shared memory is judged before it is used: a peer that is broken or
// hostile can lose its own links and nothing else. The tail of a ring is moved when a
// frame is whole, so a process that dies leaves no half frame.
//
// Nothing has a name in a file system: what a killed process leaves, the kernel frees.
package shm
