// Package perf measures one collective of ranks in this process over a range of
// sizes, and checks every element of its result on every rank.
//
// What a size means, how sizes are rounded and what a time is follow hccl_test; the
// check does not. Input values differ per rank and per index, so that a block that
// went astray or was taken twice is seen, and they are chosen so that the result has
// no rounding: every comparison is of bits.
package perf
