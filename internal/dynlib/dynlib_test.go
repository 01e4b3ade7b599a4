//go:build linux && (amd64 || arm64)

package dynlib

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

type library struct{ at [2]uintptr }

func TestShelfLoadsTheFirstThatThereIsOnce(t *testing.T) {
	var s Shelf[library]
	bound := 0
	bind := func(place string, h uintptr) (*library, error) {
		bound++
		l := &library{}
		require.Equal(t, "libc.so.6", place)
		require.Equal(t, []int{1}, Bind(h, []string{"getpid", "no_such_function"}, l.at[:]))
		require.NotZero(t, l.at[0])
		require.Zero(t, l.at[1])
		return l, nil
	}
	places := []string{"libnone-of-kolo.so", "libc.so.6"}
	l, _, err := s.Load(places, bind)
	require.NoError(t, err)
	again, _, err := s.Load(places, bind)
	require.NoError(t, err)
	require.Same(t, l, again)
	require.Equal(t, 1, bound)
}

func TestShelfSaysWhatItTried(t *testing.T) {
	var s Shelf[library]
	l, tried, err := s.Load([]string{"libnone-of-kolo.so", "/none/lib.so"}, nil)
	require.NoError(t, err)
	require.Nil(t, l)
	require.Len(t, tried, 2)
	require.Regexp(t, "^libnone-of-kolo.so: .*No such file", tried[0])
	bad := errors.New("not that")
	_, _, err = s.Load([]string{"libc.so.6"}, func(string, uintptr) (*library, error) { return nil, bad })
	require.ErrorIs(t, err, bad)
}

func TestFunctionsOfTheCLibrary(t *testing.T) {
	p, err := LibC("__errno_location")
	require.NoError(t, err)
	require.NotZero(t, p)
	_, err = LibC("no_such_function")
	require.Error(t, err)
}
