/* Runs and times one fast kernel by name, outside any program, and measures the arithmetic peak of one core.
 * FAST_TABLE names a generated file with a line ENTRY(kernel) for each kernel. */
#define _POSIX_C_SOURCE 200809L
#include "fast/threads.h"
#include "peak.h"
#include <stdlib.h>
#include <time.h>

#define ENTRY(name) SmgFault SMG_FAST(name)(const SmgCall *c);
#include FAST_TABLE
#undef ENTRY
#define ENTRY(name) {#name, SMG_FAST(name)},
static const struct {
    const char *name;
    SmgKernelFn run;
} table[] = {
#include FAST_TABLE
};

static SmgKernelFn find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!strcmp(table[i].name, name)) { return table[i].run; }
    }
    return NULL;
}
int fast_has(const char *name) { return find(name) != NULL; }

/* The work block comes from malloc in exactly its size, so that a sanitizer sees any step outside. */
SmgWork *fast_open(int threads, int wide) {
    SmgWork *work = calloc(1, sizeof *work);
    if (!work) { return NULL; }
    work->threads = threads;
    work->each = wide ? SMG_WIDE_BYTES : SMG_WORK_BYTES;
    work->bytes = (size_t)threads * work->each;
    work->memory = aligned_alloc(64, work->bytes);
    if (threads > 1) { work->workers = smg_threads_start(malloc(smg_threads_bytes()), threads); }
    return work;
}
void fast_close(SmgWork *work) {
    if (work->workers) {
        smg_threads_stop(work->workers);
        free(work->workers);
    }
    free(work->memory);
    free(work);
}

SmgFault fast_run(const SmgWork *work, const char *name, void **op, int operands, const int32_t *p, int params,
                  SmgRun run) {
    SmgCall c = {.operands = operands, .params = params, .p = p, .run = run, .work = work};
    for (int i = 0; i < operands; i++) { c.op[i] = op[i]; }
    memset(work->memory, 0xFF, work->bytes); /* NaNs: nothing may be taken from an earlier call */
    return find(name)(&c);
}

/* With one thread its processor time counts, so that a busy machine spoils less. */
static double now(int threads) {
    struct timespec t;
    clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of `rounds` rounds, in seconds a call; a round lasts about `seconds`. */
double fast_time(const SmgWork *work, const char *name, void **op, int operands, const int32_t *p, int params,
                 SmgRun run, double seconds, int rounds) {
    const SmgKernelFn kernel = find(name);
    SmgCall c = {.operands = operands, .params = params, .p = p, .run = run, .work = work};
    for (int i = 0; i < operands; i++) { c.op[i] = op[i]; }
    long calls = 1;
    double best = 1e9;
    kernel(&c);
    for (int round = 0; round < rounds;) {
        const double start = now(work->threads);
        for (long i = 0; i < calls; i++) { kernel(&c); }
        const double took = now(work->threads) - start;
        if (took < seconds / 2) {
            calls *= 2;
            continue;
        }
        if (took / (double)calls < best) { best = took / (double)calls; }
        round++;
    }
    return best;
}

/* GFLOP/s of one core, the best of `rounds`. */
double fast_peak(int rounds) {
    const long steps = 1000000;
    double best = 0;
    for (int round = 0; round < rounds; round++) {
        float out;
        const double start = now(1);
        peak_rounds(&out, steps);
        const double rate = PEAK_OPERATIONS * (double)steps / (now(1) - start) / 1e9;
        if (rate > best) { best = rate; }
    }
    return best;
}
