// Package pipeline hides communication behind computation: a tensor is reduced in
// chunks, each as soon as it is computed, while the next is being computed.
//
//	a, err := pipeline.NewAllReduce(pipeline.Config{Group: g, Buffer: grads, Chunks: 16, Producer: compute, Consumer: update})
//	step, err := a.Begin()
//	for i := range a.Chunks() {
//		compute.Launch(backward(a.Chunk(i))) // returns at once
//		step.Ready(i)                        // so does this: the chunk follows the kernel
//	}
//	update.Launch(optimizer)                 // begins when all chunks are reduced
//	report, err := step.Wait(ctx)
//
// A Reducer does the same for the gradients of a model, in buckets, with Priority in
// slices of them.
//
// # The order
//
// Chunks and buckets are launched in one order, which is the same on every rank,
// whatever the order in which they become ready: one that is early waits for those
// before it. With Priority, rank 0 decides at each slice which bucket is next. Every rank makes the same steps, and nothing else uses the group between
// Begin and Wait.
//
// # With streams and without
//
// With a Producer and a Consumer, Ready means a point of the Producer, and nothing
// waits on the host; what is asked of the Consumer after the last Ready sees reduced
// memory. Without them, Ready means that the chunk is computed, and Wait that all is
// reduced. The numbers of a Report are measured on the clock of Config.Now, at the
// moments that the calls pass their stages.
package pipeline
