package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/kolo-ccl/kolo"
)

// Table is what a rank table of HCCL says: where each rank is.
type Table struct {
	Version string
	Ranks   []TableRank // by rank
}

// TableRank is one rank of a Table.
type TableRank struct {
	Server   string // server_id; in version 2.0 the instance of network layer 0
	Pod      string // super pod, or the instance of layer 1; "" if none
	HostIP   string // of the host, or in version 2.0 the first address; "" if none
	HostPort int    // 0 if none
	Device   int
	DeviceIP string // "" if none
}

// maxTable is the largest rank table that is read.
const maxTable = 64 << 20

// ReadTable reads a rank table of version 1.0, 1.2 or 2.0, as RANK_TABLE_FILE names it.
func ReadTable(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("rank table: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTable+1)) // a device says that it is empty, and has no end
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("rank table: %w", err)
	}
	if len(b) > maxTable {
		return nil, fmt.Errorf("%w: rank table %s has more than %d MiB", kolo.ErrLimit, path, maxTable>>20)
	}
	t, err := ParseTable(b)
	if err != nil {
		return nil, fmt.Errorf("rank table %s: %w", path, err)
	}
	return t, nil
}

// number is a JSON number, or a string with one: versions 1 write the latter.
type number int

// UnmarshalJSON reads either.
func (n *number) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(b) > 1 && b[0] == '"' {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	}
	if s == "" || s == "null" {
		return nil
	}
	v, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%w: %q is no number", kolo.ErrArgument, s)
	}
	*n = number(v)
	return nil
}

// tableFile is the file of every version.
type tableFile struct {
	Version  string
	Status   string
	Servers  []tableServer `json:"server_list"`
	Count    *number       `json:"server_count"`
	Pods     []tablePod    `json:"super_pod_list"`
	RankList []tableV2     `json:"rank_list"`
	RankNum  *number       `json:"rank_count"`
}

type tableServer struct {
	ID      string `json:"server_id"`
	HostIP  string `json:"host_ip"`
	Devices []struct {
		Rank     *number `json:"rank_id"`
		ID       number  `json:"device_id"`
		IP       string  `json:"device_ip"`
		HostPort number  `json:"host_port"`
	} `json:"device"`
}

type tablePod struct {
	ID      string `json:"super_pod_id"`
	Servers []struct {
		ID string `json:"server_id"`
	} `json:"server_list"`
}

type tableV2 struct {
	Rank     *number `json:"rank_id"`
	Device   number  `json:"device_id"`
	HostPort number  `json:"host_port"`
	Levels   []struct {
		Layer     number `json:"net_layer"`
		Instance  string `json:"net_instance_id"`
		Addresses []struct {
			Type string `json:"addr_type"`
			Addr string `json:"addr"`
		} `json:"rank_addr_list"`
	} `json:"level_list"`
}

// ParseTable reads the text of a rank table.
func ParseTable(b []byte) (*Table, error) {
	var f tableFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", kolo.ErrArgument, err)
	}
	if f.Status != "completed" && (f.Version != "2.0" || f.Status != "") {
		return nil, fmt.Errorf("%w: its status is %q: only a table that is completed can be used; is something still writing it?", kolo.ErrArgument, f.Status)
	}
	var list []placed
	var err error
	switch f.Version {
	case "1.0", "1.2":
		list, err = f.v1()
	case "2.0":
		list, err = f.v2()
	default:
		return nil, fmt.Errorf("%w: version %q; known: 1.0, 1.2, 2.0", kolo.ErrArgument, f.Version)
	}
	if err != nil {
		return nil, err
	}
	return assemble(f.Version, list)
}

// placed is a rank as it stands in the file.
type placed struct {
	rank int
	TableRank
}

// assemble puts the ranks in order.
func assemble(version string, list []placed) (*Table, error) {
	if len(list) == 0 || len(list) > maxRanks {
		return nil, fmt.Errorf("%w: it has %d ranks", kolo.ErrArgument, len(list))
	}
	t := &Table{Version: version, Ranks: make([]TableRank, len(list))}
	seen := make([]bool, len(list))
	for _, p := range list {
		if p.rank < 0 || p.rank >= len(list) {
			return nil, fmt.Errorf("%w: rank_id %d in a table of %d ranks", kolo.ErrArgument, p.rank, len(list))
		}
		if seen[p.rank] {
			return nil, fmt.Errorf("%w: rank_id %d stands there twice", kolo.ErrArgument, p.rank)
		}
		seen[p.rank], t.Ranks[p.rank] = true, p.TableRank
	}
	return t, nil
}

// v1 reads versions 1.0 and 1.2.
func (f *tableFile) v1() (list []placed, err error) {
	if f.Count != nil && int(*f.Count) != len(f.Servers) {
		return nil, fmt.Errorf("%w: server_count is %d, and server_list has %d", kolo.ErrArgument, int(*f.Count), len(f.Servers))
	}
	pod := map[string]string{}
	for _, p := range f.Pods {
		for _, s := range p.Servers {
			pod[s.ID] = p.ID
		}
	}
	names := map[string]bool{}
	for _, s := range f.Servers {
		if s.ID == "" || names[s.ID] {
			return nil, fmt.Errorf("%w: server_id %q is empty or stands there twice", kolo.ErrArgument, s.ID)
		}
		names[s.ID] = true
		for _, d := range s.Devices {
			if d.Rank == nil {
				return nil, fmt.Errorf("%w: a device of server %q has no rank_id", kolo.ErrArgument, s.ID)
			}
			list = append(list, placed{int(*d.Rank), TableRank{Server: s.ID, Pod: pod[s.ID], HostIP: s.HostIP,
				HostPort: int(d.HostPort), Device: int(d.ID), DeviceIP: d.IP}})
		}
	}
	return list, nil
}

// v2 reads version 2.0.
func (f *tableFile) v2() (list []placed, err error) {
	if f.RankNum != nil && int(*f.RankNum) != len(f.RankList) {
		return nil, fmt.Errorf("%w: rank_count is %d, and rank_list has %d", kolo.ErrArgument, int(*f.RankNum), len(f.RankList))
	}
	for _, r := range f.RankList {
		if r.Rank == nil {
			return nil, fmt.Errorf("%w: a rank has no rank_id", kolo.ErrArgument)
		}
		p := placed{int(*r.Rank), TableRank{Device: int(r.Device), HostPort: int(r.HostPort)}}
		for _, l := range r.Levels {
			switch l.Layer {
			case 0:
				p.Server = l.Instance
			case 1:
				p.Pod = l.Instance
			}
			for _, a := range l.Addresses {
				if a.Type != "EID" && p.HostIP == "" {
					p.HostIP = a.Addr
				}
			}
		}
		list = append(list, p)
	}
	return list, nil
}
