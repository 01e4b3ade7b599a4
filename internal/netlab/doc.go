// Package netlab makes networks for tests: hosts that are network namespaces, the
// switch between them, and what can be wrong with it. It needs root and iproute2, some
// of it nft; a test that lacks them is skipped and says so. Nothing of it touches the
// network of the machine, and all of it goes with the test.
package netlab
