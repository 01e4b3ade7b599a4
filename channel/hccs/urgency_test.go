package hccs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who waits hurries what is less urgent, for as long as anything moves.
func TestWaitersHurryTheLessUrgent(t *testing.T) {
	var u urgency
	small, large, high := ClassOf(0, 64<<10), ClassOf(0, 1<<30), ClassOf(3, 1<<30)
	require.Less(t, large, small)
	require.Less(t, small, high)
	require.False(t, u.hurried(large))
	u.Enter(small)
	require.True(t, u.hurried(large))
	require.False(t, u.hurried(small), "its equals")
	require.False(t, u.hurried(high))
	u.looks.Add(longWait)
	require.False(t, u.hurried(large), "it has waited for too long")
	u.Enter(small)
	require.True(t, u.hurried(large), "another has come")
	u.Leave(small)
	u.Leave(small)
	require.False(t, u.hurried(large))
}

// Beside urgent calls one processor is left to them, and of what is less urgent one block is done
// each time that somebody gives way.
func TestHelpersAreFewBesideUrgentCalls(t *testing.T) {
	var u urgency
	small, large := ClassOf(0, 64<<10), ClassOf(0, 1<<30)
	u.helps[large].Store(2)
	require.True(t, u.admits(large, 2), "nobody waits")
	u.Enter(small)
	require.False(t, u.admits(large, 2))
	require.True(t, u.admits(large, 3))
	u.helps[large].Store(1)
	require.True(t, u.admits(large, 2))
	require.True(t, u.admits(large, 1), "one is always admitted")
	u.yields.Store(1)
	u.grant.Store(true)
	require.True(t, u.admits(large, 2))
	require.False(t, u.admits(large, 2), "one block was granted")
	u.yields.Store(0)
	require.True(t, u.admits(large, 2))
	u.GiveWay()
	require.Zero(t, u.yields.Load())
	require.True(t, u.grant.Load())
}
