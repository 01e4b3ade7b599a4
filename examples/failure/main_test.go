package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	exampletest.Output(t, run, "rank 2 called AllReduce(1000 fp32, sum): count 1000 instead of 1024", "rank 3 has left the group")
}
