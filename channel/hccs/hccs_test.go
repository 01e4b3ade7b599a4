package hccs_test

import (
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/hccs"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDriver(t *testing.T) {
	channeltest.Run(t, func(t testing.TB, c channel.Config) channel.Driver {
		e := hccs.NewEngine(2)
		t.Cleanup(e.Close)
		c.Engine = e
		d, err := hccs.New(c)
		require.NoError(t, err)
		return d
	})
}
