/* The arithmetic peak of this machine: GFLOP/s of fused multiply-adds in registers, with as many threads as argv[1] says.
 * cc -O3 -march=native -ffp-contract=fast -pthread fma_peak.c */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define CHAINS 12 /* independent sums: more than latency times units, fewer than registers */
#define ROUNDS 20000000L

typedef float Vector __attribute__((vector_size(4 * LANES)));

static void *work(void *out) {
    Vector sum[CHAINS], factor = {0}, term = {0};
    for (int l = 0; l < LANES; l++) factor[l] = 0.999999f, term[l] = 1e-6f;
    for (int c = 0; c < CHAINS; c++) sum[c] = factor + (float)c;
    for (long r = 0; r < ROUNDS / CHAINS; r++)
        for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * factor + term;
    float total = 0;
    for (int c = 0; c < CHAINS; c++)
        for (int l = 0; l < LANES; l++) total += sum[c][l];
    *(volatile float *)out = total; /* so that nothing above is removed */
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > 64) return 2;
    double best = 0;
    for (int repeat = 0; repeat < 5; repeat++) {
        pthread_t id[64];
        float out[64];
        double begin = now();
        for (int t = 1; t < threads; t++)
            if (pthread_create(&id[t], NULL, work, &out[t])) return 1;
        work(&out[0]);
        for (int t = 1; t < threads; t++) pthread_join(id[t], NULL);
        double rate = 2.0 * LANES * (ROUNDS / CHAINS * CHAINS) * threads / (now() - begin) * 1e-9;
        if (rate > best) best = rate;
    }
    printf("%.2f\n", best);
    return 0;
}
