// Package trace writes what happened when, in real or in virtual time, as a trace for
// the trace viewers of browsers and as a picture. Simulated devices (npu/sim),
// simulated collectives (plan.Simulate) and programs that measure give it their spans.
package trace
