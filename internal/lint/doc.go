// Package lint holds the house rules of CONVENTIONS.md that a machine can check, as
// a test: go test ./internal/lint. layers.go says which package may import which.
package lint
