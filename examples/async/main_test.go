package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	exampletest.Output(t, run, "layer 0", "layer 2")
}
