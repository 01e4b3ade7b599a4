// gloo: AllReduce of Gloo between processes joined by TCP over loopback, timed as mpi.c does.
//
// The program starts one process for each rank, which meet by files in a directory of their
// own. Each algorithm is a variant: the two of gloo::allreduce, and older classes, which
// also run over pairs that are read by who waits (sync).
#include "cases.h"
#include <dirent.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using contextPtr = std::shared_ptr<gloo::rendezvous::Context>;
using call = std::function<void()>;

static int ranks, me;
static contextPtr context, synced;

// ---- the calls

static call withOptions(gloo::AllreduceOptions::Algorithm algorithm, float *v, size_t n) {
    return [=] {
        gloo::AllreduceOptions o(context);
        o.setAlgorithm(algorithm);
        o.setOutput(v, n);
        o.setReduceFunction([](void *to, const void *a, const void *b, size_t k) { gloo::sum<float>(to, a, b, k); });
        gloo::allreduce(o);
    };
}

template <typename A, bool sync = false> static call ofClass(float *v, size_t n) {
    auto a = std::make_shared<A>(sync ? synced : context, std::vector<float *>{v}, (int)n);
    return [a] { a->run(); };
}

static const struct {
    const char *name;
    call (*make)(float *v, size_t n);
} variants[] = {
    {"ring", [](float *v, size_t n) { return withOptions(gloo::AllreduceOptions::Algorithm::RING, v, n); }},
    {"bcube", [](float *v, size_t n) { return withOptions(gloo::AllreduceOptions::Algorithm::BCUBE, v, n); }},
    {"old-ring-chunked", ofClass<gloo::AllreduceRingChunked<float>>},
    {"old-halving-doubling", ofClass<gloo::AllreduceHalvingDoubling<float>>},
    {"old-bcube", ofClass<gloo::AllreduceBcube<float>>},
    {"sync-ring", ofClass<gloo::AllreduceRing<float>, true>},
    {"sync-ring-chunked", ofClass<gloo::AllreduceRingChunked<float>, true>},
    {"sync-bcube", ofClass<gloo::AllreduceBcube<float>, true>},
};

// ---- time

static void barrier() {
    gloo::BarrierOptions o(context);
    gloo::barrier(o);
}

// slowest is the largest of all ranks' seconds, on every rank.
static double slowest(double s) {
    gloo::AllreduceOptions o(context);
    o.setOutput(&s, 1);
    o.setReduceFunction([](void *to, const void *a, const void *b, size_t n) { gloo::max<double>(to, a, b, n); });
    gloo::allreduce(o);
    return s;
}

static double back_to_back(const call &run, long calls) {
    barrier();
    double begin = now();
    for (long i = 0; i < calls; i++) run();
    return slowest(now() - begin);
}

// calls_for is how many calls fill the budget. All ranks see the same times, hence agree.
static long calls_for(const call &run, double budget) {
    for (long calls = 1;; calls *= 2) {
        double best = back_to_back(run, calls);
        for (int i = 0; i < 2 && best >= budget / 4; i++) best = std::min(best, back_to_back(run, calls));
        if (best >= budget / 4 || calls >= max_calls) return fill_budget(calls, best, budget);
    }
}

// correct makes one call and looks at every element.
static bool correct(const call &run, float *v, size_t n) {
    for (size_t i = 0; i < n; i++) v[i] = me + (float)(i & 7);
    run();
    double wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += v[i] != ranks * (ranks - 1) / 2 + ranks * (float)(i & 7);
    return slowest(wrong) == 0;
}

// A call of this many seconds ends the sizes of its variant: larger ones would take too long, and
// the best of all variants counts. Some wait for milliseconds again and again where ranks share cores.
static const double hopeless = 0.1;
static bool given_up[sizeof variants / sizeof *variants];

static void measure(const struct task *t, float *v, size_t size) {
    for (auto &x : variants) {
        size_t n = size / sizeof(float);
        if (given_up[&x - variants]) continue;
        call run = x.make(v, n);
        if (!correct(run, v, n)) {
            if (me == 0) printf("BAD gloo %s %s %d %zu wrong values\n", x.name, t->collective, ranks, size);
            fflush(stdout);
            continue;
        }
        double times[max_repeats];
        long calls = calls_for(run, t->budget);
        for (int i = 0; i < t->repeats; i++) times[i] = back_to_back(run, calls) / calls;
        given_up[&x - variants] = size < (8 << 20) && median(times, t->repeats) > hopeless;
        if (me == 0) put_result("gloo", x.name, t, size, median(times, t->repeats), 0, calls);
    }
}

// ---- processes

static int member(const struct task *t, const char *dir) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gloo::transport::tcp::attr a("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(a);
    gloo::rendezvous::FileStore store(dir);
    for (auto c : {&context, &synced}) {
        *c = std::make_shared<gloo::rendezvous::Context>(me, ranks);
        gloo::rendezvous::PrefixStore own(c == &context ? "async" : "sync", store);
        (*c)->connectFullMesh(own, device);
    }
    for (int i = 0; i < ranks; i++)
        if (i != me) synced->getPair(i)->setSync(true, false);
    size_t most = 4096;
    for (int i = 0; i < t->sizes; i++) most = std::max(most, t->size[i]);
    void *memory;
    if (posix_memalign(&memory, 4096, most)) return 2;
    madvise(memory, most, MADV_HUGEPAGE);
    for (int i = 0; i < t->sizes; i++) measure(t, (float *)memory, t->size[i]);
    barrier();
    return 0;
}

static void clear(const char *dir) {
    if (DIR *d = opendir(dir)) {
        while (struct dirent *e = readdir(d))
            if (e->d_name[0] != '.') unlinkat(dirfd(d), e->d_name, 0);
        closedir(d);
    }
    rmdir(dir);
}

int main(int argc, char **argv) {
    struct task t;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!read_task(&t, argc, argv)) return 2;
    if (strcmp(t.collective, "AllReduce") || t.think > 0) return 0; // not measured
    if (t.limit > 0) alarm(t.limit);
    char dir[] = P_tmpdir "/kolo-gloo-XXXXXX";
    if (!mkdtemp(dir)) return perror("mkdtemp"), 2;
    ranks = t.ranks;
    for (me = 0; me < ranks; me++) {
        pid_t p = fork();
        if (p < 0) return perror("fork"), 2;
        if (p) continue;
        try {
            _exit(fflush(stdout) | member(&t, dir));
        } catch (const std::exception &e) {
            fprintf(stderr, "rank %d: %s\n", me, e.what());
            _exit(2);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status;
    clear(dir);
    return failed ? 2 : 0;
}
