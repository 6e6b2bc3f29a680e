/* The inner loop of gradients in int16: sums of products of mantissas with numbers of 8 bits, PIXELS times SMG_RUN of
 * them at a time.
 *
 *     p   terms --->            w   0 … 15           sum[i][l] += p[i][t] * w[t][l]
 *     0   . . . .           t   0   . . . .
 *     …   . . . .               …   . . . .          All fit 32 bits: who calls has proven it. Integer sums have no
 *     3   . . . .                                    order, so that any way through this gives the same bits. */
#ifndef SMG_OUTER16_H
#define SMG_OUTER16_H
#include "qlayers.h"

#ifdef __OPTIMIZE_SIZE__
static inline void smg_outer16(int32_t *sum, const int16_t *p, ptrdiff_t p_step, const int8_t *w, ptrdiff_t w_step,
                               int32_t terms, int width) {
    for (int l = 0; l < width; l += 2, w += 2, sum += 2) {
        const ptrdiff_t other = l + 1 < width; /* the last of an odd number is computed twice, and kept once */
        for (int i = 0; i < PIXELS; i += 2) {
            const int16_t *a = p + i * p_step, *b = a + p_step;
            const int8_t *v = w;
            int32_t s0 = 0, s1 = 0, t0 = 0, t1 = 0;
            for (int32_t t = 0; t < terms; t++, v += w_step) {
                const int32_t x = v[0], y = v[other];
                s0 += a[t] * x;
                s1 += a[t] * y;
                t0 += b[t] * x;
                t1 += b[t] * y;
            }
            int32_t *to = sum + (ptrdiff_t)i * SMG_RUN, *below = to + SMG_RUN;
            to[0] += s0;
            below[0] += t0;
            if (other) {
                to[1] += s1;
                below[1] += t1;
            }
        }
    }
}
#else
static inline void smg_outer16(int32_t *restrict sum, const int16_t *restrict p, ptrdiff_t p_step,
                               const int8_t *restrict w, ptrdiff_t w_step, int32_t terms, int width) {
    if (width < SMG_RUN) {
        for (int i = 0; i < PIXELS; i++, sum += SMG_RUN, p += p_step) {
            const int8_t *v = w;
            for (int32_t t = 0; t < terms; t++, v += w_step) {
                for (int l = 0; l < width; l++) { sum[l] += p[t] * v[l]; }
            }
        }
        return;
    }
    int32_t s[PIXELS * SMG_RUN] = {0};
    for (int32_t t = 0; t < terms; t++, p++, w += w_step) {
        int16_t x[SMG_RUN];
        for (int l = 0; l < SMG_RUN; l++) { x[l] = w[l]; }
        for (int i = 0; i < PIXELS; i++) {
            const int16_t a = p[i * p_step];
            for (int l = 0; l < SMG_RUN; l++) { s[i * SMG_RUN + l] += a * x[l]; }
        }
    }
    for (int i = 0; i < PIXELS * SMG_RUN; i++) { sum[i] += s[i]; }
}
#endif
#endif
