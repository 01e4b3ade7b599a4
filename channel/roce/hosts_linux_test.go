package roce_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo/internal/netlab"

	"github.com/stretchr/testify/require"
)

// Two hosts have no loopback in common, packets that really are cut, and path MTUs of the
// wire.
func TestTwoHosts(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		for _, v6 := range []bool{true, false} {
			t.Run(fmt.Sprintf("MTU %d IPv6 %t", mtu, v6), func(t *testing.T) {
				twoHosts(t, netlab.New(t, 2, netlab.Config{MTU: mtu, IPv6: v6}))
			})
		}
	}
}

func twoHosts(t *testing.T, l *netlab.Lab) {
	var cs [2]*exec.Cmd
	var ins [2]io.WriteCloser
	var outs [2]*bufio.Reader
	for i := range cs {
		cs[i], ins[i], outs[i] = child(t, i, l.Prefix(i)...)
	}
	for i := range cs {
		for {
			line, err := outs[i].ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, "address ") {
				_, err := io.WriteString(ins[1-i], line)
				require.NoError(t, err)
				break
			}
		}
	}
	for i := range cs {
		rest, err := io.ReadAll(outs[i])
		require.NoError(t, err)
		require.NoError(t, cs[i].Wait(), "rank %d: %s", i, rest)
	}
}
