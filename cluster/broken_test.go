package cluster

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stretchr/testify/require"
)

// That the stream of a process that is gone was "canceled" says nothing to a user who has
// canceled nothing; another reason is kept.
func TestBrokenLinkSaysWhatIsKnown(t *testing.T) {
	for _, err := range []error{context.Canceled, io.EOF, status.Error(codes.Canceled, "context canceled")} {
		require.Equal(t, "its connection has broken, so it has ended or closed it (see its own output)", broken(err).Error())
	}
	err := broken(status.Error(codes.Unavailable, "connection reset by peer"))
	require.ErrorContains(t, err, "(see its own output): connection reset by peer")
	require.ErrorContains(t, broken(errors.New("frame too large")), "(see its own output): frame too large")
}
