// Package plan decides how a collective is done and proves it: it turns a
// kolo.Call into one Program per rank, says which steps of a Program may run,
// verifies Programs and estimates their time. It is pure: no goroutine, clock,
// lock, context, IO or randomness.
//
// Read program.go for what a Program is, ring.go for how an algorithm is
// written, algorithm.go for the table of all of them, choose.go for the choice.
package plan
