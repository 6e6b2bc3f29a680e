/* The arithmetic peak of this machine: GFLOP/s of fused multiply-adds in registers, with as many threads as argv[1]
 * says. cc -O3 -march=native -ffp-contract=fast -pthread fma_peak.c */
#include "../c/peak.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 1700000L

static void *work(void *out) {
    peak_rounds((float *)out, ROUNDS);
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > 64) { return 2; }
    double best = 0;
    for (int repeat = 0; repeat < 5; repeat++) {
        pthread_t id[64];
        float out[64];
        double begin = now();
        for (int t = 1; t < threads; t++) {
            if (pthread_create(&id[t], NULL, work, &out[t])) { return 1; }
        }
        work(&out[0]);
        for (int t = 1; t < threads; t++) { pthread_join(id[t], NULL); }
        double rate = PEAK_OPERATIONS * ROUNDS * threads / (now() - begin) * 1e-9;
        if (rate > best) { best = rate; }
    }
    printf("%.2f\n", best);
    return 0;
}
