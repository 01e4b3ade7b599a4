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
//
// # The environment
//
// What launchers say of a process; the first that is there counts:
//
//	KOLO_RANKS, WORLD_SIZE                       ours: all ranks of this process, as 0,1
//	RANK, WORLD_SIZE                             of kolo run and torchrun
//	SLURM_PROCID, SLURM_NTASKS                   srun's
//	OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   mpirun's
//	RANK_TABLE_FILE with RANK_ID                 HCCL's; the size is the table's
//
// The rendezvous is KOLO_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT; with Slurm else the
// first node of the job, with Open MPI on one host else this host, both with a port made
// of the job's number; with a rank table else the host_ip of rank 0.
//
// The job is KOLO_JOB, TORCHELASTIC_RUN_ID, or the number that Slurm or Open MPI gives; the
// attempt TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT. HCCL_IF_IP is what is told to
// the others as this host's address, or HCCL_SOCKET_IFNAME chooses the interfaces whose
// addresses are told (see tcp.Config.Interfaces); HCCL_CONNECT_TIMEOUT is how many seconds Join waits.
// KOLO_MEASURE is what a join measures: quick, thorough or off.
//
// Drivers read what is theirs: tcp those three; roce HCCL_IF_IP, HCCL_RDMA_TC, HCCL_RDMA_TIMEOUT,
// HCCL_RDMA_RETRY_CNT, HCCL_RDMA_QPS_PER_CONNECTION and HCCL_MULTI_QP_THRESHOLD. How the
// World runs is Config.Rank alone; rank.ConfigFromEnv makes one of HCCL_ALGO and the like.
package cluster
