// Package sim is a simulated NPU: devices with engines and links of stated rates, and
// real bytes behind them, so that results are computed and times are modelled. It is
// the device driver "sim".
//
// # The model
//
// What takes time is a use of lanes: a lane is an engine or one direction of a link,
// which serves one use at a time (the copy engines of a device: several), first come
// first, larger priority before smaller, without preemption. A use that needs two
// lanes takes both at once.
//
//	lane             what                       how long
//	npu0/compute     Launch                     Launch + max(FLOPs/FLOPS, Bytes/HBM), or Launch + Time
//	npu0/vector      Reduce, folds of jobs      Launch + bytes read and written / HBM
//	npu0/copy        copies inside the device   Launch + 2 * bytes / HBM
//	hccs 0>1         two devices of a server    bytes / HCCS, then its latency
//	roce 0 out, 9 in two servers: both ports    bytes / RoCE, then its latency
//	pcie 0 in, out   the host and a device      bytes / PCIe, then its latency
//
// A link is free again after bytes / rate; the latency is on top, until the bytes are
// there. Times are whole nanoseconds, rounded up. HBM is not a lane: engines do not
// slow each other down.
//
// A task has its effect on the bytes when it ends. A task that does not wait for
// what it reads finds old bytes, and one that overwrites what is still being read
// spoils it, as on hardware.
//
// # The clock
//
// The cluster runs on timers. In a testing/synctest bubble they are exact: every
// begin and end is at the nanosecond that the model says. Outside, the same times
// come in real time; a timer that is late delays what the host sees, but not the
// model: what follows a task begins at the moment the task had to end. With
// Config.Fast no time is waited at all, and the cluster's own clock jumps from one
// event to the next.
//
// Kernels, callbacks and the bytes of all tasks run one after the other on one
// goroutine at a time, which lives while there is something to do.
package sim
