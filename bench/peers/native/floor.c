// floor: what the memory of this machine allows. Threads that wait for nobody move and
// add the bytes that a collective has to move and add, each its share of every piece.
// No program that also lets ranks wait for each other should be faster, as long as no
// other work takes the cores: the shares are fixed.
//
// Two ways to do it, printed as two programs:
//
//   floor     blocks that fit the first cache: sum into scratch, then copy to every
//             destination (memcpy); where there is nothing to add, memcpy alone
//   one-pass  every element is loaded once from each source, added in registers, and
//             stored to every destination; with ordinary and with streaming stores
//
// Both columns of times are the same number: no call waits for another either way.
#define _GNU_SOURCE
#include "cases.h"
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

enum { max_ranks = 64, max_threads = 256, block = 2048, line = 16 }; // elements

// vec is eight floats at any address: AVX where the compiler may use it.
typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
#define VEC(p) (*(vec *)(p))
#define CONST_VEC(p) (*(const vec *)(p))

// piece is one reduction or copy: the sum of the sources goes to every destination.
struct piece {
    int sources, targets, in_place; // in_place: the targets are the sources
    const float *source[max_ranks];
    float *target[max_ranks];
    size_t count; // elements
};

// ---- kernels: elements lo to hi of one piece

typedef void kernel(const struct piece *p, size_t lo, size_t hi);

static __attribute__((noinline)) void blocked(const struct piece *p, size_t lo, size_t hi) {
    float scratch[block] __attribute__((aligned(64)));
    for (size_t at = lo, n; at < hi; at += n) {
        n = hi - at < block ? hi - at : block;
        const float *sum = p->source[0] + at;
        for (int s = 1; s < p->sources; s++) {
            const float *add = p->source[s] + at;
            for (size_t i = 0; i < n; i++) scratch[i] = sum[i] + add[i];
            sum = scratch;
        }
        for (int d = 0; d < p->targets; d++) memcpy(p->target[d] + at, sum, n * sizeof *sum);
    }
}

// whole copies each target in one go, which lets memcpy choose streaming stores.
static __attribute__((noinline)) void whole(const struct piece *p, size_t lo, size_t hi) {
    for (int d = 0; d < p->targets; d++)
        memcpy(p->target[d] + lo, p->source[0] + lo, (hi - lo) * sizeof(float));
}

static inline __attribute__((always_inline)) void store(float *to, vec v, int streaming) {
#ifdef __AVX__
    if (streaming) {
        _mm256_stream_ps(to, (__m256)v);
        return;
    }
#endif
    (void)streaming;
    VEC(to) = v;
}

// pass is the one-pass kernel. It is inlined with constants for the usual numbers of
// sources and targets, so that all pointers and sums stay in registers.
static inline __attribute__((always_inline)) void pass(const struct piece *p, size_t lo, size_t hi,
                                                       int sources, int targets, int in_place, int streaming) {
    const float *source[max_ranks];
    float *target[max_ranks];
    for (int s = 0; s < sources; s++) source[s] = p->source[s];
    for (int d = 0; d < targets; d++) target[d] = in_place ? (float *)source[d] : p->target[d];
    size_t i = lo;
    for (; i + 16 <= hi; i += 16) {
        vec a = CONST_VEC(source[0] + i), b = CONST_VEC(source[0] + i + 8);
#pragma GCC unroll 8
        for (int s = 1; s < sources; s++) {
            a += CONST_VEC(source[s] + i);
            b += CONST_VEC(source[s] + i + 8);
        }
#pragma GCC unroll 8
        for (int d = 0; d < targets; d++) {
            store(target[d] + i, a, streaming);
            store(target[d] + i + 8, b, streaming);
        }
    }
    for (; i < hi; i++) {
        float a = source[0][i];
        for (int s = 1; s < sources; s++) a += source[s][i];
        for (int d = 0; d < targets; d++) target[d][i] = a;
    }
}

static inline __attribute__((always_inline)) void any_pass(const struct piece *p, size_t lo, size_t hi, int streaming) {
#define CASE(k, m, same) \
    if (p->sources == k && p->targets == m && p->in_place == same) { pass(p, lo, hi, k, m, same, streaming); return; }
    CASE(2, 2, 1) CASE(4, 4, 1) CASE(8, 8, 1)               // AllReduce
    CASE(2, 1, 0) CASE(4, 1, 0) CASE(8, 1, 0)               // ReduceScatter
    CASE(1, 1, 0) CASE(1, 2, 0) CASE(1, 4, 0) CASE(1, 8, 0) // AllToAll, AllGather
    CASE(1, 3, 0) CASE(1, 7, 0)                             // Broadcast
#undef CASE
    pass(p, lo, hi, p->sources, p->targets, p->in_place, streaming);
}

static __attribute__((noinline)) void one_pass(const struct piece *p, size_t lo, size_t hi) {
    any_pass(p, lo, hi, 0);
}

#ifdef __AVX__
static __attribute__((noinline)) void one_pass_streaming(const struct piece *p, size_t lo, size_t hi) {
    any_pass(p, lo, hi, 1);
    _mm_sfence();
}
#endif

// ---- the pieces of each collective

static float *memory(size_t bytes) {
    float *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("memory for the buffers");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static struct piece *one_piece(struct piece *list, int *n, size_t count) {
    struct piece *p = &list[(*n)++];
    memset(p, 0, sizeof *p);
    p->count = count;
    return p;
}

// pieces fills list for vectors of count elements and returns their number; 0 for a
// collective that moves nothing.
static int pieces(const struct task *t, struct piece *list, float **in, float **out, size_t count) {
    int n = 0, ranks = t->ranks;
    size_t part = count / ranks;
    if (!strcmp(t->collective, "AllReduce")) {
        struct piece *p = one_piece(list, &n, count);
        p->in_place = 1;
        for (int r = 0; r < ranks; r++) p->source[p->sources++] = p->target[p->targets++] = in[r];
    } else if (!strcmp(t->collective, "Broadcast")) {
        struct piece *p = one_piece(list, &n, count);
        p->source[p->sources++] = in[0];
        for (int r = 1; r < ranks; r++) p->target[p->targets++] = in[r];
    } else if (!strcmp(t->collective, "AllGather")) {
        for (int r = 0; r < ranks; r++) {
            struct piece *p = one_piece(list, &n, part);
            p->source[p->sources++] = in[r];
            for (int d = 0; d < ranks; d++) p->target[p->targets++] = out[d] + r * part;
        }
    } else if (!strcmp(t->collective, "ReduceScatter")) {
        for (int r = 0; r < ranks; r++) {
            struct piece *p = one_piece(list, &n, part);
            p->target[p->targets++] = out[r];
            for (int s = 0; s < ranks; s++) p->source[p->sources++] = in[s] + r * part;
        }
    } else if (!strcmp(t->collective, "AllToAll")) {
        for (int s = 0; s < ranks; s++)
            for (int d = 0; d < ranks; d++) {
                struct piece *p = one_piece(list, &n, part);
                p->source[p->sources++] = in[s] + d * part;
                p->target[p->targets++] = out[d] + s * part;
            }
    }
    return n;
}

// aligned says whether streaming stores may write every target and share of it.
static int aligned(const struct piece *list, int n) {
    for (int i = 0; i < n; i++)
        for (int d = 0; d < list[i].targets; d++)
            if ((uintptr_t)list[i].target[d] % 32) return 0;
    return 1;
}

// ---- threads

struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    int index, workers, cpu;
    kernel *run;
    const struct piece *list;
    int pieces;
    long calls;
    double seconds;
};

// bound is where share i of n begins, on a whole cache line.
static size_t bound(size_t count, int i, int n) { return i == n ? count : count * i / n / line * line; }

static void *work(void *arg) {
    struct worker *w = arg;
    if (w->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(w->cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    pthread_barrier_wait(w->start);
    double begin = now();
    for (long c = 0; c < w->calls; c++)
        for (int i = 0; i < w->pieces; i++) {
            size_t n = w->list[i].count, lo = bound(n, w->index, w->workers), hi = bound(n, w->index + 1, w->workers);
            if (lo < hi) w->run(&w->list[i], lo, hi);
        }
    w->seconds = now() - begin;
    return 0;
}

// nth_cpu is the i-th processor that this process may use, or -1.
static int nth_cpu(int i) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && i-- == 0) return cpu;
    return -1;
}

// repeat runs the calls on all threads and returns the seconds of the slowest.
static double repeat(kernel *run, const struct piece *list, int n, int threads, long calls) {
    static struct worker w[max_threads];
    pthread_barrier_t start;
    double slowest = 0;
    pthread_barrier_init(&start, 0, threads);
    for (int i = 0; i < threads; i++) {
        w[i] = (struct worker){.start = &start, .index = i, .workers = threads, .cpu = nth_cpu(i),
                               .run = run, .list = list, .pieces = n, .calls = calls};
        if (pthread_create(&w[i].thread, 0, work, &w[i])) {
            fprintf(stderr, "cannot start thread %d\n", i);
            exit(1);
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(w[i].thread, 0);
        if (w[i].seconds > slowest) slowest = w[i].seconds;
    }
    pthread_barrier_destroy(&start);
    return slowest;
}

// correct runs the kernel once on small whole numbers and compares every target.
static int correct(kernel *run, const struct piece *list, int n, int threads) {
    for (int i = 0; i < n; i++)
        for (int s = 0; s < list[i].sources; s++)
            for (size_t e = 0; e < list[i].count; e++) ((float *)list[i].source[s])[e] = s + (e & 7);
    repeat(run, list, n, threads, 1);
    int ok = 1;
    for (int i = 0; i < n; i++) {
        int k = list[i].sources;
        for (int d = 0; d < list[i].targets; d++)
            for (size_t e = 0; e < list[i].count; e++) ok &= list[i].target[d][e] == k * (k - 1) / 2 + k * (float)(e & 7);
    }
    for (int i = 0; i < n; i++)
        for (int s = 0; s < list[i].sources; s++) memset((void *)list[i].source[s], 0, list[i].count * sizeof(float));
    return ok;
}

// calls_for is how many calls fill the budget; finding it also warms up. Only the best of
// three tries counts, since one interruption is as long as a budget.
static long calls_for(const struct task *t, kernel *run, const struct piece *list, int n) {
    for (long calls = 1;; calls *= 2) {
        double best = repeat(run, list, n, t->threads, calls);
        for (int i = 0; i < 2 && best >= t->budget / 4; i++) {
            double s = repeat(run, list, n, t->threads, calls);
            if (s < best) best = s;
        }
        if (best >= t->budget / 4 || calls >= max_calls) return fill_budget(calls, best, t->budget);
    }
}

// measure prints the line of one case.
static void measure(const struct task *t, const char *program, const char *variant, kernel *run,
                    const struct piece *list, int n, size_t size) {
    if (!correct(run, list, n, t->threads)) {
        printf("BAD %s %s %s %d %zu wrong values\n", program, variant, t->collective, t->ranks, size);
        return;
    }
    long calls = calls_for(t, run, list, n);
    double times[max_repeats];
    for (int i = 0; i < t->repeats; i++) times[i] = repeat(run, list, n, t->threads, calls) / calls;
    double s = median(times, t->repeats);
    put_result(program, variant, t, size, s, t->separated ? s : 0, calls);
}

int main(int argc, char **argv) {
    struct task t;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!read_task(&t, argc, argv)) return 2;
    if (t.ranks < 2 || t.ranks > max_ranks) {
        fprintf(stderr, "ranks must be 2 to %d\n", max_ranks);
        return 2;
    }
    if (t.threads < 1) t.threads = 1;
    if (t.threads > max_threads) t.threads = max_threads;
    if (t.limit > 0) alarm(t.limit);
    size_t most = 4096;
    for (int i = 0; i < t.sizes; i++) most = t.size[i] > most ? t.size[i] : most;
    float *in[max_ranks], *out[max_ranks];
    int two = strcmp(t.collective, "AllReduce") && strcmp(t.collective, "Broadcast");
    for (int r = 0; r < t.ranks; r++) {
        in[r] = memory(most);
        out[r] = two ? memory(most) : in[r];
    }
    static struct piece list[max_ranks * max_ranks];
    for (int i = 0; i < t.sizes; i++) {
        int n = pieces(&t, list, in, out, t.size[i] / sizeof(float));
        if (!n) break;
        measure(&t, "floor", "blocked", blocked, list, n, t.size[i]);
        if (list[0].sources == 1) measure(&t, "floor", "whole", whole, list, n, t.size[i]);
        measure(&t, "one-pass", "stores", one_pass, list, n, t.size[i]);
#ifdef __AVX__
        if (t.size[i] >= 1 << 20 && aligned(list, n))
            measure(&t, "one-pass", "streaming", one_pass_streaming, list, n, t.size[i]);
#else
        (void)aligned;
#endif
    }
    return 0;
}
