package channel

import (
	"sync/atomic"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// heldEngine keeps the jobs that it is given until the test lets them end. It has the memory of
// one device, space 1, whose addresses count from 0.
type heldEngine struct {
	device []byte
	jobs   []*Job
}

func (e *heldEngine) Start(_ Turn, j *Job)            { e.jobs = append(e.jobs, j) }
func (e *heldEngine) Lend(*atomic.Uint32, int, int64) {}
func (e *heldEngine) Reaches(kolo.Space) bool         { return true }
func (e *heldEngine) Close()                          {}

func (e *heldEngine) at(m kolo.Memory) []byte {
	if m.Space == kolo.HostSpace {
		return m.Host
	}
	return e.device[m.Addr:][:m.Size]
}

// end does job i, or fails it.
func (e *heldEngine) end(i int, err error) {
	j := e.jobs[i]
	for _, p := range j.Parts {
		if err == nil {
			copy(e.at(p.Dst[0]), e.at(p.Src[0]))
		}
	}
	j.Done(nil, err)
}

func onDevice(at, n int) []kolo.Memory {
	return []kolo.Memory{{Space: 1, Addr: uint64(at), Size: int64(n)}}
}

func newStaged(t *testing.T) (*owner, *fakeConn, *heldEngine) {
	c, e := &fakeConn{}, &heldEngine{device: make([]byte, 100)}
	for i := range e.device {
		e.device[i] = byte(i)
	}
	o := newOwner(t, c)
	o.ch.Stage(e)
	return o, c, e
}

func TestSendsOfADeviceAreMovedFirstAndKeepTheirOrder(t *testing.T) {
	o, c, e := newStaged(t)
	host := []kolo.Memory{kolo.HostMemory([]byte{77})}
	ops := []*Op{
		{Kind: Send, Mem: onDevice(10, 5), Size: 5, Sink: o},
		{Kind: Send, Mem: host, Size: 1, Sink: o},                              // behind the first
		{Kind: Send, Mem: host, Size: 1, Key: Key{Call: 1}, Sink: o},           // of another key
		{Kind: Send, Mem: onDevice(30, 2), Size: 2, Sink: o},                   // behind the second
		{Kind: View, Size: 9, Sink: o},                                         // takes what comes
		{Kind: Send, Mem: onDevice(0, 0), Size: 0, Key: Key{Call: 2}, Sink: o}, // nothing to move
	}
	o.do(t, func() {
		for _, op := range ops {
			o.ch.Post(op)
		}
	})
	require.Equal(t, []*Op{ops[2], ops[4], ops[5]}, c.posted)
	require.Equal(t, kolo.HostSpace, c.posted[2].Mem[0].Space)
	require.Len(t, e.jobs, 2)
	e.end(1, nil)
	require.Len(t, c.posted, 3, "what is in front of it has not been moved")
	e.end(0, nil)
	require.Equal(t, []*Op{ops[0], ops[1], ops[3]}, c.posted[3:])
	require.Equal(t, []byte{10, 11, 12, 13, 14}, ops[0].Mem[0].Host)
	require.Equal(t, []byte{30, 31}, ops[3].Mem[0].Host)
	for i := range c.posted {
		c.complete(nil, i, nil)
	}
	require.Len(t, o.heard, len(ops))
	require.Equal(t, onDevice(10, 5), ops[0].Mem, "the owner's memory again")
	require.Nil(t, ops[0].aside)
}

func TestReceivesToADeviceAreMovedBeforeTheOwnerHears(t *testing.T) {
	o, c, e := newStaged(t)
	op := &Op{Kind: Recv, Mem: append(onDevice(90, 2), onDevice(4, 1)...), Size: 3, Sink: o}
	failed := &Op{Kind: Recv, Mem: onDevice(50, 3), Size: 3, Sink: o}
	unmoved := &Op{Kind: Recv, Mem: onDevice(60, 3), Size: 3, Sink: o}
	o.do(t, func() { o.ch.Post(op); o.ch.Post(failed); o.ch.Post(unmoved); o.ch.Close(errCause) })
	for i := range c.posted {
		copy(c.posted[i].Mem[0].Host, "abc")
	}
	c.complete(nil, 0, nil)
	require.Empty(t, o.heard)
	c.complete(nil, 1, errCause)
	require.Equal(t, []*Op{failed}, o.heard)
	require.ErrorIs(t, failed.Err, errCause)
	e.end(0, nil)
	require.Equal(t, []*Op{failed, op}, o.heard)
	require.NoError(t, op.Err)
	require.Equal(t, "abc", string(e.device[90:92])+string(e.device[4:5]))
	require.Equal(t, byte(50), e.device[50])
	c.complete(nil, 2, nil)
	require.Empty(t, o.exit, "an op is on its way to the device")
	e.end(1, errCause)
	require.ErrorIs(t, unmoved.Err, errCause)
	require.ErrorContains(t, unmoved.Err, "stage memory of a device")
	require.Equal(t, []error{nil}, o.exit)
}

func TestAbortOfSendsThatAreStaged(t *testing.T) {
	o, c, e := newStaged(t)
	moving := &Op{Kind: Send, Mem: onDevice(10, 5), Size: 5, Key: Key{Group: 1}, Sink: o}
	behind := &Op{Kind: Send, Key: Key{Group: 1}, Sink: o}
	other := &Op{Kind: Send, Mem: onDevice(20, 5), Size: 5, Key: Key{Group: 2}, Sink: o}
	wrong := &Op{Kind: Send, Mem: onDevice(20, 5), Size: 5, Key: Key{Group: 3}, Sink: o}
	o.do(t, func() {
		for _, op := range []*Op{moving, behind, other, wrong} {
			o.ch.Post(op)
		}
		o.ch.Abort(1, errCause)
	})
	require.Equal(t, []*Op{behind}, o.heard)
	e.end(0, nil)
	require.Equal(t, []*Op{behind, moving}, o.heard, "its memory was in use until now")
	require.ErrorIs(t, moving.Err, errCause)
	e.end(2, kolo.ErrLost)
	require.ErrorIs(t, wrong.Err, kolo.ErrLost)
	e.end(1, nil)
	require.Equal(t, []*Op{other}, c.posted)
	c.complete(nil, 0, nil)
	require.NoError(t, other.Err)
}
