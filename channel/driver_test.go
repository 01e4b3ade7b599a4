package channel

import (
	"errors"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

type fakeDriver struct{ Driver }

func TestRegistry(t *testing.T) {
	broken := errors.New("no such device")
	t.Cleanup(func() {
		registry.Drop("test-good")
		registry.Drop("test-broken")
	})
	Register("test-good", func(c Config) (Driver, error) {
		require.Equal(t, "job", c.Job)
		return fakeDriver{}, nil
	})
	Register("test-broken", func(Config) (Driver, error) { return nil, broken })
	d, err := Open("test-good", Config{Job: "job"})
	require.NoError(t, err)
	require.Equal(t, fakeDriver{}, d)
	_, err = Open("test-broken", Config{})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "test-broken")
	_, err = Open("test-none", Config{})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "test-good", "the names that there are")
	require.Subset(t, Drivers(), []string{"test-broken", "test-good"})
	require.Panics(t, func() { Register("test-good", nil) })
}

func TestAgree(t *testing.T) {
	a := &Op{Size: 8, DType: kolo.Float32}
	require.NoError(t, Agree(a, &Op{Size: 8, DType: kolo.Float32}))
	err := Agree(a, &Op{Size: 12, DType: kolo.Float32})
	require.ErrorIs(t, err, kolo.ErrMismatch)
	require.ErrorContains(t, err, "8 bytes and the receiver takes 12")
	err = Agree(a, &Op{Size: 8, DType: kolo.Int32})
	require.ErrorIs(t, err, kolo.ErrMismatch)
	require.ErrorContains(t, err, "fp32 and the receiver takes int32")
}

func TestKindNames(t *testing.T) {
	for k, want := range map[Kind]string{Send: "send", Recv: "receive", View: "view", 9: "no kind"} {
		require.Equal(t, want, k.String())
	}
}
