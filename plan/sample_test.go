//go:build !long

package plan

const long = false
