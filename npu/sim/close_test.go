package sim

import (
	"runtime"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// A device that is being opened while the cluster closes is not waited for for ever.
func TestCloseFindsADeviceBeingOpened(t *testing.T) {
	c, err := New(Config{Devices: 1, Fast: true})
	require.NoError(t, err)
	d, err := c.core.Reserve(0)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- c.Close(t.Context()) }() // ends below
	for is := false; !is; runtime.Gosched() {
		c.core.Lock()
		is = c.core.Closed()
		c.core.Unlock()
	}
	_, err = c.opened(d)
	require.ErrorIs(t, err, kolo.ErrClosed)
	require.NoError(t, <-closed)
}
