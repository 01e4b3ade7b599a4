// cases.h: what the C programs share: their task, the clock and the line of a result.
//
// A program gets its task as arguments of the form name=value, the same for every
// program of the comparison, and answers with one line for each case on its output:
//
//   RES program variant collective ranks bytes back_to_back_us separated_us calls
//   BAD program variant collective ranks bytes what is wrong
//
// A dash stands for a time that was not measured.
#ifndef CASES_H
#define CASES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { max_sizes = 32, max_repeats = 64, max_calls = 1 << 20 };

struct task {
    char collective[32], variant[32];
    int ranks, threads, repeats, separated, limit; // limit in seconds
    int sizes;                                     // how many
    size_t size[max_sizes];                        // bytes of the whole vector, multiples of 4*ranks
    double budget, think;                          // seconds: of a repetition, of the work between calls
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// read_sizes splits a list at its commas; 0 when it is no list of sizes.
static int read_sizes(struct task *t, const char *list) {
    for (char *end; *list; list = *end ? end + 1 : end) {
        if (t->sizes == max_sizes) return 0;
        t->size[t->sizes++] = strtoull(list, &end, 10);
        if (end == list || (*end && *end != ',')) return 0;
    }
    return t->sizes > 0;
}

// read_task fills t from the arguments; 0, with a message, when one makes no sense.
static int read_task(struct task *t, int argc, char **argv) {
    memset(t, 0, sizeof *t);
    strcpy(t->variant, "default");
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        size_t n = value ? (size_t)(value++ - argv[i]) : 0;
        int ok = 1;
#define IS(name) (n == sizeof name - 1 && !memcmp(argv[i], name, n))
        if (IS("collective")) ok = snprintf(t->collective, sizeof t->collective, "%s", value) < (int)sizeof t->collective;
        else if (IS("variant")) ok = snprintf(t->variant, sizeof t->variant, "%s", value) < (int)sizeof t->variant;
        else if (IS("ranks")) t->ranks = atoi(value);
        else if (IS("threads")) t->threads = atoi(value);
        else if (IS("repeats")) t->repeats = atoi(value);
        else if (IS("separated")) t->separated = atoi(value);
        else if (IS("limit_s")) t->limit = atoi(value);
        else if (IS("sizes")) ok = read_sizes(t, value);
        else if (IS("budget_us")) t->budget = atof(value) * 1e-6;
        else if (IS("think_ns")) t->think = atof(value) * 1e-9;
        else ok = 0;
#undef IS
        if (!ok) {
            fprintf(stderr, "argument %s is not understood\n", argv[i]);
            return 0;
        }
    }
    if (t->ranks < 1 || t->repeats < 1 || t->repeats > max_repeats || t->sizes < 1 || t->budget <= 0) {
        fprintf(stderr, "ranks, repeats, sizes or budget_us is missing or out of range\n");
        return 0;
    }
    return 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// fill_budget is how many calls take the budget, when so many took s seconds.
static long fill_budget(long calls, double s, double budget) {
    double n = calls * budget / (s > 0 ? s : 1e-9);
    return n < 1 ? 1 : n > max_calls ? max_calls : n;
}

// put_time writes seconds as microseconds, or a dash for what is not positive.
static void put_time(double s) {
    if (s > 0) printf(" %.4f", s * 1e6);
    else printf(" -");
}

static void put_result(const char *program, const char *variant, const struct task *t, size_t size,
                       double back_to_back, double separated, long calls) {
    printf("RES %s %s %s %d %zu", program, variant, t->collective, t->ranks, size);
    put_time(back_to_back);
    put_time(separated);
    printf(" %ld\n", calls);
    fflush(stdout);
}

#endif
