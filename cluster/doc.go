// Package cluster joins ranks of several processes, on one host or many, into one
// World. Join finds the other processes through a rendezvous, Open does so for several
// ranks of a process.
//
//	w, err := cluster.Join(ctx, cluster.Config{}) // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//
// The process of rank 0 serves the rendezvous, or a standing one does (Serve). When all
// ranks have come it gives each the list of members and an epoch; from then on it is not
// needed. Each two processes share one gRPC stream for what the hubs of their groups have
// to tell each other, and for heartbeats; data goes by the channel drivers: hccs inside a
// process, shm between those of a host, tcp between hosts.
package cluster
