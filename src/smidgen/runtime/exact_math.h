/* Functions of one float that give the same bits on every compiler and target: only + - * /, integer operations and
 * correctly rounded square root. No undefined behaviour on NaN or infinity. */
#ifndef SMG_EXACT_MATH_H
#define SMG_EXACT_MATH_H
#include <stdint.h>
#include <string.h>

static inline uint32_t smg_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float smg_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Correctly rounded, so the hardware instruction and the integer algorithm agree. */
#if defined(__SSE__) || defined(__aarch64__) || (defined(__ARM_FP) && (__ARM_FP & 4))
#define SMG_HARDWARE_SQRT 1
#endif
static inline float smg_sqrtf(float x) {
#if defined(SMG_HARDWARE_SQRT) && defined(__GNUC__) && !defined(__TINYC__)
    return __builtin_sqrtf(x);
#else
    uint32_t u = smg_bits(x);
    if (u == 0 || u == 0x80000000u || u == 0x7f800000u) return x;
    if (u > 0x7f800000u) return smg_from_bits(0x7fc00000u); /* NaN, and every negative number */
    int32_t e = (int32_t)(u >> 23);
    uint32_t m = u & 0x7fffffu;
    if (e == 0) { /* denormal: shift the leading one into place */
        e = 1;
        while (!(m & 0x800000u)) m <<= 1, e--;
    } else {
        m |= 0x800000u;
    }
    e -= 127;
    uint64_t v = (uint64_t)m << ((e & 1) ? 26 : 25); /* value = v * 2^-48 (even) with room for 25 result bits */
    uint32_t r = 0;
    for (uint32_t bit = 1u << 25; bit; bit >>= 1) {
        uint64_t t = (uint64_t)(r | bit);
        if (t * t <= v) r |= bit;
    }
    uint32_t sticky = (uint64_t)r * r != v;
    uint32_t q = r >> 1, half = r & 1;
    if (half && (sticky || (q & 1))) q++;
    int32_t re = (e - (e & 1)) / 2 + 127;
    if (q >> 24) q >>= 1, re++;
    return smg_from_bits(((uint32_t)re << 23) | (q & 0x7fffffu));
#endif
}
#endif
