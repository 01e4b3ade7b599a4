package drivers

import (
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	r := New[int]("number")
	r.Add("two", 2)
	r.Add("one", 1)
	v, err := r.Get("two")
	require.NoError(t, err)
	require.Equal(t, 2, v)
	_, err = r.Get("three")
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, `no number "three"; linked in: [one two]`)
	require.Panics(t, func() { r.Add("one", 1) })
	r.Drop("one")
	require.Equal(t, []string{"two"}, r.Names())
}
