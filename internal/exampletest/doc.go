// Package exampletest runs the programs of examples in tests: within the test, or as the
// processes of a world.
package exampletest
