// Package survey holds what is known of the places of ranks and of the ways between
// them, as a value: written as JSON or as a rank table of HCCL, read back, compared with
// what was expected, and checked for what cannot be right. What a choice of algorithms
// needs of it is a plan.Topology, which Survey.Topology makes.
package survey
