package survey

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kolo-ccl/kolo"
)

// TableVersions are the versions that RankTable writes.
var TableVersions = []string{"1.0", "1.2", "2.0"}

// maxServerID is the longest server_id that HCCL takes.
const maxServerID = 64

// The parts of a rank table. Scalars are strings in versions 1, numbers in 2.0.
type (
	tableV1 struct {
		Status  string        `json:"status"`
		Version string        `json:"version"`
		Count   string        `json:"server_count"`
		Servers []tableServer `json:"server_list"`
		Pods    []tablePod    `json:"super_pod_list,omitempty"`
	}
	tableServer struct {
		ID      string        `json:"server_id"`
		HostIP  string        `json:"host_ip,omitempty"`
		Devices []tableDevice `json:"device,omitempty"`
	}
	tableDevice struct {
		Device string `json:"device_id"`
		Super  string `json:"super_device_id,omitempty"`
		IP     string `json:"device_ip,omitempty"`
		Rank   string `json:"rank_id"`
	}
	tablePod struct {
		ID      string        `json:"super_pod_id"`
		Servers []tableServer `json:"server_list"`
	}
	tableV2 struct {
		Version string      `json:"version"`
		Status  string      `json:"status"`
		Count   int         `json:"rank_count"`
		Ranks   []tableRank `json:"rank_list"`
	}
	tableRank struct {
		Rank   int          `json:"rank_id"`
		Local  int          `json:"local_id"`
		Device int          `json:"device_id"`
		Levels []tableLevel `json:"level_list"`
	}
	tableLevel struct {
		Layer     int            `json:"net_layer"`
		Instance  string         `json:"net_instance_id"`
		Type      string         `json:"net_type"`
		Addresses []tableAddress `json:"rank_addr_list"`
	}
	tableAddress struct {
		Type  string   `json:"addr_type"`
		Addr  string   `json:"addr"`
		Ports []string `json:"ports"`
	}
)

// RankTable writes where the ranks are as a rank table of HCCL, of version 1.0, 1.2 or
// 2.0; cluster.ParseTable reads it. Racks are super pods, or network layer 1. A rank
// table has no links and no figures. HCCL wants the ranks of a server together: where
// they are not, there is no table.
func (s *Survey) RankTable(version string) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if why := s.interleaved(); why != "" {
		return nil, fmt.Errorf("%w: a rank table: %s", kolo.ErrUnsupported, why)
	}
	var table any
	switch version {
	case "1.0", "1.2":
		t, err := s.tableV1(version)
		if err != nil {
			return nil, err
		}
		table = t
	case "2.0":
		table = s.tableV2()
	default:
		return nil, fmt.Errorf("%w: rank table of version %q; known: %v", kolo.ErrArgument, version, TableVersions)
	}
	text, err := json.MarshalIndent(table, "", " ")
	return append(text, '\n'), err
}

func (s *Survey) tableV1(version string) (*tableV1, error) {
	names, ranks := s.hosts()
	t := &tableV1{Status: "completed", Version: version, Count: strconv.Itoa(len(names))}
	inPod := map[string]int{}
	for i, name := range names {
		first := &s.Places[ranks[name][0]]
		server := tableServer{ID: serverID(name, i)}
		if len(server.ID) > maxServerID {
			return nil, fmt.Errorf("%w: host %.80q: HCCL takes names of at most %d bytes", kolo.ErrUnsupported, name, maxServerID)
		}
		if len(first.Addresses) > 0 {
			server.HostIP = first.Addresses[0]
		}
		for _, r := range ranks[name] {
			p := &s.Places[r]
			d := tableDevice{Device: strconv.Itoa(p.Device), Rank: strconv.Itoa(int(r))}
			if len(p.Addresses) > 0 {
				d.IP = p.Addresses[0]
			}
			if version == "1.2" {
				d.Super = strconv.Itoa(inPod[p.Rack])
				inPod[p.Rack]++
			}
			server.Devices = append(server.Devices, d)
		}
		t.Servers = append(t.Servers, server)
		if version == "1.2" {
			id := podID(first.Rack)
			k := slices.IndexFunc(t.Pods, func(p tablePod) bool { return p.ID == id })
			if k < 0 {
				k, t.Pods = len(t.Pods), append(t.Pods, tablePod{ID: id})
			}
			t.Pods[k].Servers = append(t.Pods[k].Servers, tableServer{ID: server.ID})
		}
	}
	return t, nil
}

func (s *Survey) tableV2() *tableV2 {
	t := &tableV2{Version: "2.0", Status: "completed", Count: len(s.Places)}
	names, hosts := s.hosts()
	for r, p := range s.Places {
		rank := kolo.Rank(r)
		var addresses []tableAddress
		for i, a := range p.Addresses {
			if i == 0 {
				addresses = append(addresses, tableAddress{Type: addressType(a), Addr: a, Ports: []string{"d2h"}})
			}
		}
		t.Ranks = append(t.Ranks, tableRank{Rank: r, Local: slices.Index(hosts[p.Host], rank), Device: p.Device, Levels: []tableLevel{
			{Layer: 0, Instance: serverID(p.Host, slices.Index(names, p.Host)), Type: "TOPO_FILE_DESC", Addresses: addresses},
			{Layer: 1, Instance: podID(p.Rack), Type: "CLOS", Addresses: addresses},
		}})
	}
	return t
}

func addressType(a string) string {
	if ip, err := netip.ParseAddr(a); err == nil && ip.Is6() {
		return "IPV6"
	}
	return "IPV4"
}

// serverID is a host's name, or a number where it has none.
func serverID(host string, i int) string {
	if host == "" {
		return fmt.Sprintf("node_%d", i)
	}
	return host
}

// podID is a rack's name, or that of the only one.
func podID(rack string) string {
	if rack == "" {
		return "0"
	}
	return rack
}

// interleaved says which ranks of a host are not together, "" if all are.
func (s *Survey) interleaved() string {
	last := map[string]int{}
	for r, p := range s.Places {
		if q, ok := last[p.Host]; ok && q != r-1 {
			return fmt.Sprintf("ranks %d and %d are on host %q and those between them are not; HCCL wants the ranks of a server one after the other", q, r, p.Host)
		}
		last[p.Host] = r
	}
	return ""
}
