package survey

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// unlike is how many times better than one direction of a link the other may be.
const unlike = 2

// Lint says what cannot be right in a survey, or will be slow: servers of unequal size,
// ranks of a host that are not together, addresses that two hosts have, loopback between
// hosts, IPv4 here and IPv6 there, links that are there one way only or much better one
// way than the other, lost ones, and pairs of one distance that are very unlike.
func (s *Survey) Lint() []Finding {
	var l findings
	s.lintServers(&l)
	s.lintAddresses(&l)
	s.lintWays(&l)
	return l
}

// lintServers looks at which host has which ranks.
func (s *Survey) lintServers(l *findings) {
	names, ranks := s.hosts()
	least, most := names[0], names[0]
	for _, n := range names {
		if len(ranks[n]) < len(ranks[least]) {
			least = n
		}
		if len(ranks[n]) > len(ranks[most]) {
			most = n
		}
	}
	if len(ranks[least]) != len(ranks[most]) {
		l.add("unequal", ranks[least], []string{"that no rank is missing, and no slot of a host file"},
			"host %q has %d ranks and host %q has %d; two-level algorithms need equal ones", least, len(ranks[least]), most, len(ranks[most]))
	}
	racks := map[string]string{}
	for r, p := range s.Places {
		if rack, ok := racks[p.Host]; ok && rack != p.Rack {
			l.add("contradiction", []kolo.Rank{kolo.Rank(r)}, nil, "host %q is in rack %q and in rack %q", p.Host, rack, p.Rack)
		}
		racks[p.Host] = p.Rack
	}
	if why := s.interleaved(); why != "" {
		l.add("interleaved", nil, []string{"the order of the host file; HCCL takes no rank table of this"}, "%s", why)
	}
}

// lintAddresses looks at the hosts' first addresses.
func (s *Survey) lintAddresses(l *findings) {
	names, ranks := s.hosts()
	owner := map[string]string{}
	family := map[bool]string{}
	for _, n := range names {
		p := &s.Places[ranks[n][0]]
		if len(names) > 1 && len(p.Addresses) == 0 {
			l.add("address", ranks[n], nil, "host %q has no address", n)
		}
		for _, a := range p.Addresses {
			if other, ok := owner[a]; ok && other != n {
				l.add("address", slices.Concat(ranks[other], ranks[n]), checkCable, "hosts %q and %q both have the address %s", other, n, a)
			}
			owner[a] = n
			ip, err := netip.ParseAddr(a)
			if err != nil {
				l.add("address", ranks[n], nil, "%q of host %q is no address", a, n)
			} else if ip.IsLoopback() && len(names) > 1 {
				l.add("address", ranks[n], []string{"HCCL_IF_IP, Config.Advertise, and the hosts file: a host's own name often stands for 127.0.1.1"},
					"host %q tells others the loopback address %s", n, a)
			}
		}
		if len(p.Addresses) > 0 {
			if ip, err := netip.ParseAddr(p.Addresses[0]); err == nil {
				family[ip.Is6()] = n
			}
		}
	}
	if len(family) == 2 {
		l.add("address", nil, nil, "host %q is known by IPv4 and host %q by IPv6", family[false], family[true])
	}
	devices := map[string]kolo.Rank{}
	for r, p := range s.Places {
		key := fmt.Sprintf("device %d of host %q", p.Device, p.Host)
		if q, ok := devices[key]; ok {
			l.add("device", []kolo.Rank{q, kolo.Rank(r)}, nil, "ranks %d and %d both have %s", q, r, key)
		}
		devices[key] = kolo.Rank(r)
	}
}

// lintWays looks at the links.
func (s *Survey) lintWays(l *findings) {
	for _, w := range s.Ways {
		pair := []kolo.Rank{w.From, w.To}
		back, ok := s.way(w.To, w.From)
		switch {
		case w.Lost != "" && (!ok || back.Lost == ""):
			l.add("one-way", pair, checkLost, "nothing passes from rank %d to rank %d, but the other way it does: %s", w.From, w.To, w.Lost)
		case w.Lost != "" && w.From < w.To:
			l.add("lost", pair, checkLost, "nothing passes between rank %d and rank %d: %s", w.From, w.To, w.Lost)
		case w.Lost != "":
		case !ok:
			l.add("one-way", pair, checkLost, "there is a link from rank %d to rank %d and none back", w.From, w.To)
		case back.Lost != "":
		case w.Edge.Link != back.Edge.Link && w.From < w.To:
			l.add("asymmetric", pair, fallenChecks(min(w.Edge.Link, back.Edge.Link), max(w.Edge.Link, back.Edge.Link)),
				"rank %d reaches rank %d by %v, and is reached by %v", w.From, w.To, w.Edge.Link, back.Edge.Link)
		case w.Edge.Bandwidth*unlike < back.Edge.Bandwidth:
			l.add("asymmetric", pair, slowChecks(w.Edge.Link), "%v gives %s from rank %d to rank %d, and %s back", w.Edge.Link, kolo.RateString(w.Edge.Bandwidth), w.From, w.To, kolo.RateString(back.Edge.Bandwidth))
		}
	}
	for _, c := range s.Classes() {
		if b := c.Bandwidth; b[0]*3 < b[1] {
			l.add("uneven", nil, slowChecks(c.Link), "the slowest %v link of ranks that share %s gives %s, the middle one %s", c.Link, shared(c.Distance), kolo.RateString(b[0]), kolo.RateString(b[1]))
		}
	}
}

// shared is what ranks at a distance have in common.
func shared(distance string) string {
	if distance == "racks" {
		return "nothing"
	}
	return "a " + distance
}
