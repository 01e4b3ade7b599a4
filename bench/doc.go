// Command bench measures the collectives of ranks in one process, beside the best
// plain-goroutine AllReduce that we know to write, in the same run: latency per call,
// algorithm bandwidth and bus bandwidth.
//
//	go run ./bench                          the table of the README
//	go run ./bench -ranks 8 -sizes 1MiB -algorithm ring
//
// A row's time is the median over rounds of the slowest rank's time per call, calls
// back to back. Rounds of all programs compared are interleaved, so that a noisy
// machine disturbs them alike. Sizes are bytes of the whole vector: of one rank's
// buffer for AllReduce and Broadcast, of the result for AllGather, of the input for
// ReduceScatter, of what a rank sends for AllToAll. Bus bandwidth is algorithm
// bandwidth times the factor of nccl-tests.
package main
