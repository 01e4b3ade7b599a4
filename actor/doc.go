// Package actor runs typed actors on protoactor-go, of which it is the only
// importer. An actor is a Handler: a plain struct whose Handle is called with one
// message at a time. Actors live on shards; a shard runs its actors one after the
// other, to completion, on whichever goroutine brought the work.
//
// protoactor's stock dispatcher starts a goroutine for each activation and pays
// two microseconds for growing its stack. Here a message costs tens of nanoseconds:
// it is appended to the queue of the receiver's shard, and the sender's goroutine
// drains that queue if nobody does. protoactor keeps what it is good at: the life
// of an actor, its address, its supervision.
//
// No goroutine runs while nothing happens, but for one parked worker that takes
// over what a sender may not finish itself.
package actor
