//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"os"
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// underTest is a configuration for the device under test: that of the system where
// KOLO_VERBS_DEVICE names one, as in the machine of make rxe-vm, else the stand-in's.
func underTest(t testing.TB) Config {
	t.Helper()
	if name := os.Getenv("KOLO_VERBS_DEVICE"); name != "" {
		return Config{Device: name}
	}
	return newStandin(t).config()
}

// opener makes drivers with a configuration.
func opener(c Config) func(t testing.TB, cc channel.Config) channel.Driver {
	return func(t testing.TB, cc channel.Config) channel.Driver {
		d, err := New(cc, c)
		require.NoError(t, err)
		return d
	}
}

func TestDriver(t *testing.T) {
	for name, c := range map[string]Config{
		"one queue pair": {}, "three, and no cache": {Config: roce.Config{QPs: 3, MultiQP: 100_000}, Cache: -1},
	} {
		t.Run(name, func(t *testing.T) {
			base := underTest(t)
			c.Library, c.Sys, c.Device = base.Library, base.Sys, base.Device
			channeltest.Kit{Open: opener(c), Buffered: true}.Run(t)
		})
	}
}
