/* Integers that stand for real numbers, real = scale * (q - zero), and the one way in which they change their scale:
 *
 *     y = clamp(((acc * m + 2^(s - 1)) >> s) + zero, lo, hi)
 *
 * One product in 64 bits, one rounding, half up. Nothing overflows: the compiler proves that sums stay within int32,
 * and sums of a hostile program wrap (they are added up without a sign where that could happen). */
#ifndef SMG_FIXED_POINT_H
#define SMG_FIXED_POINT_H
#include "../kernel.h"

#define SMG_MOST_SHIFT 62
#define SMG_MOST_TERMS (1 << 15) /* products of 8 bits in a sum: with a bias of 2^30 it stays below 2^31 */

/* Behind the parameters of every kernel that changes scales. */
typedef struct {
    int32_t shift, zero, lo, hi;
} Requantize;

static inline int smg_zero_ok(int32_t zero) { return zero >= -128 && zero <= 127; }
static inline int smg_requantize_ok(Requantize r) {
    if (r.shift < 1 || r.shift > SMG_MOST_SHIFT) { return 0; }
    return smg_zero_ok(r.zero) && smg_zero_ok(r.lo) && smg_zero_ok(r.hi) && r.lo <= r.hi;
}

/* a + b, wrapping. */
static inline int32_t smg_wrap_add(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }

/* The upper half of a product. From a shift of 33 on it is all that is needed: 2^(s - 1) has no lower half. */
static inline int32_t smg_high(int32_t a, int32_t b) { return (int32_t)(((int64_t)a * b) >> 32); }
enum { HIGH_SHIFT = 33 };
static inline int32_t smg_of_high(int32_t high, Requantize r) {
    const int32_t y = ((high + (1 << (r.shift - HIGH_SHIFT))) >> (r.shift - HIGH_SHIFT + 1)) + r.zero;
    const int32_t above = y < r.lo ? r.lo : y;
    return above > r.hi ? r.hi : above;
}

static inline int8_t smg_requantize(int32_t acc, int32_t m, Requantize r) {
    if (r.shift >= HIGH_SHIFT) { return (int8_t)smg_of_high(smg_high(acc, m), r); }
    int64_t v = (int64_t)acc * m + ((int64_t)1 << (r.shift - 1));
    v = (v >> r.shift) + r.zero;
    v = v < r.lo ? r.lo : v;
    return (int8_t)(v > r.hi ? r.hi : v);
}

/* The same in fewer steps where the rounding and the zero point fit one sum of 32 bits: high + smg_requantize_add(r).
 * High halves are at most 2^30. 0: they do not (as a sum, 0 would need half a step below zero). */
enum { SHORT_SHIFT = 54 };
static inline int32_t smg_requantize_add(Requantize r) {
    if (r.shift < HIGH_SHIFT || r.shift > SHORT_SHIFT) { return 0; }
    return (1 << (r.shift - HIGH_SHIFT)) + r.zero * (1 << (r.shift - HIGH_SHIFT + 1));
}

/* y[i] from sum[i] + b[i] and m[i], for outputs that lie side by side, up to SMG_RUN of them. */
enum { SMG_RUN = 16 };
static inline void smg_requantize_run(int8_t *restrict y, const int32_t *restrict sum, const int32_t *restrict b,
                                      const int32_t *restrict m, int count, Requantize r) {
#ifndef __OPTIMIZE_SIZE__
    if (count == SMG_RUN && r.shift >= HIGH_SHIFT) { /* in vectors */
        int32_t high[SMG_RUN];
        for (int i = 0; i < SMG_RUN; i++) { high[i] = smg_high(smg_wrap_add(sum[i], b[i]), m[i]); }
        for (int i = 0; i < SMG_RUN; i++) { y[i] = (int8_t)smg_of_high(high[i], r); }
        return;
    }
#endif
    for (int i = 0; i < count; i++) { y[i] = smg_requantize(smg_wrap_add(sum[i], b[i]), m[i], r); }
}
#endif
