package launch

import (
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestBindings(t *testing.T) {
	four := []core{{0, 4}, {1, 5}, {2, 6}, {3, 7}}
	for name, c := range map[string]struct {
		bind      Bind
		processes int
		want      []core
		remark    string
	}{
		"none":                   {BindNone, 2, nil, ""},
		"not said":               {"", 2, nil, ""},
		"a core each":            {BindCore, 3, []core{{0, 4}, {1, 5}, {2, 6}}, ""},
		"all cores":              {BindCore, 4, four, ""},
		"too few cores":          {BindCore, 5, nil, "--bind core: not bound: 5 processes, 4 cores that may be used"},
		"halves":                 {BindShare, 2, []core{{0, 4, 1, 5}, {2, 6, 3, 7}}, ""},
		"what is over is free":   {BindShare, 3, []core{{0, 4}, {1, 5}, {2, 6}}, ""},
		"one has all":            {BindShare, 1, []core{{0, 4, 1, 5, 2, 6, 3, 7}}, ""},
		"too few for a share":    {BindShare, 9, nil, "--bind share: not bound: 9 processes, 4 cores that may be used"},
		"nobody to be bound yet": {BindCore, 0, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			list, remark := c.bind.bindings(c.processes, four)
			require.Equal(t, c.want, list)
			require.Equal(t, c.remark, remark)
		})
	}
}

func TestBindIsRefusedWhereItCannotBe(t *testing.T) {
	j := &Job{Args: []string{"true"}, Hosts: []Host{{"", 1}, {"far", 1}}, Shell: []string{"ssh"}, Bind: BindCore}
	require.ErrorIs(t, j.Validate(), kolo.ErrUnsupported)
	require.ErrorContains(t, j.Validate(), "far is another")
	j.Bind = BindNone
	require.NoError(t, j.Validate())
	j.Bind = "socket"
	require.ErrorIs(t, j.Validate(), kolo.ErrArgument)
}
