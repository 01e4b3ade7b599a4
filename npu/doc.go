// Package npu gives work to accelerators: a Driver opens Devices, a Device has
// memory, Streams, Events and Notifies, and its actor is the control plane.
//
// # Streams
//
// The rules are those of AscendCL. Every call on a Stream returns at once; what it
// asked for begins when all that was asked for before it on that stream has ended.
// Two streams know nothing of each other, but for what ties them:
//
//	Event   Record puts a point into one stream, Wait holds another until that
//	        point is reached. Wait means the latest Record that was called before
//	        it; a later Record changes nothing for it. An event that was never
//	        recorded holds nobody.
//	Notify  one bit. Signal, or Set on the host, sets it; Await holds a stream
//	        until it is set, and clears it. It may be set before or after the
//	        Await was called, so it is what a host uses to release a stream.
//
// # Errors
//
// A call that is wrong is refused at once and changes nothing. What fails later
// fails its stream: the rest of the stream is dropped and every call on the stream
// returns the first error, until the stream is closed or aborted. Nobody waits for
// what was dropped: an event whose Record was dropped and a notify whose Signal was
// dropped carry the error to the streams that wait for them, and those fail too. A
// callback that was accepted is called exactly once, in its place in the order, with
// the error if there is one.
//
// Order, Arena and Blocks are the rules as plain data structures, for drivers. They
// have no clock, no lock and no goroutine. Package driver makes of them what a driver
// is built on.
package npu
