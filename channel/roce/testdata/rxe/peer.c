// peer is the kernel's end of the interoperability test: it drives rdma_rxe through
// libibverbs as a TCP client tells it to, one line a command, one line an answer.
//
//	case MTU GIDINDEX QPN PSN RKEY VA SIZE COUNT GID(32 hex digits)   -> QPN PSN RKEY VA GID
//	recv     COUNT messages have come and are right                   -> ok | what is wrong
//	written  the peer's WRITE is here and right
//	send     send COUNT messages
//	write    write SIZE bytes into the peer's region
//	read     read SIZE bytes out of it
//	outside  write with a wrong key: must fail with a remote access error
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char *mem; // received messages, then: written, readable, to send or read into
static long size, count;
static unsigned rqpn, rpsn, rkey;
static unsigned long long rva;
static int recvs, sends;
static enum ibv_wc_status failure;

static unsigned char byteOf(long i, int stream) { return (unsigned char)(i * 131 + stream * 29 + (i >> 8) * 7); }
static void fill(unsigned char *p, int stream) {
	for (long i = 0; i < size; i++) p[i] = byteOf(i, stream);
}
static int wrong(const unsigned char *p, int stream) {
	for (long i = 0; i < size; i++)
		if (p[i] != byteOf(i, stream)) return 1;
	return 0;
}
static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}
static void die(const char *what) {
	perror(what);
	exit(1);
}

// wait waits until so many receives or sends have completed.
static const char *waitFor(int *n, int want) {
	struct ibv_wc wc;
	double end = now() + 20;
	while (*n < want) {
		if (now() > end) return "timeout";
		if (ibv_poll_cq(cq, 1, &wc) == 0) continue;
		if (wc.status != IBV_WC_SUCCESS) {
			if (failure == IBV_WC_SUCCESS) failure = wc.status;
			return ibv_wc_status_str(failure);
		}
		if (wc.opcode & IBV_WC_RECV) recvs++;
		else sends++;
	}
	return 0;
}

static void postRecv(int i) {
	struct ibv_sge s = {(uintptr_t)(mem + i * size), size, mr->lkey};
	struct ibv_recv_wr w = {.wr_id = i, .sg_list = &s, .num_sge = 1}, *bad;
	if (ibv_post_recv(qp, &w, &bad)) die("post recv");
}
static const char *post(enum ibv_wr_opcode op, int slot, unsigned key) {
	struct ibv_sge s = {(uintptr_t)(mem + (count + slot) * size), size, mr->lkey};
	struct ibv_send_wr w = {.sg_list = &s, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	w.wr.rdma.remote_addr = rva;
	w.wr.rdma.rkey = key;
	if (ibv_post_send(qp, &w, &bad)) return "post send";
	return waitFor(&sends, sends + 1);
}

static void beginCase(char *line, char *answer) {
	int mtu, index;
	char hex[64];
	union ibv_gid gid, mine;
	if (sscanf(line, "case %d %d %u %u %u %llu %ld %ld %32s", &mtu, &index, &rqpn, &rpsn, &rkey, &rva, &size, &count, hex) != 9) {
		sprintf(answer, "bad line");
		return;
	}
	for (int i = 0; i < 16; i++) {
		unsigned b;
		sscanf(hex + 2 * i, "%2x", &b);
		gid.raw[i] = b;
	}
	if (qp) {
		ibv_destroy_qp(qp);
		ibv_destroy_cq(cq);
		ibv_dereg_mr(mr);
		free(mem);
	}
	recvs = sends = 0;
	failure = IBV_WC_SUCCESS;
	mem = calloc(count + 3, size);
	mr = ibv_reg_mr(pd, mem, (count + 3) * size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	cq = ibv_create_cq(ctx, 2 * count + 16, 0, 0, 0);
	struct ibv_qp_init_attr ia = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 16, .max_recv_wr = count + 1, .max_send_sge = 1, .max_recv_sge = 1}};
	qp = ibv_create_qp(pd, &ia);
	if (!mr || !cq || !qp) die("create");
	fill(mem + (count + 1) * size, 2); // what the peer reads
	unsigned psn = 0xfffff0;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("init");
	for (int i = 0; i < count; i++) postRecv(i);
	struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR, .dest_qp_num = rqpn, .rq_psn = rpsn, .max_dest_rd_atomic = 8, .min_rnr_timer = 12};
	for (r.path_mtu = IBV_MTU_256; 128 << r.path_mtu < mtu; r.path_mtu++) {}
	r.ah_attr.is_global = 1;
	r.ah_attr.port_num = 1;
	r.ah_attr.grh.dgid = gid;
	r.ah_attr.grh.sgid_index = index;
	r.ah_attr.grh.hop_limit = 64;
	if (ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("rtr");
	struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = psn, .max_rd_atomic = 8};
	if (ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) die("rts");
	if (ibv_query_gid(ctx, 1, index, &mine)) die("gid");
	int n = sprintf(answer, "%u %u %u %llu ", qp->qp_num, psn, mr->rkey, (unsigned long long)(uintptr_t)(mem + count * size));
	for (int i = 0; i < 16; i++) n += sprintf(answer + n, "%02x", mine.raw[i]);
}

static const char *command(const char *line) {
	const char *err = 0;
	if (!strcmp(line, "recv")) {
		if ((err = waitFor(&recvs, count))) return err;
		for (int i = 0; i < count; i++)
			if (wrong(mem + i * size, 10 + i)) return "a message is wrong";
		return 0;
	}
	if (!strcmp(line, "written")) return wrong(mem + count * size, 1) ? "what was written is wrong" : 0;
	if (!strcmp(line, "send")) {
		for (int i = 0; i < count && !err; i++) {
			fill(mem + (count + 2) * size, 100 + i);
			err = post(IBV_WR_SEND, 2, 0);
		}
		return err;
	}
	if (!strcmp(line, "write")) {
		fill(mem + (count + 2) * size, 3);
		return post(IBV_WR_RDMA_WRITE, 2, rkey);
	}
	if (!strcmp(line, "read")) {
		memset(mem + (count + 2) * size, 0, size);
		if ((err = post(IBV_WR_RDMA_READ, 2, rkey))) return err;
		return wrong(mem + (count + 2) * size, 4) ? "what was read is wrong" : 0;
	}
	if (!strcmp(line, "outside")) {
		err = post(IBV_WR_RDMA_WRITE, 2, rkey ^ 0x5500);
		return failure == IBV_WC_REM_ACCESS_ERR ? 0 : err ? err : "it was let in";
	}
	return "no such command";
}

int main(int argc, char **argv) {
	int n, l = socket(AF_INET6, SOCK_STREAM, 0), one = 1;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(18515)};
	if (!list || !n) die("no device");
	if (!(ctx = ibv_open_device(list[0])) || !(pd = ibv_alloc_pd(ctx))) die("open");
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (void *)&at, sizeof at) || listen(l, 1)) die("listen");
	for (;;) {
		char line[512], answer[512];
		int fd = accept(l, 0, 0);
		FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
		if (!in || !out) die("accept");
		while (fgets(line, sizeof line, in)) {
			line[strcspn(line, "\n")] = 0;
			if (!strcmp(line, "end")) return 0;
			if (!strncmp(line, "case", 4)) beginCase(line, answer);
			else {
				const char *err = command(line);
				sprintf(answer, "%s", err ? err : "ok");
			}
			fprintf(out, "%s\n", answer);
			fflush(out);
		}
		fclose(in);
		fclose(out);
	}
}
