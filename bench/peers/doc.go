// Command peers compares the collectives of ranks in one process with other programs, in
// one go and on one machine:
//
//	kolo      this module: rank.Run, and the typed functions of package rank
//	plain     goroutines without a runtime, in several variants; the best counts
//	openmpi   processes of Open MPI
//	gloo      processes of Gloo, AllReduce by TCP only; the best of its algorithms counts
//	floor     what memory allows: threads that wait for nobody add into scratch and copy
//	one-pass  the same, with every element loaded once and stored everywhere
//
//	make bench-peers
//	go run ./bench/peers -ranks 2,4 -sizes 1KiB,1MiB -collectives AllReduce -rounds 7
//	go run ./bench/peers -quick
//
// With -between each rank of kolo is a process of its own, joined by cluster.Join:
//
//	go run ./bench/peers -between shm -programs kolo,openmpi
//	go run ./bench/peers -between tcp -bind -programs kolo,openmpi,gloo -mpi tcp -collectives AllReduce
//
// Processes of Open MPI are bound to a core each, where there is one for each, and yield to each
// other where not. With -bind those of kolo are bound likewise, as by kolo run --bind core.
//
// A measurement is a round of short processes, one of each program for each collective and
// number of ranks, and there are several rounds: what disturbs the machine for a while
// disturbs all programs alike. A ratio is taken within each round; what is printed is
// the median of the ratios and their range. The table goes to standard output, and with
// tables in CSV and plots in SVG to the directory that -out names.
//
// Every program is started anew with the same task as arguments (job.go) and answers in
// lines that begin with RES (result.go). Those written in Go are this program itself; the
// C sources are in native. Programs that cannot run here are named with the reason.
package main
