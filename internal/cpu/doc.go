// Package cpu asks the processor the few things that Go does not: which core this
// is, whether vectors may be used, and to pause in a spinning loop.
package cpu
