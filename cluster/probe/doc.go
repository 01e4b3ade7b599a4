// Package probe measures what lies between the ranks of a world: who answers at the other
// end of each link, latency, bandwidth in each direction, and how far the hosts' clocks
// are apart. All ranks get the same survey.
package probe
