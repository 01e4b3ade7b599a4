package plan

// Terms is what an algorithm costs in the alpha-beta-gamma (Hockney) model: the
// number of message rounds, the bytes that the busiest rank sends one after the other,
// and the bytes that it folds. Level l of a hierarchical algorithm has its own terms.
type Terms [3]Level

// Level is the part of Terms that crosses one level of the topology.
type Level struct{ Rounds, Bytes, Reduced float64 }
