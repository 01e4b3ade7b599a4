// A libibverbs that stands in for an adapter in tests: one device whose queue pairs
// reach each other in the memory of one process. It is compiled with the header of the
// real library, distrusts its caller, and fails as it is told. It is no adapter.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr
#define EXPORT __attribute__((visibility("default")))
#define MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char violations[8192];
static int live;
static char injected[64];
static int injectedCode, injectedSkip, activeMTU = IBV_MTU_1024, badLayout, lost, linkLayer = IBV_LINK_LAYER_ETHERNET;

static void violation(const char *format, ...) {
	size_t n = strlen(violations);
	va_list a;
	va_start(a, format);
	vsnprintf(violations + n, sizeof violations - n - 2, format, a);
	va_end(a);
	strcat(violations, "\n");
}
static int fails(const char *name) {
	if (strcmp(name, injected) || injectedSkip-- > 0) return 0;
	injected[0] = 0;
	return errno = injectedCode;
}

struct recv { struct ibv_recv_wr wr; struct ibv_sge sge; };
struct send { struct ibv_send_wr wr; struct ibv_sge sge[16]; unsigned char *data; };
struct cq {
	struct ibv_cq cq;
	struct ibv_wc *ring;
	int head, count, armed, unacked;
};
struct qp {
	struct ibv_qp qp;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr;
	struct recv *recvs;
	struct send *sends; // that wait for a receive
	int nrecvs, nsends, sendCQEs;
};
static struct ibv_device device = {.name = "standin0"};
static struct qp *qps[MAX];
static struct ibv_mr *mrs[MAX];
static unsigned nextQP = 16, nextKey = 1;

EXPORT void standin_reset(void) {
	violations[0] = injected[0] = 0;
	live = badLayout = lost = 0;
	activeMTU = IBV_MTU_1024;
	linkLayer = IBV_LINK_LAYER_ETHERNET;
}
EXPORT int standin_live(void) { return live; }
EXPORT const char *standin_violations(void) { return violations; }
EXPORT void standin_inject(const char *f, int code, int skip) {
	strncpy(injected, f, sizeof injected - 1);
	injectedCode = code;
	injectedSkip = skip;
}
EXPORT void standin_set(const char *what, int value) {
	if (!strcmp(what, "mtu")) activeMTU = value;
	if (!strcmp(what, "layout")) badLayout = value;
	if (!strcmp(what, "lost")) lost = value;
	if (!strcmp(what, "layer")) linkLayer = value;
}

static void complete(struct cq *c, struct ibv_wc w) {
	if (c->count == c->cq.cqe) {
		violation("a completion queue of %d has overflowed", c->cq.cqe);
		return;
	}
	c->ring[(c->head + c->count++) % c->cq.cqe] = w;
	if (c->armed && c->cq.channel) {
		c->armed = 0;
		void *p = c;
		if (write(c->cq.channel->refcnt, &p, sizeof p) != sizeof p) violation("the channel is full");
	}
}
static void completeSend(struct qp *q, struct ibv_send_wr *w, enum ibv_wc_status s) {
	struct ibv_wc c = {.wr_id = w->wr_id, .status = s, .opcode = w->opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE, .qp_num = q->qp.qp_num, .vendor_err = s ? 0x42 : 0};
	if (s || (w->send_flags & IBV_SEND_SIGNALED)) complete((struct cq *)q->qp.send_cq, c);
}
static void toError(struct qp *q) {
	if (q->qp.state == IBV_QPS_ERR) return;
	q->qp.state = IBV_QPS_ERR;
	for (int i = 0; i < q->nsends; i++) {
		completeSend(q, &q->sends[i].wr, IBV_WC_WR_FLUSH_ERR);
		free(q->sends[i].data);
	}
	q->nsends = 0;
	for (int i = 0; i < q->nrecvs; i++) {
		struct ibv_wc c = {.wr_id = q->recvs[i].wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = q->qp.qp_num};
		complete((struct cq *)q->qp.recv_cq, c);
	}
	q->nrecvs = 0;
}
EXPORT void standin_fatal(int n, int kind) { // an event of the n-th queue pair that lives, or of the device
	pthread_mutex_lock(&lock);
	struct ibv_async_event e = {.event_type = kind};
	for (int i = 0; i < MAX; i++)
		if (qps[i] && n-- == 0) e.element.qp = &qps[i]->qp;
	if (!e.element.qp || write(e.element.qp->context->num_comp_vectors, &e, sizeof e) != sizeof e) violation("the event has nowhere to go");
	pthread_mutex_unlock(&lock);
}

static struct ibv_mr *find(uint32_t key, int remote, uint64_t addr, uint64_t n) {
	for (int i = 0; i < MAX; i++) {
		struct ibv_mr *m = mrs[i];
		if (m && (remote ? m->rkey : m->lkey) == key)
			return addr >= (uintptr_t)m->addr && n <= m->length && addr - (uintptr_t)m->addr <= m->length - n ? m : 0;
	}
	return 0;
}
static int rights(struct ibv_mr *m) { return m->handle; }

// carry does a request. It returns 0 where there is no receive for it.
static int carry(struct qp *q, struct send *s) {
	struct ibv_send_wr *w = &s->wr;
	struct qp *to = q->attr.dest_qp_num < MAX ? qps[q->attr.dest_qp_num] : 0;
	uint64_t total = 0;
	for (int i = 0; i < w->num_sge; i++) {
		total += s->sge[i].length;
		if (!s->data && !find(s->sge[i].lkey, 0, s->sge[i].addr, s->sge[i].length)) {
			completeSend(q, w, IBV_WC_LOC_PROT_ERR);
			toError(q);
			return 1;
		}
	}
	if (lost || !to || (to->qp.state != IBV_QPS_RTR && to->qp.state != IBV_QPS_RTS) || to->attr.dest_qp_num != q->qp.qp_num || to->attr.rq_psn != q->attr.sq_psn ||
		to->attr.path_mtu != q->attr.path_mtu) {
		completeSend(q, w, IBV_WC_RETRY_EXC_ERR);
		toError(q);
		return 1;
	}
	int imm = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM, write = w->opcode != IBV_WR_SEND;
	if ((imm || !write) && to->nrecvs == 0) return 0;
	unsigned char *at = (unsigned char *)(uintptr_t)w->wr.rdma.remote_addr;
	if (write && total) {
		struct ibv_mr *m = find(w->wr.rdma.rkey, 1, w->wr.rdma.remote_addr, total);
		if (!m || !(rights(m) & IBV_ACCESS_REMOTE_WRITE) || !(to->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
			completeSend(q, w, IBV_WC_REM_ACCESS_ERR);
			toError(q);
			toError(to);
			return 1;
		}
	}
	struct recv r = to->recvs[0];
	if (imm || !write) memmove(to->recvs, to->recvs + 1, --to->nrecvs * sizeof r);
	if (!write) {
		struct ibv_mr *m = r.wr.num_sge ? find(r.sge.lkey, 0, r.sge.addr, r.sge.length) : 0;
		if (total > (r.wr.num_sge ? r.sge.length : 0) || (total && (!m || !(rights(m) & IBV_ACCESS_LOCAL_WRITE)))) {
			struct ibv_wc c = {.wr_id = r.wr.wr_id, .status = IBV_WC_LOC_LEN_ERR, .opcode = IBV_WC_RECV};
			complete((struct cq *)to->qp.recv_cq, c);
			completeSend(q, w, IBV_WC_REM_INV_REQ_ERR);
			toError(q);
			toError(to);
			return 1;
		}
		at = (unsigned char *)(uintptr_t)r.sge.addr;
	}
	unsigned char *data = s->data;
	for (int i = 0; i < w->num_sge; i++) {
		memcpy(at, data ? data : (void *)(uintptr_t)s->sge[i].addr, s->sge[i].length);
		at += s->sge[i].length;
		if (data) data += s->sge[i].length;
	}
	if (imm || !write) {
		struct ibv_wc c = {.wr_id = r.wr.wr_id, .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .byte_len = total, .qp_num = to->qp.qp_num,
			.wc_flags = imm ? IBV_WC_WITH_IMM : 0, .imm_data = imm ? w->imm_data : 0};
		complete((struct cq *)to->qp.recv_cq, c);
	}
	completeSend(q, w, IBV_WC_SUCCESS);
	return 1;
}
static void carryAll(struct qp *q) {
	while (q->nsends > 0 && q->qp.state == IBV_QPS_RTS && carry(q, &q->sends[0])) {
		if (q->nsends == 0) return; // it went to error
		free(q->sends[0].data);
		memmove(q->sends, q->sends + 1, --q->nsends * sizeof *q->sends);
	}
}

static int postSend(struct ibv_qp *p, struct ibv_send_wr *w, struct ibv_send_wr **bad) {
	struct qp *q = (struct qp *)p;
	int err = 0;
	pthread_mutex_lock(&lock);
	if ((err = fails("ibv_post_send"))) {
	} else if (p->state != IBV_QPS_RTS && p->state != IBV_QPS_ERR) {
		violation("post_send in state %d", p->state);
		err = EINVAL;
	} else if (w->next || w->num_sge > (int)q->cap.max_send_sge || q->nsends >= (int)q->cap.max_send_wr) {
		violation("post_send of %d pieces with %d waiting", w->num_sge, q->nsends);
		err = ENOMEM;
	} else if (p->state == IBV_QPS_ERR) {
		completeSend(q, w, IBV_WC_WR_FLUSH_ERR);
	} else {
		struct send *s = &q->sends[q->nsends];
		memset(s, 0, sizeof *s);
		s->wr = *w;
		unsigned total = 0;
		for (int i = 0; i < w->num_sge; i++) {
			s->sge[i] = w->sg_list[i];
			total += w->sg_list[i].length;
		}
		if (w->send_flags & IBV_SEND_INLINE) {
			if (total > q->cap.max_inline_data) violation("%u bytes inline", total);
			unsigned char *d = s->data = malloc(total + 1);
			for (int i = 0; i < w->num_sge; i++) {
				memcpy(d, (void *)(uintptr_t)w->sg_list[i].addr, w->sg_list[i].length);
				d += w->sg_list[i].length;
			}
		}
		q->nsends++;
		carryAll(q);
	}
	if (err) *bad = w;
	pthread_mutex_unlock(&lock);
	return err;
}
static int postRecv(struct ibv_qp *p, struct ibv_recv_wr *w, struct ibv_recv_wr **bad) {
	struct qp *q = (struct qp *)p;
	int err = 0;
	pthread_mutex_lock(&lock);
	if ((err = fails("ibv_post_recv"))) {
	} else if (p->state == IBV_QPS_RESET || w->next || w->num_sge > 1 || q->nrecvs >= (int)q->cap.max_recv_wr) {
		violation("post_recv in state %d of %d pieces, %d there", p->state, w->num_sge, q->nrecvs);
		err = ENOMEM;
	} else if (p->state == IBV_QPS_ERR) {
		struct ibv_wc c = {.wr_id = w->wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = p->qp_num};
		complete((struct cq *)p->recv_cq, c);
	} else {
		struct recv *r = &q->recvs[q->nrecvs++];
		r->wr = *w;
		if (w->num_sge) r->sge = w->sg_list[0];
		struct qp *from = q->attr.dest_qp_num < MAX ? qps[q->attr.dest_qp_num] : 0;
		if (from && from->attr.dest_qp_num == p->qp_num) carryAll(from);
	}
	if (err) *bad = w;
	pthread_mutex_unlock(&lock);
	return err;
}
static int pollCQ(struct ibv_cq *p, int n, struct ibv_wc *out) {
	struct cq *c = (struct cq *)p;
	int i;
	pthread_mutex_lock(&lock);
	for (i = 0; i < n && c->count > 0; i++, c->count--) {
		out[i] = c->ring[c->head];
		if (out[i].status) out[i].opcode = out[i].byte_len = out[i].wc_flags = -1; // are not set then
		c->head = (c->head + 1) % p->cqe;
	}
	if (fails("ibv_poll_cq")) i = -1;
	pthread_mutex_unlock(&lock);
	return i;
}
static int notifyCQ(struct ibv_cq *p, int solicited) {
	pthread_mutex_lock(&lock);
	((struct cq *)p)->armed = 1;
	if (solicited) violation("only solicited events");
	int err = fails("ibv_req_notify_cq");
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT struct ibv_device **ibv_get_device_list(int *n) {
	struct ibv_device **list = calloc(2, sizeof *list);
	if (fails("ibv_get_device_list")) return 0;
	list[0] = &device;
	*n = 1;
	live++;
	return list;
}
EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list), live--; }
EXPORT const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d) {
	if (fails("ibv_open_device")) return 0;
	struct ibv_context *c = calloc(1, sizeof *c);
	c->device = d;
	c->ops.poll_cq = pollCQ;
	c->ops.req_notify_cq = notifyCQ;
	c->ops.post_send = postSend;
	c->ops.post_recv = badLayout == 1 ? (void *)violations : postRecv;
	int p[2];
	if (pipe(p)) return 0;
	c->async_fd = p[0];
	c->num_comp_vectors = p[1]; // where events are written to
	live++;
	return c;
}
EXPORT int ibv_close_device(struct ibv_context *c) {
	close(c->async_fd), close(c->num_comp_vectors);
	free(c), live--;
	return 0;
}
EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
	memset(a, 0, sizeof *a);
	strcpy(a->fw_ver, "1.2.3");
	a->max_qp = MAX, a->max_qp_wr = 1024, a->max_sge = 8, a->max_cqe = 8192, a->phys_port_cnt = 1;
	a->vendor_id = 0x1234, a->vendor_part_id = 0x5678;
	return fails("ibv_query_device");
}
EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out) {
	struct ibv_port_attr a = {.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = activeMTU, .gid_tbl_len = 4, .link_layer = linkLayer};
	memcpy(out, &a, offsetof(struct ibv_port_attr, port_cap_flags2));
	return fails("ibv_query_port");
}
EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *g) {
	memset(g, 0, sizeof *g);
	g->raw[15] = index == 3 ? 1 : 7;
	return fails("ibv_query_gid");
}
EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
	if (fails("ibv_alloc_pd")) return 0;
	struct ibv_pd *p = calloc(1, sizeof *p);
	p->context = c, live++;
	return p;
}
EXPORT int ibv_dealloc_pd(struct ibv_pd *p) { return free(p), live--, 0; }
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t n, int access) {
	struct ibv_mr *m = 0;
	pthread_mutex_lock(&lock);
	if (n == 0 || ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE))) {
		violation("reg_mr of %zu bytes with access %d", n, access);
		errno = EINVAL;
	} else if (!fails("ibv_reg_mr")) {
		int i = 0;
		while (i < MAX - 1 && mrs[i]) i++;
		m = mrs[i] = calloc(1, sizeof *m);
		m->context = pd->context, m->pd = pd, m->addr = addr, m->length = n, m->handle = access;
		m->lkey = nextKey++;
		m->rkey = 0x80000000 + nextKey++;
		if (badLayout == 2) m->length++;
		live++;
	}
	pthread_mutex_unlock(&lock);
	return m;
}
EXPORT int ibv_dereg_mr(struct ibv_mr *m) {
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX; i++)
		if (mrs[i] == m) mrs[i] = 0, free(m), live--;
	pthread_mutex_unlock(&lock);
	return 0;
}
EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
	int p[2];
	if (fails("ibv_create_comp_channel") || pipe(p)) return 0;
	struct ibv_comp_channel *h = calloc(1, sizeof *h);
	h->context = c, h->fd = p[0], h->refcnt = p[1], live++;
	return h;
}
EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *h) { return close(h->fd), close(h->refcnt), free(h), live--, 0; }
EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *h, int vector) {
	if (fails("ibv_create_cq")) return 0;
	struct cq *q = calloc(1, sizeof *q);
	q->cq.context = c, q->cq.channel = h, q->cq.cq_context = context, q->cq.cqe = cqe;
	q->ring = calloc(cqe, sizeof *q->ring), live++;
	return &q->cq;
}
EXPORT int ibv_destroy_cq(struct ibv_cq *c) {
	struct cq *q = (struct cq *)c;
	if (q->unacked) violation("a completion queue with %d events that were not acknowledged", q->unacked);
	return free(q->ring), free(q), live--, 0;
}
EXPORT int ibv_get_cq_event(struct ibv_comp_channel *h, struct ibv_cq **out, void **context) {
	void *p;
	if (read(h->fd, &p, sizeof p) != sizeof p) return -1;
	((struct cq *)p)->unacked++;
	*out = p, *context = (*out)->cq_context;
	return 0;
}
EXPORT void ibv_ack_cq_events(struct ibv_cq *c, unsigned n) { ((struct cq *)c)->unacked -= n; }
EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
	struct qp *q = 0;
	pthread_mutex_lock(&lock);
	if (a->qp_type != IBV_QPT_RC || a->cap.max_send_sge > 8 || a->cap.max_send_wr > 1024 || a->srq || a->sq_sig_all) {
		violation("create_qp of type %d with %u pieces", a->qp_type, a->cap.max_send_sge);
		errno = EINVAL;
	} else if (!fails("ibv_create_qp")) {
		q = calloc(1, sizeof *q);
		while (qps[nextQP = nextQP % (MAX - 1) + 1]) {}
		qps[nextQP] = q;
		q->qp = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .qp_num = nextQP, .qp_type = a->qp_type};
		q->cap = a->cap;
		q->recvs = calloc(a->cap.max_recv_wr + 1, sizeof *q->recvs);
		q->sends = calloc(a->cap.max_send_wr + 1, sizeof *q->sends);
		live++;
	}
	pthread_mutex_unlock(&lock);
	return q ? &q->qp : 0;
}
EXPORT int ibv_modify_qp(struct ibv_qp *p, struct ibv_qp_attr *a, int mask) {
	struct qp *q = (struct qp *)p;
	const int toInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		toRTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		toRTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	int err = 0;
	pthread_mutex_lock(&lock);
	int from = p->state, to = a->qp_state;
	if ((err = fails("ibv_modify_qp"))) {
	} else if (from == IBV_QPS_RESET && to == IBV_QPS_INIT && mask == toInit && a->port_num == 1) {
		q->attr.qp_access_flags = a->qp_access_flags;
	} else if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && mask == toRTR && a->ah_attr.is_global && a->ah_attr.grh.sgid_index == 3 && a->ah_attr.port_num == 1 &&
		a->ah_attr.grh.dgid.raw[15] == 1 && a->ah_attr.grh.hop_limit > 0 && a->path_mtu >= 1 && (int)a->path_mtu <= activeMTU && a->ah_attr.grh.flow_label < 1 << 20) {
		int access = q->attr.qp_access_flags;
		q->attr = *a, q->attr.qp_access_flags = access;
	} else if (from == IBV_QPS_RTR && to == IBV_QPS_RTS && mask == toRTS && a->retry_cnt <= 7 && a->timeout > 0 && a->timeout < 32) {
		q->attr.sq_psn = a->sq_psn;
	} else {
		violation("modify_qp from %d to %d with mask %#x: GID index %d, path MTU %d, timeout %d", from, to, mask, a->ah_attr.grh.sgid_index, a->path_mtu, a->timeout);
		err = EINVAL;
	}
	if (!err) p->state = to;
	pthread_mutex_unlock(&lock);
	return err;
}
EXPORT int ibv_destroy_qp(struct ibv_qp *p) {
	struct qp *q = (struct qp *)p;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < q->nsends; i++) free(q->sends[i].data);
	qps[p->qp_num] = 0;
	free(q->recvs), free(q->sends), free(q), live--;
	pthread_mutex_unlock(&lock);
	return 0;
}
EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) { return read(c->async_fd, e, sizeof *e) == sizeof *e ? 0 : -1; }
EXPORT void ibv_ack_async_event(struct ibv_async_event *e) {}
EXPORT const char *ibv_wc_status_str(enum ibv_wc_status s) {
	static char text[64];
	static const char *names[] = {[IBV_WC_LOC_PROT_ERR] = "local protection error", [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error", [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded"};
	if (s < sizeof names / sizeof *names && names[s]) return names[s];
	sprintf(text, "stand-in status %d", s);
	return text;
}
EXPORT const char *ibv_event_type_str(enum ibv_event_type e) { return e == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error" : e == IBV_EVENT_QP_FATAL ? "local work queue catastrophic error" : "another event"; }
