//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestLayout compares the structures of this package with those of the header, where
// there is one: a C program prints each size and offset.
func TestLayout(t *testing.T) {
	if why := noHeader(); why != "" {
		t.Skip(why)
	}
	var (
		context abiContext
		mr      abiMR
		channel abiChannel
		cq      abiCQ
		qp      abiQP
		sge     abiSGE
		send    abiSendWR
		recv    abiRecvWR
		wc      abiWC
		limits  abiCap
		init    abiInitAttr
		ah      abiAH
		attr    abiQPAttr
		port    abiPortAttr
		device  abiDeviceAttr
		event   abiAsyncEvent
	)
	var c, want strings.Builder
	field := func(structure string, offsets map[string]uintptr) {
		for name, off := range offsets {
			fmt.Fprintf(&c, "\tprintf(\"%%zu %s.%s\\n\", offsetof(struct %s, %s));\n", structure, name, structure, name)
			fmt.Fprintf(&want, "%d %s.%s\n", off, structure, name)
		}
	}
	size := func(structure string, n uintptr) {
		fmt.Fprintf(&c, "\tprintf(\"%%zu %s\\n\", sizeof(struct %s));\n", structure, structure)
		fmt.Fprintf(&want, "%d %s\n", n, structure)
	}
	number := func(name string, n int) {
		fmt.Fprintf(&c, "\tprintf(\"%%d %s\\n\", (int)%s);\n", name, name)
		fmt.Fprintf(&want, "%d %s\n", n, name)
	}
	c.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main(void) {\n")
	field("ibv_context", map[string]uintptr{"device": unsafe.Offsetof(context.device), "ops.poll_cq": unsafe.Offsetof(context.pollCQ), "ops.req_notify_cq": unsafe.Offsetof(context.notifyCQ),
		"ops.post_send": unsafe.Offsetof(context.postSend), "ops.post_recv": unsafe.Offsetof(context.postRecv), "cmd_fd": unsafe.Offsetof(context.cmdFD),
		"async_fd": unsafe.Offsetof(context.asyncFD), "num_comp_vectors": unsafe.Offsetof(context.vectors)})
	field("ibv_mr", map[string]uintptr{"context": unsafe.Offsetof(mr.context), "pd": unsafe.Offsetof(mr.pd), "addr": unsafe.Offsetof(mr.addr), "length": unsafe.Offsetof(mr.length),
		"handle": unsafe.Offsetof(mr.handle), "lkey": unsafe.Offsetof(mr.lkey), "rkey": unsafe.Offsetof(mr.rkey)})
	field("ibv_comp_channel", map[string]uintptr{"context": unsafe.Offsetof(channel.context), "fd": unsafe.Offsetof(channel.fd)})
	field("ibv_cq", map[string]uintptr{"context": unsafe.Offsetof(cq.context), "channel": unsafe.Offsetof(cq.channel), "cq_context": unsafe.Offsetof(cq.cqContext),
		"handle": unsafe.Offsetof(cq.handle), "cqe": unsafe.Offsetof(cq.cqe)})
	field("ibv_qp", map[string]uintptr{"context": unsafe.Offsetof(qp.context), "pd": unsafe.Offsetof(qp.pd), "send_cq": unsafe.Offsetof(qp.sendCQ), "recv_cq": unsafe.Offsetof(qp.recvCQ),
		"qp_num": unsafe.Offsetof(qp.number), "state": unsafe.Offsetof(qp.state), "qp_type": unsafe.Offsetof(qp.kind)})
	field("ibv_sge", map[string]uintptr{"addr": unsafe.Offsetof(sge.addr), "length": unsafe.Offsetof(sge.length), "lkey": unsafe.Offsetof(sge.lkey)})
	size("ibv_sge", unsafe.Sizeof(sge))
	field("ibv_send_wr", map[string]uintptr{"wr_id": unsafe.Offsetof(send.id), "next": unsafe.Offsetof(send.next), "sg_list": unsafe.Offsetof(send.list), "num_sge": unsafe.Offsetof(send.count),
		"opcode": unsafe.Offsetof(send.opcode), "send_flags": unsafe.Offsetof(send.flags), "imm_data": unsafe.Offsetof(send.imm), "wr.rdma.remote_addr": unsafe.Offsetof(send.remote),
		"wr.rdma.rkey": unsafe.Offsetof(send.rkey)})
	size("ibv_send_wr", unsafe.Sizeof(send))
	field("ibv_recv_wr", map[string]uintptr{"wr_id": unsafe.Offsetof(recv.id), "next": unsafe.Offsetof(recv.next), "sg_list": unsafe.Offsetof(recv.list), "num_sge": unsafe.Offsetof(recv.count)})
	size("ibv_recv_wr", unsafe.Sizeof(recv))
	field("ibv_wc", map[string]uintptr{"wr_id": unsafe.Offsetof(wc.id), "status": unsafe.Offsetof(wc.status), "opcode": unsafe.Offsetof(wc.opcode), "vendor_err": unsafe.Offsetof(wc.vendor),
		"byte_len": unsafe.Offsetof(wc.bytes), "imm_data": unsafe.Offsetof(wc.imm), "qp_num": unsafe.Offsetof(wc.number), "wc_flags": unsafe.Offsetof(wc.flags), "slid": unsafe.Offsetof(wc.slid)})
	size("ibv_wc", unsafe.Sizeof(wc))
	field("ibv_qp_cap", map[string]uintptr{"max_send_wr": unsafe.Offsetof(limits.sendWR), "max_recv_wr": unsafe.Offsetof(limits.recvWR), "max_send_sge": unsafe.Offsetof(limits.sendSGE),
		"max_recv_sge": unsafe.Offsetof(limits.recvSGE), "max_inline_data": unsafe.Offsetof(limits.inline)})
	field("ibv_qp_init_attr", map[string]uintptr{"send_cq": unsafe.Offsetof(init.sendCQ), "recv_cq": unsafe.Offsetof(init.recvCQ), "srq": unsafe.Offsetof(init.srq),
		"cap": unsafe.Offsetof(init.limits), "qp_type": unsafe.Offsetof(init.kind), "sq_sig_all": unsafe.Offsetof(init.signalAll)})
	size("ibv_qp_init_attr", unsafe.Sizeof(init))
	field("ibv_ah_attr", map[string]uintptr{"grh.dgid": unsafe.Offsetof(ah.gid), "grh.flow_label": unsafe.Offsetof(ah.flow), "grh.sgid_index": unsafe.Offsetof(ah.gidIndex),
		"grh.hop_limit": unsafe.Offsetof(ah.hops), "grh.traffic_class": unsafe.Offsetof(ah.trafficClass), "sl": unsafe.Offsetof(ah.serviceLevel),
		"is_global": unsafe.Offsetof(ah.isGlobal), "port_num": unsafe.Offsetof(ah.port)})
	size("ibv_ah_attr", unsafe.Sizeof(ah))
	field("ibv_qp_attr", map[string]uintptr{"qp_state": unsafe.Offsetof(attr.state), "path_mtu": unsafe.Offsetof(attr.mtu), "rq_psn": unsafe.Offsetof(attr.recvPSN), "sq_psn": unsafe.Offsetof(attr.sendPSN),
		"dest_qp_num": unsafe.Offsetof(attr.dest), "qp_access_flags": unsafe.Offsetof(attr.access), "cap": unsafe.Offsetof(attr.limits), "ah_attr": unsafe.Offsetof(attr.ah),
		"pkey_index": unsafe.Offsetof(attr.pkey), "max_rd_atomic": unsafe.Offsetof(attr.reads), "max_dest_rd_atomic": unsafe.Offsetof(attr.destReads), "min_rnr_timer": unsafe.Offsetof(attr.rnrTimer),
		"port_num": unsafe.Offsetof(attr.port), "timeout": unsafe.Offsetof(attr.timeout), "retry_cnt": unsafe.Offsetof(attr.retries), "rnr_retry": unsafe.Offsetof(attr.rnrRetries)})
	size("ibv_qp_attr", unsafe.Sizeof(attr))
	field("ibv_port_attr", map[string]uintptr{"state": unsafe.Offsetof(port.state), "max_mtu": unsafe.Offsetof(port.maxMTU), "active_mtu": unsafe.Offsetof(port.activeMTU), "lid": unsafe.Offsetof(port.lid),
		"link_layer": unsafe.Offsetof(port.layer), "port_cap_flags2": unsafe.Offsetof(port.caps2)})
	field("ibv_device_attr", map[string]uintptr{"node_guid": unsafe.Offsetof(device.nodeGUID), "vendor_id": unsafe.Offsetof(device.vendor), "max_qp": unsafe.Offsetof(device.maxQP),
		"max_qp_wr": unsafe.Offsetof(device.maxQPWR), "max_sge": unsafe.Offsetof(device.maxSGE), "max_cqe": unsafe.Offsetof(device.maxCQE), "max_mr": unsafe.Offsetof(device.maxMRs),
		"max_srq": unsafe.Offsetof(device.srq), "phys_port_cnt": unsafe.Offsetof(device.ports)})
	size("ibv_device_attr", unsafe.Offsetof(device.room))
	field("ibv_async_event", map[string]uintptr{"element": unsafe.Offsetof(event.element), "event_type": unsafe.Offsetof(event.kind)})
	size("ibv_async_event", unsafe.Sizeof(event))
	for name, n := range abiNumbers {
		number(name, n)
	}
	c.WriteString("\treturn 0;\n}\n")
	bin := filepath.Join(t.TempDir(), "layout")
	cmd := exec.Command("gcc", "-Wno-format", "-xc", "-o", bin, "-")
	cmd.Stdin = strings.NewReader(c.String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bin).Output()
	require.NoError(t, err)
	require.Equal(t, want.String(), string(out))
	t.Logf("%d sizes, offsets and numbers as in %s", strings.Count(want.String(), "\n"), header)
}

// abiNumbers are the numbers of the ABI by their names in the header.
var abiNumbers = map[string]int{
	"IBV_ACCESS_LOCAL_WRITE": accessLocalWrite, "IBV_ACCESS_REMOTE_WRITE": accessRemoteWrite,
	"IBV_QPS_INIT": stateInit, "IBV_QPS_RTR": stateRTR, "IBV_QPS_RTS": stateRTS,
	"IBV_QP_STATE": attrState, "IBV_QP_ACCESS_FLAGS": attrAccess, "IBV_QP_PKEY_INDEX": attrPKey, "IBV_QP_PORT": attrPort, "IBV_QP_AV": attrAV,
	"IBV_QP_PATH_MTU": attrPathMTU, "IBV_QP_TIMEOUT": attrTimeout, "IBV_QP_RETRY_CNT": attrRetries, "IBV_QP_RNR_RETRY": attrRNRRetries, "IBV_QP_RQ_PSN": attrRecvPSN,
	"IBV_QP_MAX_QP_RD_ATOMIC": attrReads, "IBV_QP_MIN_RNR_TIMER": attrRNRTimer, "IBV_QP_SQ_PSN": attrSendPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": attrDestReads,
	"IBV_QP_DEST_QPN": attrDestination, "IBV_QPT_RC": typeRC, "IBV_WR_RDMA_WRITE": opWrite, "IBV_WR_RDMA_WRITE_WITH_IMM": opWriteImm, "IBV_WR_SEND": opSend,
	"IBV_SEND_SIGNALED": flagSignaled, "IBV_SEND_INLINE": flagInline, "IBV_WC_SUCCESS": wcSuccess, "IBV_WC_WR_FLUSH_ERR": wcFlushed, "IBV_WC_RECV": wcRecv,
	"IBV_WC_WITH_IMM": wcWithImm, "IBV_PORT_ACTIVE": portActive, "IBV_LINK_LAYER_ETHERNET": layerEthernet, "IBV_EVENT_CQ_ERR": eventCQ,
	"IBV_EVENT_QP_FATAL": eventQPFatal, "IBV_EVENT_QP_REQ_ERR": eventQPRequest, "IBV_EVENT_QP_ACCESS_ERR": eventQPAccess, "IBV_EVENT_DEVICE_FATAL": eventDeviceFatal,
}
