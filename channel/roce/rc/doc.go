// Package rc is the reliable connection of RoCE v2 as pure code: packets, their
// invariant CRC, memory regions, and the queue pair with both its halves, requester
// and responder. It has no socket and no clock: packets and the time come in by
// Input and Tick, packets go out by Output.
//
// Sources: the InfiniBand Architecture Specification, volume 1, chapters 9
// (transport) and 10 (keys), and its annexes A16 and A17 (RoCE, RoCE v2).
package rc
