package cluster

import (
	"fmt"
	"strings"
)

// between is the driver that joins two processes, and why it is that one.
func (m *channelMap) between(r *roster, a, b int) (driver, why string) {
	order := preferred()
	if !m.auto {
		order = m.names[1:]
	}
	var not []string
	for _, name := range order {
		reason := m.obstacle(name, r, a, b)
		if reason == "" {
			why = "the best that both have"
			if !m.auto {
				why = "Config.Transport says so"
			}
			if len(not) > 0 {
				why += "; not " + strings.Join(not, ", not ")
			}
			return name, why
		}
		not = append(not, fmt.Sprintf("%s: %s", name, reason))
	}
	return "nothing", strings.Join(not, ", ")
}

// suspect is what to check where two processes are joined by less than their hosts seem to
// have, or "".
func (m *channelMap) suspect(r *roster, a, b int, driver string) string {
	x, y := &r.Members[a].Host, &r.Members[b].Host
	if !m.auto || driver != "tcp" {
		return ""
	}
	switch one, other := len(x.RDMA) > 0, len(y.RDMA) > 0; {
	case x.Machine == y.Machine:
		return "one machine, and its memory is not shared: give both the same network namespace and user (containers: the host's, or one pod), and see that channel/shm is linked in"
	case one && other:
		return fmt.Sprintf("both have RoCE ports (%s; %s) and send by TCP: link channel/verbs in, install libibverbs, and see what kolo doctor says of it", strings.Join(x.RDMA, ", "), strings.Join(y.RDMA, ", "))
	case one != other:
		without := r.Members[a]
		if one {
			without = r.Members[b]
		}
		return fmt.Sprintf("only one end has an active RoCE port: on %s check the adapter, its driver, the cable and the port's state (rdma link, ibv_devinfo)", without.Host.Name)
	}
	return ""
}
