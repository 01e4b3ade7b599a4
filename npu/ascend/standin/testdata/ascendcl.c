// A stand-in for libascendcl.so over memory of the host, for tests. It has the names,
// argument types and numbers of AscendCL's reference and nothing else of it.
//
// It distrusts its caller: each call's arguments, order and thread are checked. What
// real hardware might forgive is written down as a violation, which a test reads at its
// end. What a test asks for with standin_inject and its like goes wrong.
//
// A stream is a thread. A failed stream drops its queue, callbacks with it; a lost
// device stops where it is and calls nobody back.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int32_t rc_t;
typedef void (*callback_t)(void *);
#define API __attribute__((visibility("default")))

enum { MAXDEV = 16, MAXNAMES = 160 };
enum kind { STREAM = 1, EVENT, CONTEXT, MEMORY, HOSTMEM };
enum work { COPY = 1, REDUCE, RECORD, WAIT_EVENT, CALL, QUIT };

struct object { // first member of all that has a handle; never freed but by standin_reset
	enum kind kind;
	int dev, alive;
	struct object *next;
};
struct memory { struct object o; char *at; size_t size; char *raw; };
struct event { struct object o; uint64_t recorded, done; struct timespec when; int flags; };
struct context { struct object o; };
struct reporter { pthread_t thread; struct call *head, *tail; int streams; struct reporter *next; };
struct call { callback_t f; void *arg; int block, done; struct call *next; };
struct task {
	enum work what; char *dst; const char *src; size_t n; int op, type; uint64_t seq;
	struct event *ev; struct call *call; struct task *next;
};
struct stream {
	struct object o; pthread_t thread; struct task *head, *tail; int busy, aborting, quit, stop_on_failure;
	rc_t err; struct reporter *rep; uint32_t priority;
};
struct device { int lost, users; pthread_t owner; struct context *ctx; size_t used; int fault, fault_skip; int peer[MAXDEV]; };
struct count { char name[48]; long calls; rc_t inject; int skip, armed; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // guards everything
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; // anything has happened
static struct object *objects;
static struct reporter *reporters;
static struct device devs[MAXDEV];
static struct count counts[MAXNAMES];
static int ndev = 4, inited, misalign, no_peers, nviolations, no_init;
static size_t capacity = (size_t)1 << 30;
static char violations[8192];
static uint64_t topology = 1;
static __thread int current = -1;
static __thread int reporting; // the current device came with a context, as on a report thread
static __thread char text[256];

static rc_t fail(rc_t code, const char *fmt, ...) {
	va_list ap;
	int n = snprintf(text, sizeof text, "EZ%06d stand-in: ", code);
	va_start(ap, fmt);
	vsnprintf(text + n, sizeof text - n, fmt, ap);
	va_end(ap);
	return code;
}

static void violation(const char *fmt, ...) {
	va_list ap;
	size_t n = strlen(violations);
	nviolations++;
	if (n > sizeof violations - 300) return;
	va_start(ap, fmt);
	vsnprintf(violations + n, sizeof violations - n - 2, fmt, ap);
	va_end(ap);
	strcat(violations, "\n");
}

static struct count *counter(const char *name) {
	for (int i = 0; i < MAXNAMES; i++) {
		if (!counts[i].name[0]) snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
		if (!strcmp(counts[i].name, name)) return &counts[i];
	}
	abort();
}

// enter begins every call: it takes the lock, counts, and is where errors are injected.
static rc_t enter(const char *name) {
	pthread_mutex_lock(&mu);
	struct count *c = counter(name);
	c->calls++;
	if (!inited && !no_init) {
		violation("%s before aclInit", name);
		return fail(100001, "%s before aclInit", name);
	}
	if (c->armed && c->skip-- == 0) {
		c->armed = 0;
		return fail(c->inject, "injected into %s", name);
	}
	return 0;
}
static rc_t leave(rc_t rc) { pthread_cond_broadcast(&moved); pthread_mutex_unlock(&mu); return rc; }
#define ENTER(name) do { rc_t e_ = enter(name); if (e_) return leave(e_); } while (0)

// here checks the thread: it must be the one that set the device.
static rc_t here(const char *name, int dev) {
	if (current < 0) { violation("%s on a thread without a device", name); return fail(107002, "%s: no device on this thread", name); }
	if (dev >= 0 && current != dev) { violation("%s of device %d on a thread of device %d", name, dev, current); return fail(107003, "%s: of another device", name); }
	if (reporting) { violation("%s on a report thread", name); return fail(107002, "%s: on a report thread", name); }
	if (devs[current].lost) return fail(devs[current].lost, "%s: device %d is lost", name, current);
	return 0;
}
#define HERE(name, dev) do { rc_t e_ = here(name, dev); if (e_) return leave(e_); } while (0)

static int known(void *h, enum kind k) {
	for (struct object *o = objects; o; o = o->next)
		if ((void *)o == h) return o->kind == k && o->alive;
	return 0;
}
#define HANDLE(name, h, k) do { if (!known(h, k)) { violation("%s with a handle that is none, or no more", name); return leave(fail(107017, "%s: invalid handle", name)); } HERE(name, ((struct object *)(h))->dev); } while (0)

static void *make(size_t size, enum kind k) {
	struct object *o = calloc(1, size);
	o->kind = k; o->dev = current; o->alive = 1; o->next = objects; objects = o;
	return o;
}

// find is the live allocation that holds n bytes at p; partly says that some are in one.
static struct memory *find(const void *p, size_t n, int *partly) {
	for (struct object *o = objects; o; o = o->next) {
		struct memory *m = (struct memory *)o;
		if (o->kind != MEMORY || !o->alive) continue;
		if ((char *)p >= m->at && (char *)p + n <= m->at + m->size) return m;
		if ((char *)p < m->at + m->size && (char *)p + n > m->at) *partly = 1;
	}
	return 0;
}

static void until(struct timespec *t, int32_t ms) {
	clock_gettime(CLOCK_REALTIME, t);
	t->tv_sec += ms / 1000;
	t->tv_nsec += (ms % 1000) * 1000000L;
	if (t->tv_nsec >= 1000000000L) { t->tv_sec++; t->tv_nsec -= 1000000000L; }
}

// ---- what a test asks for

API int standin_violations(char *out, int n) { pthread_mutex_lock(&mu); snprintf(out, n, "%s", violations); int v = nviolations; pthread_mutex_unlock(&mu); return v; }
API void standin_inject(const char *name, int code, int skip) { pthread_mutex_lock(&mu); struct count *c = counter(name); c->inject = code; c->skip = skip; c->armed = code != 0; pthread_mutex_unlock(&mu); }
API long standin_calls(const char *name) { pthread_mutex_lock(&mu); long n = counter(name)->calls; pthread_mutex_unlock(&mu); return n; }
API void standin_fault(int dev, int code, int skip) { pthread_mutex_lock(&mu); devs[dev].fault = code; devs[dev].fault_skip = skip; pthread_mutex_unlock(&mu); }
API void standin_lose(int dev, int code) { pthread_mutex_lock(&mu); devs[dev].lost = code; leave(0); }
API void standin_set(const char *what, long value) {
	pthread_mutex_lock(&mu);
	if (!strcmp(what, "devices")) ndev = value;
	else if (!strcmp(what, "misalign")) misalign = value;
	else if (!strcmp(what, "no peers")) no_peers = value;
	else if (!strcmp(what, "memory")) capacity = value;
	else if (!strcmp(what, "topology")) topology = value;
	else abort();
	pthread_mutex_unlock(&mu);
}
// standin_live counts what was made and not given back.
API int standin_live(void) {
	pthread_mutex_lock(&mu);
	int n = 0;
	for (struct object *o = objects; o; o = o->next) n += o->alive && o->kind != CONTEXT;
	pthread_mutex_unlock(&mu);
	return n;
}
// standin_reset makes all as new, but that the library stays initialised.
API void standin_reset(void) {
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAXDEV; i++) { int u = devs[i].users; if (u) violation("standin_reset with device %d in use", i); memset(&devs[i], 0, sizeof devs[i]); }
	memset(counts, 0, sizeof counts);
	nviolations = 0; violations[0] = 0; misalign = no_peers = 0; ndev = 4; capacity = (size_t)1 << 30; topology = 1;
	pthread_mutex_unlock(&mu);
}

// ---- the library

API rc_t aclInit(const char *cfg) {
	(void)cfg;
	no_init = 1; rc_t e = enter("aclInit"); no_init = 0;
	if (e) return leave(e);
	if (inited) return leave(fail(100002, "initialised already"));
	inited = 1;
	return leave(0);
}
API const char *aclGetRecentErrMsg(void) { return text[0] ? text : 0; }
API rc_t aclrtGetVersion(int32_t *a, int32_t *b, int32_t *c) { ENTER("aclrtGetVersion"); *a = 1; *b = 17; *c = 0; return leave(0); }
API const char *aclrtGetSocName(void) { return "stand-in, no NPU"; }
API rc_t aclrtGetDeviceCount(uint32_t *n) { ENTER("aclrtGetDeviceCount"); *n = ndev; return leave(0); }
API rc_t aclrtSetDevice(int32_t d) {
	ENTER("aclrtSetDevice");
	if (d < 0 || d >= ndev) return leave(fail(107001, "no device %d", d));
	if (devs[d].lost) return leave(fail(devs[d].lost, "device %d is lost", d));
	if (devs[d].users && !pthread_equal(devs[d].owner, pthread_self())) violation("aclrtSetDevice(%d) on a second thread", d);
	devs[d].users++;
	devs[d].owner = pthread_self();
	current = d; reporting = 0;
	if (!devs[d].ctx) devs[d].ctx = make(sizeof(struct context), CONTEXT);
	return leave(0);
}

static void *run(void *arg);
static rc_t reset(const char *name, int32_t d, int force) {
	ENTER(name);
	if (d < 0 || d >= ndev) return leave(fail(107001, "no device %d", d));
	if (!devs[d].users || !pthread_equal(devs[d].owner, pthread_self())) violation("%s(%d) on a thread that has not set it", name, d);
	int left = 0;
	for (struct object *o = objects; o; o = o->next) {
		if (o->dev != d || !o->alive || o->kind == HOSTMEM) continue;
		if (o->kind == STREAM) {
			struct stream *s = (struct stream *)o;
			s->quit = s->aborting = 1;
			pthread_cond_broadcast(&moved);
			pthread_mutex_unlock(&mu); pthread_join(s->thread, 0); pthread_mutex_lock(&mu);
		}
		if (o->kind == MEMORY) free(((struct memory *)o)->raw);
		left += o->kind != CONTEXT;
		o->alive = 0;
	}
	if (left && !force) violation("%s(%d) with %d things that were not given back", name, d, left);
	devs[d].users = 0; devs[d].ctx = 0; devs[d].used = 0; memset(devs[d].peer, 0, sizeof devs[d].peer);
	current = -1;
	return leave(devs[d].lost && !force ? fail(devs[d].lost, "device %d is lost", d) : 0);
}
API rc_t aclrtResetDevice(int32_t d) { return reset("aclrtResetDevice", d, 0); }
API rc_t aclrtResetDeviceForce(int32_t d) { return reset("aclrtResetDeviceForce", d, 1); }
API rc_t aclrtQueryDeviceStatus(int32_t d, int32_t *st) { ENTER("aclrtQueryDeviceStatus"); if (d < 0 || d >= ndev) return leave(fail(107001, "no device %d", d)); *st = devs[d].lost != 0; return leave(0); }
API rc_t aclrtGetDevicesTopo(uint32_t a, uint32_t b, uint64_t *bits) { ENTER("aclrtGetDevicesTopo"); if ((int)a >= ndev || (int)b >= ndev || a == b) return leave(fail(107001, "topology")); *bits = topology; return leave(0); }

API rc_t aclrtGetCurrentContext(void **c) { ENTER("aclrtGetCurrentContext"); HERE("aclrtGetCurrentContext", -1); *c = devs[current].ctx; return leave(0); }
API rc_t aclrtSetCurrentContext(void *c) {
	ENTER("aclrtSetCurrentContext");
	if (!known(c, CONTEXT)) { violation("aclrtSetCurrentContext with none"); return leave(fail(107002, "no context")); }
	current = ((struct object *)c)->dev; reporting = 1;
	return leave(0);
}

// ---- streams

static rc_t new_stream(const char *name, void **out, uint32_t priority, uint32_t flag) {
	ENTER(name);
	HERE(name, -1);
	if (!out || priority > 7 || flag > 0x40) return leave(fail(107000, "%s: argument", name));
	struct stream *s = make(sizeof *s, STREAM);
	s->priority = priority;
	if (pthread_create(&s->thread, 0, run, s)) abort();
	*out = s;
	return leave(0);
}
API rc_t aclrtCreateStream(void **s) { return new_stream("aclrtCreateStream", s, 0, 0); }
API rc_t aclrtCreateStreamWithConfig(void **s, uint32_t priority, uint32_t flag) { return new_stream("aclrtCreateStreamWithConfig", s, priority, flag); }
API rc_t aclrtSetStreamFailureMode(void *h, uint64_t mode) { ENTER("aclrtSetStreamFailureMode"); HANDLE("aclrtSetStreamFailureMode", h, STREAM); if (mode > 1) return leave(fail(107000, "mode")); ((struct stream *)h)->stop_on_failure = mode; return leave(0); }
static rc_t destroy_stream(const char *name, void *h, int force) {
	ENTER(name);
	HANDLE(name, h, STREAM);
	struct stream *s = h;
	if (!force && (s->head || s->busy)) violation("%s of a stream with tasks", name);
	if (s->rep) violation("%s of a stream that is subscribed", name);
	if (force) s->aborting = 1;
	s->quit = 1;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&mu);
	pthread_join(s->thread, 0);
	pthread_mutex_lock(&mu);
	s->o.alive = 0;
	return leave(0);
}
API rc_t aclrtDestroyStream(void *h) { return destroy_stream("aclrtDestroyStream", h, 0); }
API rc_t aclrtDestroyStreamForce(void *h) { return destroy_stream("aclrtDestroyStreamForce", h, 1); }
API rc_t aclrtStreamQuery(void *h, int32_t *st) { ENTER("aclrtStreamQuery"); HANDLE("aclrtStreamQuery", h, STREAM); struct stream *s = h; *st = s->head || s->busy; return leave(s->err ? fail(s->err, "a task has failed") : 0); }
API rc_t aclrtStreamAbort(void *h) {
	ENTER("aclrtStreamAbort");
	HANDLE("aclrtStreamAbort", h, STREAM);
	struct stream *s = h;
	s->aborting = 1;
	pthread_cond_broadcast(&moved);
	while (s->aborting && !devs[s->o.dev].lost) pthread_cond_wait(&moved, &mu);
	return leave(0);
}

static rc_t give(struct stream *s, struct task t) {
	if (s->err) return fail(s->err, "the stream has failed");
	struct task *k = malloc(sizeof *k);
	*k = t;
	k->next = 0;
	if (s->tail) s->tail->next = k; else s->head = k;
	s->tail = k;
	return 0;
}

static float half(uint16_t h) {
	int e = h >> 10 & 31, m = h & 1023; float v;
	if (e == 31) { uint32_t b = 0x7f800000u | m << 13; memcpy(&v, &b, 4); }
	else if (e) { uint32_t b = (e + 112u) << 23 | m << 13; memcpy(&v, &b, 4); }
	else v = m * 0x1p-24f;
	return h & 0x8000 ? -v : v;
}
static uint16_t to_half(float f) { // nearest, ties to even
	uint32_t b; memcpy(&b, &f, 4);
	uint16_t sign = b >> 16 & 0x8000; uint32_t a = b & 0x7fffffff;
	if (a > 0x7f800000) return sign | 0x7e00;
	if (a >= 0x477ff000) return sign | 0x7c00;
	if (a < 0x38800000) { float x; memcpy(&x, &a, 4); float y = x + 0.5f; uint32_t r; memcpy(&r, &y, 4); return sign | (r - 0x3f000000); }
	return sign | ((a + 0xfff + (a >> 13 & 1)) - 0x38000000) >> 13;
}
static float brain(uint16_t h) { uint32_t b = (uint32_t)h << 16; float v; memcpy(&v, &b, 4); return v; }
static uint16_t to_brain(float f) { uint32_t b; memcpy(&b, &f, 4); if ((b & 0x7fffffff) > 0x7f800000) return b >> 16 | 0x40; return (b + 0x7fff + (b >> 16 & 1)) >> 16; }
#define FOLD(T, LOAD, STORE) for (size_t i = 0; i + sizeof(T) <= n; i += sizeof(T)) { T a, b; memcpy(&a, d + i, sizeof a); memcpy(&b, s + i, sizeof b); \
	__typeof__(LOAD(a)) x = LOAD(a), y = LOAD(b), z = op == 10 ? x + y : op == 11 ? (x > y ? x : y) : (x < y ? x : y); T r = STORE(z); memcpy(d + i, &r, sizeof r); }
#define SAME(v) (v)
static void fold(char *d, const char *s, size_t n, int op, int type) {
	switch (type) {
	case 0: FOLD(float, SAME, SAME) break;
	case 1: FOLD(uint16_t, half, to_half) break;
	case 2: FOLD(int8_t, SAME, (int8_t)) break;
	case 3: FOLD(int32_t, (uint32_t)SAME, (int32_t)) break;
	case 6: FOLD(int16_t, SAME, (int16_t)) break;
	case 27: FOLD(uint16_t, brain, to_brain) break;
	}
}
static int width(int type) { switch (type) { case 0: case 3: return 4; case 1: case 6: case 27: return 2; case 2: return 1; } return 0; }

// stopped says that a task is not to go on waiting.
static int stopped(struct stream *s) { return s->aborting || devs[s->o.dev].lost; }

// execute does a task, with the lock, and gives its error.
static rc_t execute(struct stream *s, struct task *k) {
	struct device *d = &devs[s->o.dev];
	int partly = 0;
	if ((k->what == COPY || k->what == REDUCE) && d->fault && d->fault_skip-- == 0) { rc_t f = d->fault; d->fault = 0; return f; }
	switch (k->what) {
	case COPY: case REDUCE:
		if (k->seq & 1 && !find(k->dst, k->n, &partly)) { violation("a task writes memory that was freed"); return 507053; }
		if (k->seq & 2 && !find(k->src, k->n, &partly)) { violation("a task reads memory that was freed"); return 507053; }
		if (k->what == COPY) memmove(k->dst, k->src, k->n); else fold(k->dst, k->src, k->n, k->op, k->type);
		return 0;
	case RECORD:
		if (k->ev->done < k->seq) { k->ev->done = k->seq; clock_gettime(CLOCK_MONOTONIC, &k->ev->when); }
		return 0;
	case WAIT_EVENT:
		while (k->ev->done < k->seq && !stopped(s)) pthread_cond_wait(&moved, &mu);
		return 0;
	case CALL: {
		struct reporter *r = s->rep;
		struct call *c = k->call;
		if (!r) { violation("a callback of a stream that is not subscribed any more"); return 107015; }
		if (r->tail) r->tail->next = c; else r->head = c;
		r->tail = c;
		pthread_cond_broadcast(&moved);
		int block = c->block;
		while (block && !c->done && !stopped(s)) pthread_cond_wait(&moved, &mu);
		return 0;
	}
	case QUIT: break;
	}
	return 0;
}

static void *run(void *arg) {
	struct stream *s = arg;
	pthread_mutex_lock(&mu);
	for (;;) {
		if (s->aborting) {
			while (s->head) { struct task *k = s->head; s->head = k->next; free(k); }
			s->tail = 0; s->aborting = 0;
			pthread_cond_broadcast(&moved);
		}
		if (s->quit && (!s->head || devs[s->o.dev].lost)) break;
		if (!s->head || devs[s->o.dev].lost) { pthread_cond_wait(&moved, &mu); continue; }
		struct task *k = s->head;
		s->head = k->next;
		if (!s->head) s->tail = 0;
		s->busy = 1;
		rc_t e = execute(s, k);
		free(k);
		s->busy = 0;
		if (e) {
			if (!s->err) s->err = e;
			if (s->stop_on_failure) { while (s->head) { k = s->head; s->head = k->next; free(k); } s->tail = 0; }
		}
		pthread_cond_broadcast(&moved);
		pthread_mutex_unlock(&mu); // others get their turn
		pthread_mutex_lock(&mu);
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

// ---- events

static rc_t new_event(const char *name, void **out, int flags) { ENTER(name); HERE(name, -1); struct event *e = make(sizeof *e, EVENT); e->flags = flags; *out = e; return leave(0); }
API rc_t aclrtCreateEvent(void **e) { return new_event("aclrtCreateEvent", e, 9); }
API rc_t aclrtCreateEventExWithFlag(void **e, uint32_t flags) { return new_event("aclrtCreateEventExWithFlag", e, flags); }
API rc_t aclrtDestroyEvent(void *h) {
	ENTER("aclrtDestroyEvent");
	HANDLE("aclrtDestroyEvent", h, EVENT);
	for (struct object *o = objects; o; o = o->next)
		if (o->kind == STREAM && o->alive)
			for (struct task *k = ((struct stream *)o)->head; k; k = k->next)
				if (k->ev == h) violation("aclrtDestroyEvent of one that a stream has");
	((struct object *)h)->alive = 0;
	return leave(0);
}
API rc_t aclrtRecordEvent(void *h, void *st) {
	ENTER("aclrtRecordEvent");
	HANDLE("aclrtRecordEvent", h, EVENT);
	HANDLE("aclrtRecordEvent", st, STREAM);
	struct event *e = h;
	return leave(give(st, (struct task){.what = RECORD, .ev = e, .seq = ++e->recorded}));
}
API rc_t aclrtStreamWaitEvent(void *st, void *h) {
	ENTER("aclrtStreamWaitEvent");
	HANDLE("aclrtStreamWaitEvent", st, STREAM);
	HANDLE("aclrtStreamWaitEvent", h, EVENT);
	struct event *e = h;
	if (!e->recorded) violation("aclrtStreamWaitEvent of an event that was never recorded");
	return leave(give(st, (struct task){.what = WAIT_EVENT, .ev = e, .seq = e->recorded}));
}
API rc_t aclrtEventElapsedTime(float *ms, void *a, void *b) {
	ENTER("aclrtEventElapsedTime");
	HANDLE("aclrtEventElapsedTime", a, EVENT);
	HANDLE("aclrtEventElapsedTime", b, EVENT);
	struct event *x = a, *y = b;
	if (!(x->flags & 8) || !(y->flags & 8) || !x->done || !y->done) return leave(fail(107006, "an event without a time"));
	*ms = (y->when.tv_sec - x->when.tv_sec) * 1e3f + (y->when.tv_nsec - x->when.tv_nsec) / 1e6f;
	return leave(*ms < 0 ? fail(107007, "the events are the other way round") : 0);
}

// ---- memory

API rc_t aclrtMalloc(void **p, size_t n, int32_t policy) {
	ENTER("aclrtMalloc");
	HERE("aclrtMalloc", -1);
	if (!n || (policy & 0xff) > 7) { violation("aclrtMalloc(%zu, %d)", n, policy); return leave(fail(107000, "size or policy")); }
	if (n > capacity - devs[current].used) return leave(fail(207018, "%zu bytes asked for", n));
	struct memory *m = make(sizeof *m, MEMORY);
	size_t off = misalign ? 64 : 0;
	if (posix_memalign((void **)&m->raw, 512, n + off)) abort();
	memset(m->raw, 0xa5, n + off);
	m->at = m->raw + off; m->size = n;
	devs[current].used += n;
	*p = m->at;
	return leave(0);
}
API rc_t aclrtFree(void *p) {
	ENTER("aclrtFree");
	for (struct object *o = objects; o; o = o->next) {
		struct memory *m = (struct memory *)o;
		if (o->kind != MEMORY || !o->alive || m->at != p) continue;
		HERE("aclrtFree", o->dev);
		for (struct object *q = objects; q; q = q->next)
			if (q->kind == STREAM && q->alive)
				for (struct task *k = ((struct stream *)q)->head; k; k = k->next)
					if ((k->what == COPY || k->what == REDUCE) && ((k->dst >= m->at && k->dst < m->at + m->size) || (k->src >= m->at && k->src < m->at + m->size)))
						violation("aclrtFree of memory that a task uses");
		o->alive = 0;
		devs[o->dev].used -= m->size;
		free(m->raw);
		return leave(0);
	}
	violation("aclrtFree of what was not given");
	return leave(fail(107000, "not given"));
}
API rc_t aclrtMallocHost(void **p, size_t n) {
	ENTER("aclrtMallocHost");
	HERE("aclrtMallocHost", -1);
	struct memory *m = make(sizeof *m, HOSTMEM);
	if (!n || posix_memalign((void **)&m->raw, 4096, n)) return leave(fail(207001, "host memory"));
	m->at = m->raw; m->size = n; *p = m->at;
	return leave(0);
}
API rc_t aclrtFreeHost(void *p) {
	ENTER("aclrtFreeHost");
	for (struct object *o = objects; o; o = o->next)
		if (o->kind == HOSTMEM && o->alive && ((struct memory *)o)->at == p) { o->alive = 0; free(((struct memory *)o)->raw); return leave(0); }
	violation("aclrtFreeHost of what was not given");
	return leave(fail(107000, "not given"));
}
API rc_t aclrtGetMemInfo(int32_t attr, size_t *f, size_t *t) { ENTER("aclrtGetMemInfo"); HERE("aclrtGetMemInfo", -1); if (attr < 0 || attr > 9) return leave(fail(107000, "attribute")); *t = capacity; *f = capacity - devs[current].used; return leave(0); }

// copyable checks a copy's arguments; where says which sides are devices' (1 dst, 2 src).
static rc_t copyable(const char *name, const char *dst, size_t max, const char *src, size_t n, int kind, int async, uint64_t *where) {
	int partly = 0;
	if (!n || n > max || !dst || !src || kind < 0 || kind > 7) { violation("%s: %zu of %zu bytes, kind %d", name, n, max, kind); return fail(107000, "%s: arguments", name); }
	struct memory *d = find(dst, n, &partly), *s = find(src, n, &partly);
	if (partly) { violation("%s goes beyond an allocation", name); return fail(107000, "%s: beyond an allocation", name); }
	int want = kind == 1 ? 1 : kind == 2 ? 2 : kind == 0 ? 0 : 3, have = (d ? 1 : 0) | (s ? 2 : 0);
	if (kind != 4 && want != have) { violation("%s: kind %d, but the devices' sides are %d", name, kind, have); return fail(107016, "%s: kind %d of copy", name, kind); }
	if (async && d && s && d->o.dev == s->o.dev && (((uintptr_t)dst | (uintptr_t)src) & 63)) { violation("%s within a device, unaligned", name); return fail(107008, "%s: unaligned", name); }
	for (int i = 0; i < 2; i++) {
		struct memory *m = i ? s : d;
		if (!m || m->o.dev == current) continue;
		if (have != 3) { violation("%s between the host and device %d on a thread of device %d", name, m->o.dev, current); return fail(107000, "%s: memory of another device", name); }
		if (!devs[current].peer[m->o.dev]) { violation("%s with device %d, whose access is not enabled", name, m->o.dev); return fail(107000, "%s: no access to device %d", name, m->o.dev); }
		if (devs[m->o.dev].lost) return fail(507057, "device %d is lost", m->o.dev);
	}
	*where = have;
	return 0;
}
API rc_t aclrtMemcpyAsync(void *d, size_t max, const void *s, size_t n, int32_t kind, void *st) {
	ENTER("aclrtMemcpyAsync");
	HANDLE("aclrtMemcpyAsync", st, STREAM);
	uint64_t w = 0;
	rc_t e = copyable("aclrtMemcpyAsync", d, max, s, n, kind, 1, &w);
	if (e) return leave(e);
	return leave(give(st, (struct task){.what = COPY, .dst = d, .src = s, .n = n, .seq = w}));
}
API rc_t aclrtReduceAsync(void *d, const void *s, uint64_t n, int32_t op, int32_t type, void *st, void *reserved) {
	ENTER("aclrtReduceAsync");
	HANDLE("aclrtReduceAsync", st, STREAM);
	int partly = 0, w = width(type);
	struct memory *x = find(d, n, &partly), *y = find(s, n, &partly);
	if (reserved || op < 10 || op > 12) { violation("aclrtReduceAsync: operation %d, reserved %p", op, reserved); return leave(fail(107000, "reduce")); }
	if (!w) { violation("aclrtReduceAsync: type %d", type); return leave(fail(207000, "reduce: type %d", type)); }
	if (!x || !y || x->o.dev != current || y->o.dev != current || !n || n % w) { violation("aclrtReduceAsync: memory that is not of this device, or %llu bytes", (unsigned long long)n); return leave(fail(107000, "reduce: memory")); }
	return leave(give(st, (struct task){.what = REDUCE, .dst = d, .src = s, .n = n, .op = op, .type = type, .seq = 3}));
}

// ---- peers

API rc_t aclrtDeviceCanAccessPeer(int32_t *can, int32_t d, int32_t p) { ENTER("aclrtDeviceCanAccessPeer"); if (d < 0 || p < 0 || d >= ndev || p >= ndev) return leave(fail(107001, "peer")); *can = d != p && !no_peers; return leave(0); }
API rc_t aclrtDeviceEnablePeerAccess(int32_t p, uint32_t flags) {
	ENTER("aclrtDeviceEnablePeerAccess");
	HERE("aclrtDeviceEnablePeerAccess", -1);
	if (p < 0 || p >= ndev || p == current || flags || no_peers) return leave(fail(107000, "peer %d", p));
	if (devs[current].peer[p]) violation("aclrtDeviceEnablePeerAccess(%d) again", p);
	devs[current].peer[p] = 1;
	return leave(0);
}

// ---- memory of other processes: here, of this one

API rc_t aclrtIpcMemGetExportKey(void *p, size_t n, char *key, size_t len, uint64_t flags) {
	ENTER("aclrtIpcMemGetExportKey");
	HERE("aclrtIpcMemGetExportKey", -1);
	int partly = 0;
	if (!find(p, n, &partly) || len < 65 || flags > 1) return leave(fail(107000, "export"));
	memset(key, 0, len);
	snprintf(key, len, "mem:%llx:%llx", (unsigned long long)(uintptr_t)p, (unsigned long long)n);
	return leave(0);
}
static void *keyed(const char *key, const char *kind) { unsigned long long p = 0; char k[8]; return sscanf(key, "%3[a-z]:%llx", k, &p) == 2 && !strcmp(k, kind) ? (void *)(uintptr_t)p : 0; }
API rc_t aclrtIpcMemImportByKey(void **p, const char *key, uint64_t flags) { ENTER("aclrtIpcMemImportByKey"); HERE("aclrtIpcMemImportByKey", -1); if (flags > 1 || !(*p = keyed(key, "mem"))) return leave(fail(107000, "import")); return leave(0); }
API rc_t aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t n) { ENTER("aclrtIpcMemSetImportPid"); if (!keyed(key, "mem") || !n || pids[0] <= 0) return leave(fail(107000, "pid")); return leave(0); }
API rc_t aclrtIpcMemClose(const char *key) { ENTER("aclrtIpcMemClose"); HERE("aclrtIpcMemClose", -1); return leave(keyed(key, "mem") ? 0 : fail(107000, "key")); }

// ---- callbacks

API rc_t aclrtSubscribeReport(uint64_t thread, void *st) {
	ENTER("aclrtSubscribeReport");
	HANDLE("aclrtSubscribeReport", st, STREAM);
	struct reporter *r = reporters;
	while (r && (uint64_t)r->thread != thread) r = r->next;
	if (!r) { r = calloc(1, sizeof *r); r->thread = (pthread_t)thread; r->next = reporters; reporters = r; }
	if (((struct stream *)st)->rep) { violation("aclrtSubscribeReport of a stream again"); return leave(fail(107011, "again")); }
	((struct stream *)st)->rep = r;
	r->streams++;
	return leave(0);
}
API rc_t aclrtUnSubscribeReport(uint64_t thread, void *st) {
	ENTER("aclrtUnSubscribeReport");
	HANDLE("aclrtUnSubscribeReport", st, STREAM);
	struct stream *s = st;
	if (!s->rep || (uint64_t)s->rep->thread != thread) { violation("aclrtUnSubscribeReport of a stream that is not"); return leave(fail(107011, "not subscribed")); }
	s->rep->streams--;
	s->rep = 0;
	return leave(0);
}
API rc_t aclrtLaunchCallback(callback_t f, void *arg, int32_t block, void *st) {
	ENTER("aclrtLaunchCallback");
	HANDLE("aclrtLaunchCallback", st, STREAM);
	struct stream *s = st;
	if (!f || block < 0 || block > 1) { violation("aclrtLaunchCallback: arguments"); return leave(fail(107000, "callback")); }
	if (!s->rep) { violation("aclrtLaunchCallback on a stream without a subscriber"); return leave(fail(107015, "no subscriber")); }
	struct call *c = calloc(1, sizeof *c);
	c->f = f; c->arg = arg; c->block = block;
	rc_t e = give(s, (struct task){.what = CALL, .call = c});
	if (e) free(c);
	return leave(e);
}
API rc_t aclrtProcessReport(int32_t ms) {
	ENTER("aclrtProcessReport");
	if (!reporting) { violation("aclrtProcessReport on a thread without a context"); return leave(fail(107002, "no context")); }
	struct reporter *r = reporters;
	while (r && !pthread_equal(r->thread, pthread_self())) r = r->next;
	if (!r || !r->streams) return leave(fail(107012, "this thread is not subscribed"));
	struct timespec t;
	until(&t, ms);
	while (!r->head || devs[current].lost)
		if (ms < 0) pthread_cond_wait(&moved, &mu);
		else if (pthread_cond_timedwait(&moved, &mu, &t)) return leave(fail(devs[current].lost ? devs[current].lost : 107019, "no report in %d ms", ms));
	struct call *c = r->head;
	r->head = c->next;
	if (!r->head) r->tail = 0;
	pthread_mutex_unlock(&mu);
	c->f(c->arg);
	pthread_mutex_lock(&mu);
	c->done = 1; // small, and read by its stream: not freed
	return leave(0);
}
