package pcie_test

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
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

// A job that comes while the engine is closed is done or refused, and none is on its way
// when Close has returned.
func TestEngineClosedWhileJobsCome(t *testing.T) {
	inner := hccs.NewEngine(1)
	defer inner.Close()
	for range 200 {
		e, err := pcie.NewEngine(inner, pcie.Config{Always: true, Block: 8})
		require.NoError(t, err)
		var closed atomic.Bool
		var starters sync.WaitGroup
		for range 2 {
			starters.Go(func() {
				for refused := false; !refused; {
					done := make(chan error, 1)
					dst, src := make([]byte, 20), []byte("0123456789abcdefghij")
					j := &channel.Job{Done: func(_ channel.Turn, err error) {
						if err == nil && closed.Load() {
							t.Error("done after Close")
						}
						done <- err
					}}
					p := j.Add()
					p.Dst, p.Src = append(p.Dst, kolo.HostMemory(dst)), append(p.Src, kolo.HostMemory(src))
					e.Start(nil, j)
					switch err := <-done; {
					case errors.Is(err, kolo.ErrClosed):
						refused = true
					case err != nil || string(dst) != string(src):
						t.Errorf("%v, %q", err, dst)
					}
				}
			})
		}
		runtime.Gosched()
		e.Close()
		closed.Store(true)
		starters.Wait()
	}
}
