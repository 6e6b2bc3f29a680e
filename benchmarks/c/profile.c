/* Times every kernel of a running program: wrappers take the place of the functions in the context's kernel table. */
#include "../../src/smidgen/runtime/format.h"
#include <time.h>

#define MOST 256
static SmgKernelFn real[MOST], wrapped[MOST];
static double seconds[MOST];
static long calls[MOST];

static clockid_t clock_id;

static double now(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static SmgFault timed(int k, const SmgCall *c) {
    const double start = now();
    const SmgFault fault = real[k](c);
    seconds[k] += now() - start;
    calls[k]++;
    return fault;
}
#define W1(k) \
    static SmgFault w##k(const SmgCall *c) { return timed(0x##k, c); }
#define W16(h) \
    W1(h##0)   \
    W1(h##1)   \
    W1(h##2)   \
    W1(h##3)   \
    W1(h##4)   \
    W1(h##5)   \
    W1(h##6)   \
    W1(h##7)   \
    W1(h##8)   \
    W1(h##9)   \
    W1(h##a)   \
    W1(h##b)   \
    W1(h##c)   \
    W1(h##d)   \
    W1(h##e)   \
    W1(h##f)
W16(0)
W16(1)
W16(2)
W16(3)
W16(4)
W16(5)
W16(6)
W16(7)
W16(8)
W16(9)
W16(a)
W16(b)
W16(c)
W16(d)
W16(e)
W16(f)
#define N4(h, a, b, c, d) w##h##a, w##h##b, w##h##c, w##h##d
#define N16(h)            N4(h, 0, 1, 2, 3), N4(h, 4, 5, 6, 7), N4(h, 8, 9, a, b), N4(h, c, d, e, f)
static const SmgKernelFn all[MOST] = {
    N16(0), N16(1), N16(2), N16(3), N16(4), N16(5), N16(6), N16(7),
    N16(8), N16(9), N16(a), N16(b), N16(c), N16(d), N16(e), N16(f),
};

/* kernels: the library's table of exact kernels. Kernels beyond MOST stay untimed. With one thread its processor time
 * counts, so that a busy machine spoils less. */
void profile_install(SmgContext *x, const SmgKernel *const *kernels, int count, int threads) {
    clock_id = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    const SmgKernelFn *runs = (const SmgKernelFn *)x->runs;
    for (int k = 0; k < count && k < MOST; k++) {
        real[k] = runs && runs[k] ? runs[k] : kernels[k]->run;
        wrapped[k] = all[k];
        seconds[k] = 0;
        calls[k] = 0;
    }
    x->runs = wrapped;
}
void profile_reset(void) {
    memset(seconds, 0, sizeof seconds);
    memset(calls, 0, sizeof calls);
}
double profile_seconds(int k) { return seconds[k]; }
long profile_calls(int k) { return calls[k]; }
