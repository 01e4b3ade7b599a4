package survey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// file is a Survey as JSON: times in nanoseconds, bandwidths in bytes per second, links
// by their names. Ranks and links may come in any order; a field that is not known is an
// error, so that a misspelt one is not lost.
//
//	{"kolo_topology": 1,
//	 "ranks": [{"rank": 0, "process": 0, "host": "n1", "rack": "a", "addresses": ["10.0.0.1"], "device": 0}, ...],
//	 "links": [{"from": 0, "to": 1, "link": "shm", "latency_ns": 2000, "bandwidth": 8e9},
//	           {"from": 1, "to": 0, "link": "tcp", "lost": "deadline exceeded"}, ...]}
type file struct {
	Version int        `json:"kolo_topology"`
	Ranks   []fileRank `json:"ranks"`
	Links   []fileLink `json:"links"`
}

type fileRank struct {
	Rank      *int     `json:"rank"`
	Process   *int     `json:"process,omitempty"` // default: one of its own
	Host      string   `json:"host"`
	Rack      string   `json:"rack,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Device    int      `json:"device"`
}

type fileLink struct {
	From      kolo.Rank `json:"from"`
	To        kolo.Rank `json:"to"`
	Link      string    `json:"link"`
	Latency   int64     `json:"latency_ns"`
	Bandwidth float64   `json:"bandwidth"`
	Lost      string    `json:"lost,omitempty"`
}

// version is the form of the file.
const version = 1

// JSON writes the survey, a line for each rank and link. Parse reads it.
func (s *Survey) JSON() ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"kolo_topology\": %d,\n \"ranks\": [", version)
	line := func(i int, v any) error {
		text, err := json.Marshal(v)
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  ")
		b.Write(text)
		return err
	}
	for r, p := range s.Places {
		if err := line(r, fileRank{&r, &p.Process, p.Host, p.Rack, p.Addresses, p.Device}); err != nil {
			return nil, err
		}
	}
	b.WriteString("],\n \"links\": [")
	for i, w := range s.Ways {
		l := fileLink{w.From, w.To, w.Edge.Link.String(), int64(w.Edge.Latency), math.Round(w.Edge.Bandwidth), w.Lost}
		if l.Bandwidth == 0 && w.Edge.Bandwidth > 0 {
			l.Bandwidth = w.Edge.Bandwidth
		}
		if err := line(i, l); err != nil {
			return nil, err
		}
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}

// Parse reads what JSON writes, or a person.
func Parse(text []byte) (*Survey, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var f file
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: topology: %w", kolo.ErrArgument, err)
	}
	if d.More() {
		return nil, fmt.Errorf("%w: topology: something follows it", kolo.ErrArgument)
	}
	if f.Version != version {
		return nil, fmt.Errorf("%w: topology: kolo_topology is %d; want %d", kolo.ErrArgument, f.Version, version)
	}
	s := &Survey{Places: make([]Place, len(f.Ranks))}
	seen := make([]bool, len(f.Ranks))
	for i, r := range f.Ranks {
		if r.Rank == nil || *r.Rank < 0 || *r.Rank >= len(seen) || seen[*r.Rank] {
			return nil, fmt.Errorf("%w: topology: entry %d of ranks has no rank, one that is there twice, or one that is none of %d", kolo.ErrArgument, i, len(seen))
		}
		p := Place{Process: *r.Rank, Host: r.Host, Rack: r.Rack, Addresses: r.Addresses, Device: r.Device}
		if r.Process != nil {
			p.Process = *r.Process
		}
		seen[*r.Rank], s.Places[*r.Rank] = true, p
	}
	for _, l := range f.Links {
		link, err := parseLink(l.Link)
		if err != nil {
			return nil, fmt.Errorf("topology: link of rank %d and rank %d: %w", l.From, l.To, err)
		}
		s.Ways = append(s.Ways, Way{l.From, l.To, kolo.Edge{Link: link, Latency: time.Duration(l.Latency), Bandwidth: l.Bandwidth}, l.Lost})
	}
	s.Sort()
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	return s, nil
}

// links are the kinds that ways have.
var links = []kolo.Link{kolo.LinkHCCS, kolo.LinkSHM, kolo.LinkRoCE, kolo.LinkPCIe, kolo.LinkTCP}

func parseLink(name string) (kolo.Link, error) {
	i := slices.IndexFunc(links, func(l kolo.Link) bool { return l.String() == name })
	if i < 0 {
		return 0, fmt.Errorf("%w: no kind of link %.40q; known: %v", kolo.ErrArgument, name, links)
	}
	return links[i], nil
}
