// Package standin builds and controls libraries that stand in for those of an NPU, for
// tests: a libascendcl.so and a libdcmi.so over memory of the host, in C of our own. It
// is not an NPU and proves nothing about one; it has the ABI of the public reference,
// distrusts its caller, and fails as it is told.
package standin
