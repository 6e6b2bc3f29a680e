/* Strided walks: several operands stepped together over the same axes. Offsets are in elements and unsigned, so that
 * one past the end wraps instead of being undefined. */
#ifndef SMG_WALK_H
#define SMG_WALK_H
#include "../kernel.h"

/* Steps to the next position of the first `axes` axes, the last fastest. steps[k*rank + a] is operand k's stride of
 * axis a. Returns 0, with everything back at the start, once all positions were visited. */
static inline int smg_walk_next(int32_t *at, const int32_t *dims, int axes, const int32_t *steps, int rank, size_t *off,
                                int operands) {
    for (int a = axes - 1; a >= 0; a--) {
        for (int k = 0; k < operands; k++) { off[k] += (size_t)steps[k * rank + a]; }
        if (++at[a] < dims[a]) { return 1; }
        for (int k = 0; k < operands; k++) { off[k] -= (size_t)steps[k * rank + a] * (size_t)dims[a]; }
        at[a] = 0;
    }
    return 0;
}

/* Product of sizes; SMG_TOO_MUCH if one is negative. */
static inline uint64_t smg_product(const int32_t *dims, int rank) {
    uint64_t total = 1;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0) { return SMG_TOO_MUCH; }
        total = smg_mul(total, (uint64_t)dims[i]);
    }
    return total;
}

/* The largest or smallest of one line; the first NaN if there is one. */
#define SMG_LINE_EXTREME(name, WORSE)                                               \
    static inline float smg_line_##name(const float *x, size_t step, int32_t len) { \
        float best = x[0];                                                          \
        for (int32_t k = 0; k < len; k++) {                                         \
            const float v = x[(size_t)k * step];                                    \
            if (!(v WORSE best)) {                                                  \
                best = v;                                                           \
                if (v != v) { break; }                                              \
            }                                                                       \
        }                                                                           \
        return best;                                                                \
    }
SMG_LINE_EXTREME(max, <=)
SMG_LINE_EXTREME(min, >=)
#endif
