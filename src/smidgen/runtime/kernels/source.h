/* What a weight gradient reads of its layer's input: floats, or int8 numbers q that count as q - zero. Both are summed
 * in the same order, as floats. Functions that take a Source are inlined into one for each type, so that neither has
 * code, or stack, of the other. */
#ifndef SMG_SOURCE_H
#define SMG_SOURCE_H
#include "sum.h"

typedef struct {
    int is_int8; /* a constant */
    int32_t zero;
    const float *f;
    const int8_t *q;
} Source;

#ifdef __GNUC__
#define SOURCE_CODE __attribute__((always_inline)) static inline
#else
#define SOURCE_CODE static inline
#endif

SOURCE_CODE Source source_f32(const float *f) { return (Source){.is_int8 = 0, .f = f}; }
SOURCE_CODE Source source_int8(const int8_t *q, int32_t zero) { return (Source){.is_int8 = 1, .zero = zero, .q = q}; }
SOURCE_CODE Source source_at(Source s, ptrdiff_t by) {
    if (s.is_int8) {
        s.q += by;
    } else {
        s.f += by;
    }
    return s;
}
SOURCE_CODE float source_get(Source s, ptrdiff_t i) { return s.is_int8 ? (float)(s.q[i] - s.zero) : s.f[i]; }

/* smg_outer with b = x: sum[8 * i + l] += a[t * a_step + i] * x[t * step + l]. Of int8, a few rows are widened at a
 * time. */
SOURCE_CODE void source_outer(float *sum, int rows, int width, const float *a, ptrdiff_t a_step, Source x,
                              ptrdiff_t step, int32_t T) {
    if (!x.is_int8) {
        smg_outer(sum, rows, width, a, a_step, x.f, step, T);
        return;
    }
#ifdef __OPTIMIZE_SIZE__
    enum { ROWS = 4 };
#else
    enum { ROWS = 8 };
#endif
    float wide[ROWS * 8];
    for (; T > 0; T -= ROWS, a += ROWS * a_step) {
        const int32_t count = T < ROWS ? T : ROWS;
        for (int32_t t = 0; t < count; t++, x.q += step) {
            if (width == 8) {
                SMG_LANES(l) { wide[8 * t + l] = (float)(x.q[l] - x.zero); }
                continue;
            }
            for (int l = 0; l < width; l++) { wide[8 * t + l] = (float)(x.q[l] - x.zero); }
        }
        smg_outer(sum, rows, width, a, a_step, wide, 8, count);
    }
}
#endif
