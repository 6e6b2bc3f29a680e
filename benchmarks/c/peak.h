/* The arithmetic peak: chains of fused multiply-adds that never leave the registers. */
#ifndef SMG_PEAK_H
#define SMG_PEAK_H

#if defined(__AVX512F__)
#define PEAK_LANES 16
#elif defined(__AVX__)
#define PEAK_LANES 8
#else
#define PEAK_LANES 4
#endif
#define PEAK_CHAINS     12 /* independent sums: more than latency times units, fewer than registers */
#define PEAK_OPERATIONS (2.0 * PEAK_LANES * PEAK_CHAINS) /* of a round */

typedef float PeakVector __attribute__((vector_size(4 * PEAK_LANES)));

/* Where each chain starts, and what it does, is read from memory that the compiler may not know: it leaves out a chain
 * whose values it finds to repeat. */
static void peak_rounds(float *out, long rounds) {
    volatile float given[] = {0.999f, 0.0015f, 1.0f};
    PeakVector sum[PEAK_CHAINS], factor = given[0] - (PeakVector){0}, term = given[1] - (PeakVector){0};
    for (int c = 0; c < PEAK_CHAINS; c++) { sum[c] = given[2] * (float)c - (PeakVector){0}; }
    for (long r = 0; r < rounds; r++) {
        for (int c = 0; c < PEAK_CHAINS; c++) { sum[c] = sum[c] * factor + term; }
    }
    float total = 0;
    for (int c = 0; c < PEAK_CHAINS; c++) {
        for (int l = 0; l < PEAK_LANES; l++) { total += sum[c][l]; }
    }
    *(volatile float *)out = total; /* so that nothing above is removed */
}
#endif
