// Package channel moves bytes between ranks. It has the channel actor, one per
// link of a rank to a peer, and the interfaces that it drives: a Driver opens
// Endpoints, an Endpoint connects Conns, a Conn takes Ops. Where a driver has a
// medium that all ranks share, an Engine does whole collectives as well.
//
// A driver is told what to do by Post and tells that it is done by Op.Complete,
// exactly once per Op. It never blocks its caller and never calls it back
// otherwise.
package channel
