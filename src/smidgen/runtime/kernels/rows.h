/* Rows of channels and sums over them, for normalisation.
 * Sums run 64 rows at a time, then per sample, then over samples in order, so that micro-batches which continue an
 * accumulator give the same bits as the whole batch. */
#ifndef SMG_ROWS_H
#define SMG_ROWS_H
#include "../exact_math.h"
#include "params.h"
#include "sum.h"

#define LANES  16        /* channels reduced together, in registers */
#define WIDEST (1 << 30) /* channels: loops may step past the end without overflow */

static inline float inverse_root(float var, float eps) { return 1.0f / smg_sqrtf(var + eps); }

static inline int rows_need(Rows g, uint64_t *rows, uint64_t *elements) {
    if (g.A < 1 || g.B < 0 || g.P < 1 || g.C < 1 || g.C > WIDEST) { return -1; }
    *rows = smg_mul(smg_mul((uint64_t)g.A, (uint64_t)g.B), (uint64_t)g.P);
    *elements = smg_mul(*rows, (uint64_t)g.C);
    return 0;
}

/* total[l] += sum over all rows of TERM, for `count` channels from c0. TERM sees x[l], d[l] of the row, m, r, row. */
#define CHANNEL_SUMS(name, TERM)                                                                                      \
    static inline void name##_lanes(float *total, const float *X, SMG_UNUSED const float *D,                          \
                                    SMG_UNUSED const float *m, SMG_UNUSED const float *r, Rows g, int32_t c0,         \
                                    const int32_t count) {                                                            \
        float sample[LANES], run[LANES];                                                                              \
        for (int32_t b = 0; b < g.B; b++) {                                                                           \
            int filled = 0;                                                                                           \
            for (int32_t l = 0; l < count; l++) {                                                                     \
                sample[l] = 0;                                                                                        \
                run[l] = 0;                                                                                           \
            }                                                                                                         \
            for (int32_t a = 0; a < g.A; a++) {                                                                       \
                size_t row = ((size_t)a * (size_t)g.B + (size_t)b) * (size_t)g.P;                                     \
                for (int32_t p = 0; p < g.P; p++, row++) {                                                            \
                    SMG_UNUSED const float *x = X + row * (size_t)g.C + c0;                                           \
                    SMG_UNUSED const float *d = D + row * (size_t)g.C + c0;                                           \
                    for (int32_t l = 0; l < count; l++) { run[l] += TERM; }                                           \
                    if (++filled < SMG_BLOCK) { continue; }                                                           \
                    for (int32_t l = 0; l < count; l++) {                                                             \
                        sample[l] += run[l];                                                                          \
                        run[l] = 0;                                                                                   \
                    }                                                                                                 \
                    filled = 0;                                                                                       \
                }                                                                                                     \
            }                                                                                                         \
            for (int32_t l = 0; l < count; l++) { total[l] += sample[l] + run[l]; }                                   \
        }                                                                                                             \
    }                                                                                                                 \
    SMG_UNUSED static void name(float *total, const float *X, const float *D, const float *m, const float *r, Rows g, \
                                int32_t c0, int32_t count) {                                                          \
        if (count == LANES) { /* a constant count keeps the sums in registers */                                      \
            name##_lanes(total, X, D, m, r, g, c0, LANES);                                                            \
        } else {                                                                                                      \
            name##_lanes(total, X, D, m, r, g, c0, count);                                                            \
        }                                                                                                             \
    }

static inline int32_t lanes_at(int32_t c0, int32_t C) { return C - c0 < LANES ? C - c0 : LANES; }

/* Sizes in bytes of the matrix and of one row. */
static inline int affine_need(const int32_t *p, uint64_t *elements, uint64_t *channels) {
    const Matrix v = matrix_of(p);
    if (v.R < 0 || v.C < 1 || v.C > WIDEST) { return -1; }
    *channels = smg_mul((uint64_t)v.C, 4);
    *elements = smg_mul((uint64_t)v.R, *channels);
    return 0;
}

CHANNEL_SUMS(sum_scaled, d[l] * ((x[l] - m[l]) * r[l]))
#endif
