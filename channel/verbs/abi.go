//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import "unsafe"

// The structures of libibverbs' ABI (infiniband/verbs.h, IBVERBS_1.1), as far as they are
// used: of those that the library makes, the front. TestLayout compares them with the
// header.

// abiContext is struct ibv_context with the pointers of its ops that are used.
type abiContext struct {
	device   uintptr
	_        [11]uintptr
	pollCQ   uintptr
	notifyCQ uintptr
	_        [12]uintptr
	postSend uintptr
	postRecv uintptr
	_        [5]uintptr
	cmdFD    int32
	asyncFD  int32
	vectors  int32
	_        int32
}

type abiMR struct {
	context, pd, addr, length uintptr
	handle, lkey, rkey        uint32
}

type abiChannel struct {
	context    uintptr
	fd, refcnt int32
}

type abiCQ struct {
	context, channel, cqContext uintptr
	handle                      uint32
	cqe                         int32
}

type abiQP struct {
	context, qpContext, pd, sendCQ, recvCQ, srq uintptr
	handle, number, state, kind                 uint32
}

type abiSGE struct {
	addr         uint64
	length, lkey uint32
}

type abiSendWR struct {
	id            uint64
	next, list    uintptr
	count         int32
	opcode, flags uint32
	imm           uint32 // network byte order
	remote        uint64
	rkey          uint32
	_             uint32
	_             [72]byte
}

type abiRecvWR struct {
	id         uint64
	next, list uintptr
	count      int32
	_          int32
}

type abiWC struct {
	id                        uint64
	status, opcode, vendor    uint32
	bytes                     uint32
	imm                       uint32 // network byte order
	number, srcQP, flags      uint32
	pkey, slid                uint16
	serviceLevel, dlidPathBit uint8
	_                         [2]byte
}

type abiCap struct{ sendWR, recvWR, sendSGE, recvSGE, inline uint32 }

type abiInitAttr struct {
	qpContext, sendCQ, recvCQ, srq uintptr
	limits                         abiCap
	kind                           uint32
	signalAll                      int32
	_                              int32
}

type abiAH struct {
	gid                          [16]byte
	flow                         uint32
	gidIndex, hops, trafficClass uint8
	_                            uint8
	dlid                         uint16
	serviceLevel, pathBits       uint8
	staticRate, isGlobal, port   uint8
	_                            uint8
}

type abiQPAttr struct {
	state, current, mtu, migration   uint32
	qkey, recvPSN, sendPSN, dest     uint32
	access                           uint32
	limits                           abiCap
	ah, altAH                        abiAH
	pkey, altPKey                    uint16
	drainNotify, draining            uint8
	reads, destReads                 uint8
	rnrTimer, port, timeout, retries uint8
	rnrRetries, altPort, altTimeout  uint8
	_                                uint8
	rate                             uint32
	_                                uint32
}

type abiPortAttr struct {
	state, maxMTU, activeMTU           uint32
	gids                               int32
	caps, maxMessage, badPKey, badQKey uint32
	pkeys, lid, smLID                  uint16
	lmc, maxVL, smSL, subnetTimeout    uint8
	initType, width, speed, physical   uint8
	layer, flags                       uint8
	caps2                              uint16
	_                                  [3]byte
	room                               [16]byte // of a library that knows more
}

type abiDeviceAttr struct {
	firmware                                  [64]byte
	nodeGUID, imageGUID, maxMR, pageSizes     uint64
	vendor, part, hardware                    uint32
	maxQP, maxQPWR                            int32
	caps                                      uint32
	maxSGE, maxReadSGE, maxCQ, maxCQE, maxMRs int32
	maxPD, readsQP, readsEE, readsAll, initQP int32
	initEE                                    int32
	atomics                                   uint32
	ee, rdd, mw, rawIPv6, rawEthernet         int32
	groups, groupQPs, allGroupQPs, ah, fmr    int32
	mapsPerFMR, srq, srqWR, srqSGE            int32
	pkeys                                     uint16
	ackDelay, ports                           uint8
	_                                         uint32
	room                                      [64]byte // of a library that knows more
}

type abiAsyncEvent struct {
	element uintptr
	kind    uint32
	_       uint32
}

// Numbers of the ABI.
const (
	accessLocalWrite  = 1
	accessRemoteWrite = 2

	stateInit = 1 // ibv_qp_state
	stateRTR  = 2
	stateRTS  = 3
	stateErr  = 6

	attrState       = 1 << 0 // ibv_qp_attr_mask
	attrAccess      = 1 << 3
	attrPKey        = 1 << 4
	attrPort        = 1 << 5
	attrAV          = 1 << 7
	attrPathMTU     = 1 << 8
	attrTimeout     = 1 << 9
	attrRetries     = 1 << 10
	attrRNRRetries  = 1 << 11
	attrRecvPSN     = 1 << 12
	attrReads       = 1 << 13
	attrRNRTimer    = 1 << 15
	attrSendPSN     = 1 << 16
	attrDestReads   = 1 << 17
	attrDestination = 1 << 20

	typeRC = 2 // ibv_qp_type

	opWrite    = 0 // ibv_wr_opcode
	opWriteImm = 1
	opSend     = 2

	flagSignaled = 2 // ibv_send_flags
	flagInline   = 8

	wcSuccess = 0 // ibv_wc_status
	wcFlushed = 5
	wcRecv    = 1 << 7 // of ibv_wc_opcode
	wcWithImm = 2      // ibv_wc_flags

	portActive    = 4 // ibv_port_state
	layerEthernet = 2

	eventCQ          = 0 // ibv_event_type
	eventQPFatal     = 1
	eventQPRequest   = 2
	eventQPAccess    = 3
	eventDeviceFatal = 8
)

// view reads what a library has made.
func view[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }
