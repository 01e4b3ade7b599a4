//go:build linux && amd64 && !noacl

package ascend_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kolo-ccl/kolo/npu/ascend/standin"

	"github.com/stretchr/testify/require"
)

// The driver for arm64, over a stand-in for arm64, in an emulator: the calls of C go
// by other registers there. A part of the tests, since each instruction takes many.
func TestARM64InEmulator(t *testing.T) {
	const emulator, compiler, libraries = "qemu-aarch64-static", "aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu"
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	for _, tool := range []string{emulator, compiler} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here: apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross", tool)
		}
	}
	if _, err := os.Stat(libraries + "/lib/libc.so.6"); err != nil {
		t.Skipf("no C library for arm64 here: %v", err)
	}
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, standin.Compile(compiler, dir))
	cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-vet=off", "-count=1", "-exec", emulator+" -L "+libraries,
		"-run", "^(TestDriver|TestBinding|TestEventsOfOtherProcesses|TestNotifiesOfTheLibrary|TestLostDevice|TestLaunch|TestInspect)$", ".")
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=", "KOLO_STANDIN="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
