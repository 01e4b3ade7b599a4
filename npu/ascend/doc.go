// Package ascend is the device driver "ascend": Huawei Ascend NPUs through AscendCL,
// whose library is looked for and bound when the driver is opened. It needs no C
// compiler and no header, and a program that links it runs where no NPU is: opening
// then fails with one error that says what was looked for and where.
//
// # Where the work is done
//
//	user's goroutine   checks a call, puts it into npu.Order, wakes the device's thread
//	device's thread    one OS-locked goroutine per device: every AscendCL call of the
//	                   device but the next line's (device, context and error text are
//	                   kept per thread by AscendCL)
//	report thread      one more per device: aclrtProcessReport, which calls back from
//	                   markers that were put into streams; they say how far a stream is
//	calls              one goroutine per device: callbacks of users and folds on the host
//
// Copies, reductions, records and waits for events are given to the device ahead of
// time, and its streams keep their order. A callback, a signal and an Await are the
// host's: a stream comes to them when a marker says that all before has ended. Notifies
// are bits of this process, since AscendCL's can neither fail nor be reset in order.
//
// Every 100 ms the device's thread asks about streams that have not moved: a device
// that is lost calls back no more.
//
// # What is computed where
//
// Stream.Reduce uses aclrtReduceAsync for sum, maximum and minimum of int8, int16,
// int32, float16, bfloat16 and float32. Everything else is copied to the host, folded
// there, and copied back: right, but slow. Driver.Engine folds on devices only where
// the bits are those of the host: integers and float32.
//
// # Build tag
//
// The binding uses github.com/ebitengine/purego on linux/amd64 and linux/arm64. The tag
// noacl leaves it out; a program without cgo is then a static binary again.
//
// # What was seen
//
// The driver was run against package standin, which is not an NPU. No NPU has been
// seen. ACL_LIB points the tests at a real library.
package ascend
