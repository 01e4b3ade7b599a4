//go:build long

package plan

// long runs every combination in tests that otherwise take a sample.
const long = true
