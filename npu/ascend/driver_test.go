//go:build linux && (amd64 || arm64) && !noacl

package ascend_test

import (
	"os"
	"testing"

	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/npu/nputest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// library is the path of the library under test: that of ACL_LIB, or a stand-in.
func library(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("ACL_LIB"); p != "" {
		t.Logf("the library of ACL_LIB, %s", p)
		return p
	}
	return standin.Open(t).Path
}

func TestDriver(t *testing.T) {
	nputest.Run(t, func(t testing.TB) npu.Driver {
		d, err := ascend.New(ascend.Config{Library: library(t), DCMI: "none"})
		require.NoError(t, err)
		return d
	})
}
