package hccs_test

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/hccs"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes the driver with its own engine.
func open(t testing.TB, c channel.Config) channel.Driver {
	e := hccs.NewEngine(2)
	t.Cleanup(e.Close)
	c.Engine = e
	d, err := hccs.New(c)
	require.NoError(t, err)
	return d
}

func TestDriver(t *testing.T) {
	channeltest.Kit{Open: open, ZeroCopy: true, AllocFree: true}.Run(t)
}

func TestDriverWithAnotherEngine(t *testing.T) {
	channeltest.Run(t, func(t testing.TB, c channel.Config) channel.Driver {
		d, err := channel.Open("hccs", c)
		require.NoError(t, err)
		require.Equal(t, kolo.LinkHCCS, d.Link())
		return d
	})
}

func TestNewWithoutEngine(t *testing.T) {
	_, err := hccs.New(channel.Config{Job: "test"})
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func BenchmarkHop(b *testing.B) { channeltest.BenchmarkHop(b, open) }
