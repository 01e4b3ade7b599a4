package plan

import "github.com/kolo-ccl/kolo"

// Topology says where the ranks of a group are, in the group's numbering, and
// what lies between them. It is immutable.
type Topology struct {
	// Server and Rack hold for each rank the number of its server and rack.
	Server, Rack []int
	// Levels are the edges between two ranks of one server, of two servers in one
	// rack, and of two racks.
	Levels [3]kolo.Edge
	// Reduce is how many bytes per second one rank folds, reading two operands and
	// writing one, counted as the bytes of the result.
	Reduce float64
	// Medium says that all ranks share a medium that can do collectives itself.
	Medium bool
}

// OneServer is n ranks of one process with the link figures of the in-process
// driver as measured on a 2-core machine; a probe replaces them.
func OneServer(n int) *Topology {
	return &Topology{Server: make([]int, n), Rack: make([]int, n)}
}

// Ranks is the number of ranks.
func (t *Topology) Ranks() int { return len(t.Server) }
