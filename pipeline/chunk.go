package pipeline

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/rank"
)

// chunk is the actor of one chunk of a tensor. It hears of its call's stages.
//
//	        computed         on the wire         reduced
//	waiting --------> queued -----------> reducing ------> done
//	   |                 |                                   ^
//	   +-----------------+----------- failed ----------------+
//
// A step makes it wait again.
type chunk struct {
	index int
	line  *line
	self  actor.Ref[*heard]
	slots [3]heard // one message for each stage

	state state
	times [3]time.Time // of the stages
	err   error
}

// state is where a chunk is.
type state uint8

const (
	waiting state = iota
	queued
	reducing
	done
)

// heard is the message that a chunk's call has come to a stage.
type heard struct {
	stage rank.Stage
	at    time.Time
	err   error
}

func newChunk(l *line, i int) (*chunk, error) {
	c := &chunk{index: i, line: l, state: done}
	ref, err := actor.Spawn[*heard](l.shard, actor.Props{Name: fmt.Sprintf("chunk %d of %s", i, l.name), Dropped: c.dropped}, c)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	c.self = ref
	return c, nil
}

// watch is told the stages by the call.
func (c *chunk) watch(turn *actor.Shard, s rank.Stage, err error) {
	m := &c.slots[s-rank.StageReady]
	*m = heard{stage: s, at: c.line.now(), err: err}
	if c.self.From(turn).Tell(m) != nil { // the world has been closed under the step
		if s == rank.StageEnded {
			c.end(m)
		}
	}
}

// Handle takes the next state.
func (c *chunk) Handle(m *heard) error {
	switch {
	case m.stage == rank.StageEnded && c.state != done:
		c.end(m)
	case m.stage == rank.StageReady && c.state == waiting:
		c.state, c.times[0] = queued, m.at
	case m.stage == rank.StageBegun && c.state == queued:
		c.state, c.times[1] = reducing, m.at
	default:
		panic(fmt.Sprintf("pipeline: chunk %d is in state %d and heard that its call has %v", c.index, c.state, m.stage))
	}
	return nil
}

// dropped ends the step also if the actor has failed before its last message: who waits
// for the step would wait for ever.
func (c *chunk) dropped(m any, err error) {
	if h := m.(*heard); h.stage == rank.StageEnded {
		c.end(&heard{stage: h.stage, at: h.at, err: cmp.Or(h.err, err)})
	}
}

// end is the last of a step: whoever waits for it may then read the chunk.
func (c *chunk) end(m *heard) {
	c.state, c.times[2], c.err = done, m.at, m.err
	c.line.ended()
}
