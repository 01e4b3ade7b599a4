package kernel

import (
	"os"
	"os/exec"
	"testing"
)

// The tests of the vector form, built for arm64 and run by an emulator.
func TestARM64InEmulator(t *testing.T) {
	const emulator = "qemu-aarch64-static"
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		t.Skipf("no %s here: apt-get install qemu-user-static", emulator)
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-vet=off", "-exec", emulator, "-run", "Vector|EveryHalf|Halves|NaN|Spread|Outside|Parts", ".")
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
