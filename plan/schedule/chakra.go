package schedule

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// The numbers of Chakra's et_def.proto (mlcommons/chakra, schema version 0.0.4): kinds of
// nodes, and fields of Node, AttributeProto and GlobalMetadata.
const (
	compNode, sendNode, recvNode = 4, 5, 6

	nodeID, nodeName, nodeType, nodeCtrlDeps, nodeDataDeps, nodeDuration, nodeAttr = 1, 2, 3, 4, 5, 7, 10

	attrName, attrInt32, attrInt64, attrUint64, attrBool = 1, 7, 9, 13, 27

	metaVersion = 1
	version     = "0.0.4"
)

// Chakra is the execution trace of one rank: a file that ASTRA-sim wants as PREFIX.RANK.et.
// It is a row of messages of protocol buffers, each behind its length: the metadata, then a
// node per Op, whose id is the Op's index, with data_deps for After and ctrl_deps for Behind.
// A Calc is a computation that takes duration_micros, rounded up, of tensor_size bytes.
func (s Schedule) Chakra(rank kolo.Rank) []byte {
	var meta message
	meta.text(metaVersion, version)
	out := meta.behindLength(nil)
	for i, op := range s[rank] {
		var n message
		n.number(nodeID, uint64(i))
		n.text(nodeName, op.name())
		attr := func(name string, field int, v uint64) {
			var a message
			a.text(attrName, name)
			a.number(field, v)
			n.bytes(nodeAttr, a)
		}
		n.number(nodeType, map[Kind]uint64{Send: sendNode, Recv: recvNode, Calc: compNode}[op.Kind])
		n.list(nodeCtrlDeps, op.Behind)
		n.list(nodeDataDeps, op.After)
		if op.Kind == Calc {
			n.number(nodeDuration, uint64(op.Nanos+999)/1000)
			attr("is_cpu_op", attrBool, 0)
			attr("num_ops", attrInt64, uint64(op.Size))
			attr("tensor_size", attrUint64, uint64(op.Size))
		} else {
			from, to := rank, op.Peer
			if op.Kind == Recv {
				from, to = to, from
			}
			attr("is_cpu_op", attrBool, 0)
			attr("comm_size", attrInt64, uint64(op.Size))
			attr("comm_src", attrInt32, uint64(from))
			attr("comm_dst", attrInt32, uint64(to))
			attr("comm_tag", attrInt32, uint64(op.Tag))
		}
		out = n.behindLength(out)
	}
	return out
}

func (op *Op) name() string {
	switch op.Kind {
	case Send:
		return fmt.Sprintf("step %d: send to %d", op.Step, int(op.Peer))
	case Recv:
		return fmt.Sprintf("step %d: recv from %d", op.Step, int(op.Peer))
	}
	return fmt.Sprintf("step %d: fold or copy", op.Step)
}

// message is a message of protocol buffers while it is written.
type message []byte

// varint appends 7 bits a byte, the least first.
func varint(to []byte, v uint64) []byte {
	for ; v >= 0x80; v >>= 7 {
		to = append(to, byte(v)|0x80)
	}
	return append(to, byte(v))
}

// number is a field of an integer, a bool or an enum that is not negative. A zero is
// written too: in a oneof it says which field is set.
func (m *message) number(field int, v uint64) { *m = varint(varint(*m, uint64(field)<<3), v) }

func (m *message) bytes(field int, b []byte) {
	*m = append(varint(varint(*m, uint64(field)<<3|2), uint64(len(b))), b...)
}

func (m *message) text(field int, s string) { m.bytes(field, []byte(s)) }

// list is a repeated field, packed.
func (m *message) list(field int, list []int) {
	if len(list) == 0 {
		return
	}
	var packed []byte
	for _, v := range list {
		packed = varint(packed, uint64(v))
	}
	m.bytes(field, packed)
}

func (m message) behindLength(to []byte) []byte { return append(varint(to, uint64(len(m))), m...) }
