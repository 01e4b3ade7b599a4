//go:build !linux || (!amd64 && !arm64) || noverbs

package verbs

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// A program without the binding says so.
func TestAbsent(t *testing.T) {
	_, err := channel.Open("verbs", channel.Config{Job: "absent"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "noverbs")
	r := Inspect(Config{Sys: t.TempDir()})
	require.ErrorContains(t, r.Err, "noverbs")
	require.Contains(t, r.String(), "missing")
}
