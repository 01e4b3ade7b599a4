package plan

// NB, the non-uniform Bruck: NHR with the opposite direction. In reduce-scatter
// position r sends to r+2^t what goes to r+2^t, then every 2^(t+1) on.
// HCCL's documents on NB.
var nb = flat(Algorithm{
	Name:   "nb",
	Source: "HCCL, non-uniform Bruck",
}, nhrPhases(-1))
