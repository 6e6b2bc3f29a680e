/* Gradients in int16: mantissas with one exponent for the whole tensor, real = q * 2^exponent (ops/gradients16.py).
 * Beside the mantissas goes int32_t[2]: the exponent, and the bits of the largest sum of which they were made. */
#ifndef SMG_GRADIENTS16_H
#define SMG_GRADIENTS16_H
#include "../kernel.h"

#define SMG_MANTISSA       15
#define SMG_LIMIT16        32767
#define SMG_LEAST_EXPONENT (-100)
#define SMG_MOST_EXPONENT  60
#define SMG_HEADROOM       1
#define SMG_GAIN_STEPS     16
#define SMG_MOST_BITS      31
enum { SMG_ABOUT = 2 * sizeof(int32_t) };

static inline int32_t smg_between(int32_t v, int32_t low, int32_t high) {
    const int32_t above = v < low ? low : v;
    return above > high ? high : above;
}
static inline int32_t smg_exponent_of(const int32_t *about) {
    return smg_between(about[0], SMG_LEAST_EXPONENT, SMG_MOST_EXPONENT);
}

/* 2^e for exponents from -126 to 127. */
static inline float smg_power(int32_t e) { return smg_f32((e + 127) * (1 << 23)); }

/* Magnitudes are joined bit by bit: the length of the result is that of the largest. */
static inline uint32_t smg_magnitude(int32_t v) { return (uint32_t)(v < 0 ? ~v : v); }
static inline int32_t smg_bit_length(uint32_t v) {
    int32_t bits = 0;
    for (; v; v >>= 1) { bits++; }
    return bits;
}

/* How far sums of so many bits, in steps of 2^base, go to the right, and the exponent of what remains. */
typedef struct {
    int32_t shift, exponent;
} Fit16;
static inline Fit16 smg_fitted(int32_t base, int32_t bits, int32_t headroom) {
    Fit16 f = {bits - SMG_MANTISSA + headroom, 0};
    f.shift = smg_between(f.shift, SMG_LEAST_EXPONENT - base, SMG_MOST_EXPONENT - base);
    f.shift = smg_between(f.shift, -SMG_MANTISSA, SMG_MOST_BITS);
    f.exponent = smg_between(base + f.shift, SMG_LEAST_EXPONENT, SMG_MOST_EXPONENT);
    return f;
}
/* The bits that a gain expects; 0: it expects nothing yet. */
static inline int32_t smg_hint(int32_t gain) {
    if (gain <= 0) { return 0; }
    return gain > SMG_GAIN_STEPS * SMG_MOST_BITS ? SMG_MOST_BITS : (gain + SMG_GAIN_STEPS - 1) / SMG_GAIN_STEPS;
}

/* One rounding, half up, and cut off. */
static inline int16_t smg_right16(int32_t v, int32_t shift) { /* shift > 0 */
    return (int16_t)smg_between(((v >> (shift - 1)) + 1) >> 1, -SMG_LIMIT16, SMG_LIMIT16);
}
static inline int16_t smg_left16(int32_t v, int32_t shift) { /* 0 <= shift <= SMG_MANTISSA */
    return (int16_t)smg_between(smg_between(v, -SMG_LIMIT16 - 1, SMG_LIMIT16 + 1) * (1 << shift), -SMG_LIMIT16,
                                SMG_LIMIT16);
}
static inline int16_t smg_narrow16(int32_t v, int32_t shift) {
    return shift > 0 ? smg_right16(v, shift) : smg_left16(v, -shift);
}
#endif
