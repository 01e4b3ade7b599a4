package rc

// Vector is bytes in several pieces, addressed as one.
type Vector struct {
	list  [][]byte
	size  int64
	at    int   // a piece of list: where the last access ended
	start int64 // offset of that piece
}

// NewVector makes one vector of pieces, which it refers to.
func NewVector(list ...[]byte) Vector {
	v := Vector{list: list}
	for _, b := range list {
		v.size += int64(len(b))
	}
	return v
}

// Len is the number of bytes.
func (v *Vector) Len() int64 { return v.size }

// seek goes to the piece that holds the byte at off, which must be inside.
func (v *Vector) seek(off int64) {
	if off < v.start {
		v.at, v.start = 0, 0
	}
	for off >= v.start+int64(len(v.list[v.at])) {
		v.start += int64(len(v.list[v.at]))
		v.at++
	}
}

// piece is what can be reached in one go of n bytes from off on, which must be inside.
func (v *Vector) piece(off, n int64) []byte {
	v.seek(off)
	b := v.list[v.at][off-v.start:]
	return b[:min(n, int64(len(b)))]
}

// appendTo appends n bytes from off on to b.
func (v *Vector) appendTo(b []byte, off, n int64) []byte {
	for n > 0 {
		p := v.piece(off, n)
		b = append(b, p...)
		off, n = off+int64(len(p)), n-int64(len(p))
	}
	return b
}

// appendPieces appends the pieces that n bytes from off on lie in.
func (v *Vector) appendPieces(list [][]byte, off, n int64) [][]byte {
	for n > 0 {
		p := v.piece(off, n)
		list = append(list, p)
		off, n = off+int64(len(p)), n-int64(len(p))
	}
	return list
}

// holds says whether p, which is not empty, is the memory from off on.
func (v *Vector) holds(off int64, p []byte) bool {
	b := v.piece(off, int64(len(p)))
	return len(b) == len(p) && &b[0] == &p[0]
}

// part is a part of a vector: the payload of a packet.
type part struct {
	of     *Vector
	off, n int64
}

// write writes p from off on.
func (v *Vector) write(off int64, p []byte) {
	for len(p) > 0 {
		n := copy(v.piece(off, int64(len(p))), p)
		off, p = off+int64(n), p[n:]
	}
}

// Access is what a peer may do with a region.
type Access uint8

// The rights to a region.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
)

// Region is memory that a peer may reach: by its key, at addresses from VA on.
type Region struct {
	Key    uint32
	VA     uint64
	access Access
	bytes  Vector
	gone   bool
}

// maxRegions is the most regions of a domain: the number of different indexes in a key.
const maxRegions = 1 << 24

// Domain is a protection domain: the regions that the peers of some queue pairs may
// reach. It is used by one goroutine at a time.
type Domain struct {
	regions map[uint32]*Region
	next    uint32
}

// NewDomain makes a domain whose keys begin at a number that peers cannot guess.
func NewDomain(first uint32) *Domain {
	return &Domain{regions: map[uint32]*Region{}, next: first}
}

// Register makes the pieces one region at addresses from va on. It returns nil where
// the domain is full. The memory belongs to the domain until Deregister.
func (d *Domain) Register(va uint64, access Access, pieces ...[]byte) *Region {
	if len(d.regions) >= maxRegions {
		return nil
	}
	for d.regions[d.next] != nil {
		d.next++
	}
	r := &Region{Key: d.next, VA: va, access: access, bytes: NewVector(pieces...)}
	d.regions[r.Key] = r
	d.next += 1<<8 + 1 // the low byte of a key differs each time that its index is used
	return r
}

// Deregister takes a region back: no access reaches its memory any more.
func (d *Domain) Deregister(r *Region) {
	r.gone = true
	delete(d.regions, r.Key)
}

// find is the region with the key if n bytes from va on are inside it and may be
// accessed so, or nil.
func (d *Domain) find(key uint32, va uint64, n int64, want Access) *Region {
	r := d.regions[key]
	if r == nil || r.access&want == 0 || va < r.VA {
		return nil
	}
	if off := va - r.VA; off > uint64(r.bytes.size) || uint64(n) > uint64(r.bytes.size)-off {
		return nil
	}
	return r
}
