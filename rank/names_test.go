package rank

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The count of a name outlives that of older ones, and there is an end to how many are kept.
func TestNamesAreBounded(t *testing.T) {
	var s names
	for i := range 5 * maxNames {
		s.set(fmt.Sprint("step ", i), s.get(fmt.Sprint("step ", i))+1)
		s.set("often", s.get("often")+1)
	}
	require.Equal(t, 5*maxNames, s.get("often"))
	require.Equal(t, 1, s.get(fmt.Sprint("step ", 5*maxNames-1)))
	require.Equal(t, 0, s.get("step 0"))
	require.Len(t, s.count, maxNames)
	require.LessOrEqual(t, len(s.order), 2*maxNames)
	s = names{}
	s.set("rare", 1)
	for i := range 5 * maxNames {
		s.set("often", i+1)
	}
	require.Equal(t, 1, s.get("rare"))
	require.LessOrEqual(t, len(s.order), 2*maxNames)
}
