// Package driver is what drivers of devices are built on: the handles that users
// hold, the order of streams, the tables of what is open, what is refused, and the
// sequence of an end. A driver writes only what its hardware does.
//
//	Core     one per driver: the lock, the order, the devices that are open
//	Device   an npu.Device: memory, streams, events, notifies, health, loss, close
//	Stream   an npu.Stream
//	Event    an npu.Event
//	Notify   an npu.Notify
//	Task     what a stream does, while it does it
//	Engine   the part of a channel.Engine that is not about hardware
//
// The driver's own part of each is behind an interface: Hooks for the Core,
// DeviceHooks, StreamHooks. A task goes this way:
//
//	user     Stream.Copy(dst, src)
//	Stream   the lock; is the stream usable, is the memory live and in reach? Hold it
//	driver   StreamHooks.Copy notes in the Task how it is done, or refuses
//	Core     npu.Order says that all before the task has ended (or, where the driver
//	         calls Core.Pass, that the device keeps it behind the rest)
//	driver   Hooks.Begin gives it to the hardware and returns
//	driver   Task.End, when it has ended: the memory is released, the stream goes on
//
// # The lock
//
// There is one for all devices of a driver, since streams of one device wait for
// notifies of another. Enter takes it for something that comes from outside, Leave
// gives it back after everything that may begin has begun. Where a method of this
// package needs the lock its comment says so; all others take it themselves. Users'
// functions and calls that may take time run without it.
package driver
