// Package kernel combines the elements of byte slices: dst = a op b, for every
// DType and every ReduceOp, of two sources or of many in one pass.
//
// Where the medium lets a rank see the memory of all the others, Spread is a
// whole AllReduce of one block: read every source once, write every destination
// once.
//
// # Numbers
//
// The bits of a result depend on the Op and on the sources in their order, and on
// nothing else: not on the length or the alignment of the slices, not on where a
// longer slice was cut, not on the number of destinations, and not on whether the
// machine has vector instructions. The one exception are the sign and the payload
// of a NaN.
//
//   - Many sources fold from left to right: ((s0 op s1) op s2) op s3.
//   - Float16 and BFloat16 compute in float32, with a rounding to float32 after
//     each step, and round to their own width once a call, to nearest even.
//   - Products and sums are never contracted to a fused multiply-add.
//   - A NaN in any source makes the result NaN, in Min and Max too; -0 < +0.
//   - Integers wrap.
//   - OpAvg divides the sum once, by a true division; that of integers truncates
//     toward zero. The sum of integers has wrapped before.
//   - OpPreMulSum of floats rounds Scale*s to the type it computes in, and then
//     adds. Scale itself is rounded to that type first.
//
// # Memory
//
// A call keeps nothing, allocates nothing and starts nothing; it may run on any
// number of goroutines at once. Elements are in the byte order of the machine and
// need no alignment on amd64 and arm64. A destination may be exactly one of the
// sources, at the same address; any other overlap gives undefined elements.
package kernel
