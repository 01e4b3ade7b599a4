// Package kolo holds the nouns of a collective communication runtime and the
// map of its code. It is pure: no goroutine, no clock, no lock, no IO.
//
// A collective call is a value that goes down and comes back once:
//
//	rank      AllReduce(ctx, group, buf, kolo.Sum)   a Call is checked and told to the rank actor
//	rank      the group's hub compares the Calls of all ranks before a byte moves
//	plan      Choose and Compile turn the Call into a Program per rank (pure)
//	plan      Machine.Next says which steps may run
//	channel   a channel actor moves bytes between two ranks, through a driver
//	channel   or the medium does the whole collective itself (fabric)
//	rank      completions come back, Machine.Done frees further steps
//	rank      the Work resolves, once
//
// # Where things are
//
//	kolo             Rank, Collective, DType, ReduceOp, Call, Memory, Edge, Error   (this package)
//	plan             topology, cost, choice, Program, Machine, Verify, Simulate    (pure)
//	plan/msccl       plans in and out of files of MSCCL                            (pure)
//	plan/survey      a measured topology: export, comparison, rank tables          (pure)
//	plan/schedule    plans out to other simulators: GOAL, Chakra                   (pure)
//	internal/kernel  dst = a op b for every DType and ReduceOp
//	actor            typed actors on protoactor-go: refs, mailboxes, shards
//	channel          the channel actor, the driver interface, matching, media
//	channel/hccs     the driver for ranks of one process: zero-copy, fabric
//	channel/shm      the driver between processes of one host: shared memory, and a medium in it
//	channel/tcp      the driver between processes and hosts: sockets
//	channel/roce     the driver between hosts: RoCE v2 in user space
//	channel/verbs    the driver between hosts with RDMA adapters: libibverbs, bound at run time
//	channel/pcie     the last resort: staged through the host's memory
//	channel/faulty   a driver around another that loses, delays and cuts
//	rank             the user's API: World, Group, Work, every collective, Run
//	cluster          ranks of several processes: rendezvous, links, heartbeats
//	cluster/probe    what is measured of the links between processes
//	npu, npu/sim     devices and streams; a simulated NPU
//	npu/driver       what a driver of devices is built on
//	npu/ascend       NPUs through AscendCL, bound at run time
//	pipeline         communication behind computation: chunks, gradient buckets
//	trace            what happened when, as a trace for viewers and as a picture
//	cmd/kolo         the command line: kolo test measures and checks collectives, kolo run
//	                 starts the processes of a world, kolo plan shows, proves, draws and
//	                 simulates choreographies, kolo topo and doctor say what is between ranks
//	bench            our own measurements, also beside other programs
//	examples/...     one runnable idea each
//
// Start with package rank to use it, with package plan to add an algorithm,
// with package channel to add a driver. ARCHITECTURE.md tells the story once,
// with a picture of a call's way.
package kolo
