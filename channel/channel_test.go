package channel

import (
	"context"
	"errors"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeConn keeps what it is given; the test completes it.
type fakeConn struct {
	posted   []*Op
	aborts   []uint64
	released int
	closed   error
	panics   bool
}

func (c *fakeConn) Post(t Turn, op *Op) {
	switch {
	case c.panics:
		panic("no such register")
	case c.closed != nil:
		op.Complete(t, c.closed)
	default:
		c.posted = append(c.posted, op)
	}
}

func (c *fakeConn) Release(Turn, *Op)                 { c.released++ }
func (c *fakeConn) Abort(_ Turn, g uint64, _ error)   { c.aborts = append(c.aborts, g) }
func (c *fakeConn) Close(_ Turn, cause error)         { c.closed = cause }
func (c *fakeConn) complete(t Turn, i int, err error) { c.posted[i].Complete(t, err) }

// owner is an actor on the channel's shard that does what it is told, and hears of
// completions.
type owner struct {
	shard *actor.Shard
	ref   actor.Ref[func()]
	ch    *Channel
	heard []*Op
	inDo  bool // a task of the owner runs
	turns int  // completions that came on the shard, outside of tasks
	exit  []error
}

func (o *owner) Handle(f func()) error {
	o.inDo = true
	f()
	o.inDo = false
	return nil
}

func (o *owner) Complete(op *Op) {
	o.heard = append(o.heard, op)
	if !o.inDo {
		o.turns++
	}
}

func (o *owner) do(t *testing.T, f func()) { require.NoError(t, o.ref.Tell(f)) }

func newOwner(t *testing.T, conn Conn) *owner {
	sys := actor.NewSystem(actor.Config{})
	t.Cleanup(func() { require.NoError(t, sys.Close(context.Background())) })
	o := &owner{shard: sys.NewShard("a")}
	var err error
	o.ref, err = actor.Spawn[func()](o.shard, actor.Props{Name: "owner"}, o)
	require.NoError(t, err)
	o.ch, err = Spawn(o.shard, "link", 1, conn, func(err error) { o.exit = append(o.exit, err) })
	require.NoError(t, err)
	return o
}

var errCause = errors.New("cause")

func TestPostCompletesOnceOnTheShard(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	op := &Op{Kind: Send, Size: 8, Sink: o}
	for range 3 { // an op is used again
		o.do(t, func() { o.ch.Post(op) })
		require.Len(t, c.posted, 1)
		c.complete(nil, 0, nil)
		c.posted = nil
	}
	require.Equal(t, []*Op{op, op, op}, o.heard)
	require.Equal(t, 3, o.turns)
}

func TestCommandsKeepTheirOrder(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	o.do(t, func() {
		o.ch.Post(&Op{Sink: o})
		o.ch.Abort(7, errCause)
		o.ch.Close(errCause)
		o.ch.Post(&Op{Sink: o})
		o.ch.Release(&Op{})
	})
	require.Len(t, c.posted, 1)
	require.Equal(t, []uint64{7}, c.aborts)
	require.ErrorIs(t, c.closed, errCause)
	require.Equal(t, 1, c.released)
	require.Len(t, o.heard, 1, "what is posted after Close completes")
	require.ErrorIs(t, o.heard[0].Err, errCause)
	c.complete(nil, 0, nil)
	require.Len(t, o.heard, 2)
}

// A move that is in progress at Close completes later, still on the shard: the
// actor lives until then.
func TestCompletionAfterCloseComesOnTheShard(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	o.do(t, func() { o.ch.Post(&Op{Sink: o}); o.ch.Post(&Op{Sink: o}) })
	o.do(t, func() { o.ch.Close(errCause) })
	require.Empty(t, o.exit, "ops are open")
	started, free := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	go func() { // ended below
		defer close(ended)
		_ = o.ref.Tell(func() { close(started); <-free })
	}()
	<-started // the shard is busy
	c.complete(nil, 0, nil)
	require.Empty(t, o.heard, "a completion beside the shard")
	close(free)
	<-ended
	require.Len(t, o.heard, 1)
	c.complete(nil, 1, nil)
	require.Len(t, o.heard, 2)
	require.Equal(t, []error{nil}, o.exit)
}

// Between the handling of Close and the end of the actor a message is taken but
// not handled: no op may get lost in there.
func TestPostBehindClose(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	posted := 0
	post := func() { o.ch.Post(&Op{Sink: o}); posted++ }
	local := o.ref.From(o.shard)
	o.do(t, func() {
		post()
		o.ch.Close(errCause)
		post()
		_ = local.Tell(func() { // in the queue behind the close, in front of the stop
			post()
			c.complete(o.shard, 0, nil)
			_ = local.Tell(func() {
				post()
				_ = local.Tell(post)
			})
		})
	})
	o.do(t, post)
	require.Equal(t, 6, posted)
	require.Len(t, o.heard, posted)
	require.Equal(t, []error{nil}, o.exit)
	require.ErrorIs(t, o.heard[posted-1].Err, kolo.ErrLost)
}

func TestManyOpsWaitForTheirTurn(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	const count = 100_000
	ops := make([]Op, count)
	o.do(t, func() {
		for i := range ops {
			ops[i].Sink = o
			o.ch.Post(&ops[i])
		}
		o.ch.Abort(1, errCause)
	})
	ended := make(chan struct{})
	o.do(t, func() { close(ended) })
	<-ended
	require.Equal(t, count, len(c.posted))
	require.Equal(t, 1, len(c.aborts))
}

func TestPanicOfADriverEndsTheOpsOfItsChannel(t *testing.T) {
	c := &fakeConn{panics: true}
	o := newOwner(t, c)
	for n := range 3 {
		o.do(t, func() { o.ch.Post(&Op{Sink: o}) })
		require.Len(t, o.heard, n+1)
		require.ErrorIs(t, o.heard[n].Err, kolo.ErrPanic)
	}
	require.ErrorIs(t, c.closed, kolo.ErrPanic, "what the driver has taken is asked back")
	o.do(t, func() { o.ch.Close(errCause) })
	require.Equal(t, []error{nil}, o.exit)
}

func TestSecondCompletionIsABug(t *testing.T) {
	c := &fakeConn{}
	o := newOwner(t, c)
	o.do(t, func() { o.ch.Post(&Op{Sink: o}) })
	c.complete(nil, 0, nil)
	require.Panics(t, func() { c.complete(nil, 0, nil) })
	require.Len(t, c.posted, 1)
	require.Len(t, o.heard, 1)
}

func TestSpawnWithoutOnExit(t *testing.T) {
	sys := actor.NewSystem(actor.Config{})
	_, err := Spawn(sys.NewShard("a"), "link", 1, &fakeConn{}, nil)
	require.NoError(t, err)
	require.NoError(t, sys.Close(context.Background()))
}

func TestSpawnInAClosedSystem(t *testing.T) {
	sys := actor.NewSystem(actor.Config{})
	require.NoError(t, sys.Close(context.Background()))
	_, err := Spawn(sys.NewShard("a"), "link", 1, &fakeConn{}, nil)
	require.ErrorIs(t, err, kolo.ErrClosed)
}
