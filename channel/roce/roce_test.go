package roce_test

import (
	"errors"
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opener makes drivers with a configuration.
func opener(c roce.Config) func(t testing.TB, cc channel.Config) channel.Driver {
	return func(t testing.TB, cc channel.Config) channel.Driver {
		d, err := roce.New(cc, c)
		require.NoError(t, err)
		return d
	}
}

// errEnd is the cause with which tests close their links.
var errEnd = errors.New("the test is over")

func TestDriver(t *testing.T) {
	channeltest.Kit{Open: opener(roce.Config{}), Buffered: true}.Run(t)
}
