package pcie_test

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/pcie"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDriver(t *testing.T) {
	channeltest.Run(t, func(t testing.TB, c channel.Config) channel.Driver {
		e := hccs.NewEngine(2)
		t.Cleanup(e.Close)
		c.Engine = e
		d, err := channel.Open("pcie", c)
		require.NoError(t, err)
		require.Equal(t, kolo.LinkPCIe, d.Link())
		_, direct := d.(channel.Direct)
		require.False(t, direct)
		return d
	})
}

func TestConfigIsChecked(t *testing.T) {
	_, err := pcie.New(channel.Config{})
	require.ErrorIs(t, err, kolo.ErrArgument)
	e := hccs.NewEngine(1)
	defer e.Close()
	_, err = pcie.NewEngine(e, pcie.Config{Block: -1, Always: true})
	require.ErrorIs(t, err, kolo.ErrArgument)
}
