// Package rank is the user's API: a World of ranks, Groups of them, and every
// collective on Go slices or Buffers.
//
//	err := rank.Run(ctx, 8, func(ctx context.Context, w *rank.World) error {
//		grads := gradientsOf(w.Rank())
//		return rank.AllReduce(ctx, w.Group(), grads, kolo.Sum)
//	})
//
// # The rules
//
// The calls of a group are collective: every member makes the same calls in the
// same order. A group runs one collective at a time, in the order of the calls;
// different groups run independently of each other, so two groups may be used in any
// order and from any goroutine. Send and Recv match by peer and tag, and wait for
// nothing else. Several goroutines of one rank may call a group; their calls take
// their numbers in the order in which they are made, which must then be the
// same on all ranks.
//
// All members' calls are compared: in one process before a byte of any output
// changes, between processes as Config.Check says. A difference is kolo.ErrMismatch on
// every member and names the odd ranks. A group fails as a whole: the first cause
// resolves every outstanding call of every member, and later calls report it too.
// Every call has a deadline (Config.Timeout, or the context's). Closing a group, or
// returning from Run's function, tells the others at once: a call that then misses a
// member is kolo.ErrLeft. Nothing ever ends the process.
//
// # Health
//
// World.Progress says of each call that has not ended how far it has come and on whom it
// waits, from any goroutine and at no cost to the call; Stuck compares two such looks.
//
// # Memory
//
// A buffer belongs to the runtime from the call until it returns, or until Wait
// has returned for the asynchronous form. Buffers of different ranks must not overlap,
// nor input and output, but for the in-place layouts that each call documents.
//
// # One-sided transfers
//
// A Window opens memory to other ranks, which put and get lists of pieces without a call
// of this one. Registered memory is the caller's until and after the window has it; what
// keeps two ranks from using a byte at the same time is theirs to agree on, and notices
// are there for that. The local memory of a transfer belongs to the runtime until it has ended.
//
// # Devices
//
// With Config.Engine the memory may be that of devices. DoOn makes a call between two
// streams of a device: behind what produces the buffers and before what uses them,
// with nobody waiting on the host.
package rank
