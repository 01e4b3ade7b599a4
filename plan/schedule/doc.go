// Package schedule writes choreographies for simulators of others: as GOAL, the text that
// LogGOPSim and ATLAHS read, and as execution traces of Chakra, which ASTRA-sim reads. It is
// pure: Programs and a call in, bytes out. Sizes and folding times are those of the call.
package schedule
