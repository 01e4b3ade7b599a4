// Package hccs is the channel driver for ranks of one process, named after the
// links between the NPUs of an Ascend server. It is zero-copy: when a receive
// meets its send, the bytes go straight from the sender's memory to the receiver's.
//
// Its engine does moves and reductions: small ones at once on the goroutine that
// brought them, large ones in blocks on a few worker goroutines and on those of
// ranks that wait. Since every rank's memory is addressable, the engine does whole
// collectives too (the fabric algorithm).
package hccs
