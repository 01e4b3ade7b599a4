package cpu

import (
	"math"
	"runtime"
	"testing"
)

func TestCPUIsSmallAndSteadyOnAThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	same := 0
	for range 1000 {
		before := CPU()
		if before < 0 || before > 4095 {
			t.Fatalf("core %d", before)
		}
		if CPU() == before {
			same++
		}
	}
	if same < 900 {
		t.Fatalf("two calls in a row gave one core %d times in 1000", same)
	}
}

func TestPauseTakesAnyNumber(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 10, math.MaxInt} {
		Pause(n)
	}
}

func TestHasAVX2OnlyOnAMD64(t *testing.T) {
	if HasAVX2() && runtime.GOARCH != "amd64" {
		t.Fatal("AVX2 on", runtime.GOARCH)
	}
	if !HasAVX2() && runtime.GOARCH == "amd64" {
		t.Skip("this processor has no AVX2 or no F16C")
	}
}

func BenchmarkCPU(b *testing.B) {
	for b.Loop() {
		CPU()
	}
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		Pause(1)
	}
}
