// mpi: the collectives of any MPI, timed in two ways.
//
//   back to back  N calls / N, of the slowest rank
//   separated     a barrier before each call, which is not counted: the average call,
//                 of the slowest rank
//
// With work between the calls (think_ns) only the first is measured, less the time of the
// same work without the calls. AllReduce is done in place, and as a second variant from
// one buffer to another, since some algorithms prefer that.
#define _GNU_SOURCE
#include "cases.h"
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static int ranks, me;
static float *source, *target;

enum { root = 0 };

// ---- the calls: count is the number of elements of the whole vector

typedef void call(int count);

static void reduce_in_place(int n) { MPI_Allreduce(MPI_IN_PLACE, target, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void reduce_apart(int n) { MPI_Allreduce(source, target, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void gather(int n) { MPI_Allgather(source, n / ranks, MPI_FLOAT, target, n / ranks, MPI_FLOAT, MPI_COMM_WORLD); }
static void scatter(int n) { MPI_Reduce_scatter_block(source, target, n / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void broadcast(int n) { MPI_Bcast(target, n, MPI_FLOAT, root, MPI_COMM_WORLD); }
static void exchange(int n) { MPI_Alltoall(source, n / ranks, MPI_FLOAT, target, n / ranks, MPI_FLOAT, MPI_COMM_WORLD); }
static void barrier(int n) { (void)n; MPI_Barrier(MPI_COMM_WORLD); }

static const struct entry {
    const char *collective, *suffix; // suffix of the variant's name
    call *run;
} entries[] = {
    {"AllReduce", "", reduce_in_place}, {"AllReduce", "-apart", reduce_apart},
    {"AllGather", "", gather},          {"ReduceScatter", "", scatter},
    {"Broadcast", "", broadcast},       {"AllToAll", "", exchange},
    {"Barrier", "", barrier},
};

// ---- is the result right?

static float given(int rank, size_t i) { return rank + (float)(i & 7); }

// wanted is element i of this rank's result, for vectors of n elements.
static float wanted(call *run, size_t n, size_t i) {
    size_t part = n / ranks;
    int sum = ranks * (ranks - 1) / 2;
    if (run == gather) return given(i / part, i % part);
    if (run == scatter) return sum + ranks * (float)((me * part + i) & 7);
    if (run == broadcast) return given(root, i);
    if (run == exchange) return given(i / part, me * part + i % part);
    return sum + ranks * (float)(i & 7);
}

// correct makes one call on small whole numbers; all ranks get the same answer.
static int correct(call *run, size_t n) {
    if (run == barrier) return 1;
    for (size_t i = 0; i < n; i++) {
        source[i] = given(me, i);
        target[i] = run == reduce_in_place || (run == broadcast && me == root) ? given(me, i) : -1;
    }
    run(n);
    int ok = 1, all;
    for (size_t i = 0, end = run == scatter ? n / ranks : n; i < end; i++) ok &= target[i] == wanted(run, n, i);
    MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    memset(source, 0, n * sizeof *source);
    memset(target, 0, n * sizeof *target);
    return all;
}

// ---- work between the calls

static volatile uint64_t sink;

static void work(long units) {
    uint64_t x = sink;
    for (long i = 0; i < units; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    sink = x;
}

// units_of is the amount of work that takes so many seconds on an idle core, as the root
// finds it.
static long units_of(double seconds) {
    double best = 1;
    enum { probe = 1000000 };
    for (int i = 0; me == root && i < 5; i++) {
        double begin = now();
        work(probe);
        double s = now() - begin;
        if (s < best) best = s;
    }
    long units = seconds / best * probe;
    MPI_Bcast(&units, 1, MPI_LONG, root, MPI_COMM_WORLD);
    return units;
}

// ---- timing; every function returns the same on all ranks

static double slowest(double s) {
    double all;
    MPI_Allreduce(&s, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

// back_to_back is the seconds of all calls; without run, of the work between them.
static double back_to_back(call *run, int n, long calls, long units) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    for (long i = 0; i < calls; i++) {
        if (units) work(units);
        if (run) run(n);
    }
    return slowest(now() - begin);
}

static double separated(call *run, int n, long calls, long units) {
    double sum = 0;
    (void)units;
    for (long i = 0; i < calls; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now();
        run(n);
        sum += now() - begin;
    }
    return slowest(sum);
}

typedef double manner(call *run, int n, long calls, long units);

// once is the seconds that calls take in all, what a manner does not count included.
static double once(manner *how, call *run, int n, long calls, long units) {
    double begin = now();
    how(run, n, calls, units);
    return slowest(now() - begin);
}

// calls_for is how many calls fill the budget; finding it also warms up. Only the best of
// three tries counts, since one interruption is as long as a budget.
static long calls_for(manner *how, call *run, int n, double budget, long units) {
    for (long calls = 1;; calls *= 2) {
        double best = once(how, run, n, calls, units);
        for (int i = 0; i < 2 && best >= budget / 4; i++) {
            double s = once(how, run, n, calls, units);
            if (s < best) best = s;
        }
        if (best < budget / 4 && calls < max_calls) continue;
        calls = fill_budget(calls, best, budget);
        MPI_Bcast(&calls, 1, MPI_LONG, root, MPI_COMM_WORLD);
        return calls;
    }
}

static double timed(manner *how, call *run, int n, const struct task *t, long units, long *calls) {
    double times[max_repeats];
    *calls = calls_for(how, run, n, t->budget, units);
    for (int i = 0; i < t->repeats; i++) {
        times[i] = how(run, n, *calls, units);
        if (units) times[i] -= back_to_back(0, n, *calls, units);
        times[i] /= *calls;
    }
    return median(times, t->repeats);
}

static void measure(const struct task *t, const struct entry *e, size_t size, long units) {
    char variant[48];
    int n = size / sizeof(float);
    snprintf(variant, sizeof variant, "%s%s", t->variant, e->suffix);
    if (!correct(e->run, n)) {
        if (me == root) printf("BAD openmpi %s %s %d %zu wrong values\n", variant, t->collective, ranks, size);
        return;
    }
    long calls, ignored;
    double together = timed(back_to_back, e->run, n, t, units, &calls), apart = 0;
    if (t->separated && !units && e->run != barrier) apart = timed(separated, e->run, n, t, 0, &ignored);
    if (me == root) put_result("openmpi", variant, t, size, together, apart, calls);
}

int main(int argc, char **argv) {
    struct task t;
    prctl(PR_SET_PDEATHSIG, SIGKILL); // not to outlive a launcher that was killed
    if (!read_task(&t, argc, argv)) return 2;
    if (t.limit > 0) alarm(t.limit);
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    size_t most = 4096;
    for (int i = 0; i < t.sizes; i++) most = t.size[i] > most ? t.size[i] : most;
    if (ranks != t.ranks || most > INT32_MAX || posix_memalign((void **)&source, 4096, most) ||
        posix_memalign((void **)&target, 4096, most)) {
        fprintf(stderr, "%d ranks with two buffers of %zu bytes each do not fit the task or the memory\n", ranks, most);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    madvise(source, most, MADV_HUGEPAGE);
    madvise(target, most, MADV_HUGEPAGE);
    long units = t.think > 0 ? units_of(t.think) : 0;
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++)
        for (int i = 0; !strcmp(entries[e].collective, t.collective) && i < t.sizes; i++)
            measure(&t, &entries[e], t.size[i], units);
    MPI_Finalize();
    return 0;
}
