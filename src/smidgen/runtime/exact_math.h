/* Functions of one float that give the same bits on every compiler and target: only + - * /, integer operations and
 * correctly rounded square root. Nothing here is undefined on NaN, infinity or overflow: a float becomes an integer
 * by reading its bits or within checked bounds. Selects instead of branches, so that loops over them vectorise.
 * The errors stated are the largest found against float64 over (nearly) all floats; test_exact_math.py holds them. */
#ifndef SMG_EXACT_MATH_H
#define SMG_EXACT_MATH_H
#include <stdint.h>
#include <string.h>
#include "contraction.h"

/* An instruction or none, also in firmware, where a plain memcpy is a call. */
#ifdef __GNUC__
#define SMG_COPY(to, from, bytes) __builtin_memcpy(to, from, bytes)
#define SMG_INLINE                __attribute__((always_inline)) static inline /* also where size matters */
#else
#define SMG_COPY(to, from, bytes) memcpy(to, from, bytes)
#define SMG_INLINE                static inline
#endif

SMG_INLINE uint32_t smg_bits(float x) {
    uint32_t u;
    SMG_COPY(&u, &x, 4);
    return u;
}
SMG_INLINE float smg_from_bits(uint32_t u) {
    float x;
    SMG_COPY(&x, &u, 4);
    return x;
}
static inline uint64_t smg_bits64(double x) {
    uint64_t u;
    SMG_COPY(&u, &x, 8);
    return u;
}
static inline double smg_from_bits64(uint64_t u) {
    double x;
    SMG_COPY(&x, &u, 8);
    return x;
}
#define SMG_INF smg_from_bits(0x7f800000u)
#define SMG_NAN smg_from_bits(0x7fc00000u)

SMG_INLINE float smg_absf(float x) { return smg_from_bits(smg_bits(x) & 0x7fffffffu); }
static inline float smg_copysignf(float size, float sign) {
    return smg_from_bits((smg_bits(size) & 0x7fffffffu) | (smg_bits(sign) & 0x80000000u));
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
    if (u == 0 || u == 0x80000000u || u == 0x7f800000u) { return x; }
    if (u > 0x7f800000u) { return smg_from_bits(0x7fc00000u); /* NaN, and every negative number */ }
    int32_t e = (int32_t)(u >> 23);
    uint32_t m = u & 0x7fffffu;
    if (e == 0) { /* denormal: shift the leading one into place */
        e = 1;
        while (!(m & 0x800000u)) {
            m <<= 1;
            e--;
        }
    } else {
        m |= 0x800000u;
    }
    e -= 127;
    uint64_t v = (uint64_t)m << ((e & 1) ? 26 : 25); /* value = v * 2^-48 (even) with room for 25 result bits */
    uint32_t r = 0;
    for (uint32_t bit = 1u << 25; bit; bit >>= 1) {
        uint64_t t = (uint64_t)(r | bit);
        if (t * t <= v) { r |= bit; }
    }
    uint32_t sticky = (uint64_t)r * r != v;
    uint32_t q = r >> 1, half = r & 1;
    if (half && (sticky || (q & 1))) { q++; }
    int32_t re = (e - (e & 1)) / 2 + 127;
    if (q >> 24) {
        q >>= 1;
        re++;
    }
    return smg_from_bits(((uint32_t)re << 23) | (q & 0x7fffffu));
#endif
}

/* exp(x) = 2^n exp(r), |r| <= ln(2)/2. Adding SMG_ROUND rounds to an integer that is then found in the low bits of the
 * sum. n * SMG_LN2_HI is exact, for SMG_LN2_HI has 15 bits. */
#define SMG_ROUND      12582912.0f /* 1.5 * 2^23 */
#define SMG_ROUND_BITS 0x4b400000u
#define SMG_LOG2E      1.44269504f
#define SMG_LN2_HI     0.693145752f
#define SMG_LN2_LO     1.42860677e-6f

/* exp(r) - 1 for |r| <= ln(2)/2 */
static inline float smg_exp_core(float r) {
    float q = 1.99442598e-4f;
    q = q * r + 1.39335648e-3f;
    q = q * r + 8.33320804e-3f;
    q = q * r + 4.16664816e-2f;
    q = q * r + 1.66666672e-1f;
    q = q * r + 0.5f;
    return r + r * r * q;
}

/* 0.96 ulp, denormal results included */
static inline float smg_expf(float x) {
    x = x > 89.0f ? 89.0f : x;     /* inf from here on */
    x = x < -104.0f ? -104.0f : x; /* 0 from here on */
    const float t = x * SMG_LOG2E + SMG_ROUND, n = t - SMG_ROUND;
    const float r = (x - n * SMG_LN2_HI) - n * SMG_LN2_LO;
    /* 2^n in two factors, both normal numbers: the second multiplication alone may round or overflow. */
    const uint32_t e = smg_bits(t) - SMG_ROUND_BITS + 254, half = e >> 1;
    return (1.0f + smg_exp_core(r)) * smg_from_bits(half << 23) * smg_from_bits((e - half) << 23);
}

/* exp(x) - 1 without cancellation, for x <= 88; 0.85 ulp for x <= 0 */
static inline float smg_expm1f(float x) {
    x = x < -20.0f ? -20.0f : x; /* -1 from here on */
    const float t = x * SMG_LOG2E + SMG_ROUND, n = t - SMG_ROUND;
    const float r = (x - n * SMG_LN2_HI) - n * SMG_LN2_LO;
    const float s = smg_from_bits((smg_bits(t) - SMG_ROUND_BITS + 127) << 23);
    return s * smg_exp_core(r) + (s - 1.0f);
}

/* log(x) + c, where c is far smaller than the result. x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), s = f / (2 + f):
 * log(1 + f) = f - f^2/2 + s (f^2/2 + R), R = (log((1+s)/(1-s)) - 2s) / s, a series in s^2. */
static inline float smg_log_plus(float x, float c) {
    const float up = x * 33554432.0f; /* 2^25 makes denormals normal */
    const int tiny = x < 1.17549435e-38f;
    const uint32_t u = smg_bits(tiny ? up : x) + (0x3f800000u - 0x3f3504f3u);
    const float f = smg_from_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    const float k = (float)((int32_t)(u >> 23) - (tiny ? 152 : 127));
    const float s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
    float q = 2.42792547e-1f;
    q = q * z + 2.84987867e-1f;
    q = q * z + 4.00009722e-1f;
    q = q * z + 6.66666627e-1f;
    const float y = k * SMG_LN2_HI - ((half - (s * (half + z * q) + (k * SMG_LN2_LO + c))) - f);
    const float at_most_0 = x == 0 ? -SMG_INF : SMG_NAN; /* 0, and negative or NaN */
    const float outside = x > 0 ? x : at_most_0;         /* infinity */
    return x > 0 && x < SMG_INF ? y : outside;
}

/* 0.83 ulp */
static inline float smg_logf(float x) { return smg_log_plus(x, 0.0f); }

/* log(1 + x); 0.84 ulp. What rounding 1 + x loses is put back to first order. */
static inline float smg_log1pf(float x) {
    const float u = 1.0f + x;
    return smg_log_plus(u, (x - (u - 1.0f)) / u);
}

/* 1.35 ulp: an odd polynomial up to 0.6, beyond it 1 - 2 / (exp(2x) + 1) */
static inline float smg_tanhf(float x) {
    const float z = x * x, a = smg_absf(x);
    float q = -5.89796668e-3f;
    q = q * z + 2.07986254e-2f;
    q = q * z - 5.37847169e-2f;
    q = q * z + 1.33319363e-1f;
    q = q * z - 3.33332986e-1f;
    const float inner = a + a * (z * q), outer = 1.0f - 2.0f / (smg_expf(a + a) + 1.0f);
    return smg_copysignf(a < 0.6f ? inner : outer, x);
}

/* 1 / (1 + exp(-x)); 2.41 ulp, also where the result is tiny */
static inline float smg_sigmoidf(float x) {
    const float e = smg_expf(-smg_absf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* 1.22 ulp: a series in x^2 up to 0.9, beyond it 1 - exp(q) with q fitted to log(erfc) */
static inline float smg_erff(float x) {
    const float z = x * x, wide = smg_absf(x), a = wide > 4.0f ? 4.0f : wide;
    float p = 7.90986742e-5f;
    p = p * z - 8.03278119e-4f;
    p = p * z + 5.19124046e-3f;
    p = p * z - 2.68554073e-2f;
    p = p * z + 1.12836227e-1f;
    p = p * z - 3.76126289e-1f;
    p = p * z + 1.28379166e-1f;
    float q = -2.06277873e-5f;
    q = q * a + 4.29068954e-4f;
    q = q * a - 4.14499361e-3f;
    q = q * a + 2.5051007e-2f;
    q = q * a - 1.08174726e-1f;
    q = q * a - 6.33442163e-1f;
    q = q * a - 1.12946808f;
    q = q * a + 1.65009056e-4f;
    const float inner = x + x * p, outer = smg_copysignf(1.0f - smg_expf(q), x);
    return a < 0.9f ? inner : outer;
}

/* The quarter turn nearest to x; *r gets what is left of x, in [-pi/4, pi/4]. NaN and infinity leave NaN. */
static inline uint32_t smg_quarter_turns(float x, float *r) {
    const uint32_t u = smg_bits(x) & 0x7fffffffu;
    if (u < 0x49742400u) { /* |x| < 1e6: n * HI is exact, HI being the first 33 bits of pi/2 */
        const double t = x * 0.6366197723675814 + 6755399441055744.0, n = t - 6755399441055744.0; /* 1.5 * 2^52 */
        *r = (float)((x - n * 1.5707963267341256) - n * 6.077100506506192e-11);
        return (uint32_t)smg_bits64(t) & 3;
    }
    if (u >= 0x7f800000u) {
        *r = SMG_NAN;
        return 0;
    }
    /* Payne and Hanek: |x| = m 2^e; the 96 bits of 2/pi that matter for m 2^e 2/pi mod 4 start at its bit e - 2. */
    static const uint32_t two_over_pi[8] = {
        0, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
    }; /* 32 zero bits in front, for e may be as small as -4 */
    const uint64_t m = (u & 0x7fffffu) | 0x800000u;
    const uint32_t at = (u >> 23) - 150 - 2 + 32, *word = two_over_pi + (at >> 5);
    uint64_t w[3];
    for (int i = 0; i < 3; i++) { w[i] = ((uint64_t)word[i] << 32 | word[i + 1]) << (at & 31) >> 32; }
    const uint64_t turns = (m * w[0] << 32) + m * w[1] + (m * w[2] >> 32); /* in units of 2^-62 */
    const uint64_t n = (turns + ((uint64_t)1 << 61)) >> 62;
    const double rest = (double)(int64_t)(turns - (n << 62)) * 3.4061215800865545e-19; /* pi/2 * 2^-62 */
    const int negative = smg_bits(x) >> 31;
    *r = (float)(negative ? -rest : rest);
    return (uint32_t)(negative ? 0 - n : n) & 3;
}

/* sin(x + quarters * pi/2) */
static inline float smg_sin_from(float x, uint32_t quarters) {
    float r;
    const uint32_t n = smg_quarter_turns(x, &r) + quarters;
    const float z = r * r;
    const float odd = r + r * z * (-1.66666538e-1f + z * (8.33210163e-3f + z * -1.95068438e-4f));
    const float s = smg_copysignf(odd, r); /* -0 stays -0 */
    const float c = 1.0f - (0.5f * z - z * z * (4.16666456e-2f + z * (-1.38873025e-3f + z * 2.44308812e-5f)));
    const float y = n & 1 ? c : s;
    return n & 2 ? -y : y;
}

/* 1.56 ulp for every float: the reduction keeps all bits of pi that matter */
static inline float smg_sinf(float x) { return smg_sin_from(x, 0); }
static inline float smg_cosf(float x) { return smg_sin_from(x, 1); }

static inline float smg_to_float(double x) { /* the plain cast is undefined beyond the largest float */
    const uint64_t size = smg_bits64(x) & 0x7fffffffffffffffu; /* compared as integers: doubles may be software */
    const int beyond = size > 0x47efffffe0000000u && size <= 0x7ff0000000000000u; /* the largest float, infinity */
    return beyond ? smg_from_bits(0x7f800000u | (uint32_t)(smg_bits64(x) >> 63) << 31) : (float)x;
}

/* |x|^y as 2^(y log2 |x|) in double */
static inline float smg_pow_core(float x, float y) {
    const double d = smg_absf(x);
    const uint64_t u = smg_bits64(d) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    const double m = smg_from_bits64((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu); /* in [sqrt(1/2), sqrt(2)) */
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double q = 0.11791075541377184;
    q = q * z + 0.14268654225593902;
    q = q * z + 0.2000016759712605;
    q = q * z + 0.33333332822718476;
    double log2 = (double)((int32_t)(u >> 52) - 1023) + 2.8853900817779268 * (s + s * z * q);
    log2 = d < SMG_INF ? log2 : d; /* d: infinity or NaN */
    log2 = d == 0 ? -SMG_INF : log2;
    double v = d == 1 ? 0.0 : y * log2; /* also 1^inf */
    v = v > 200.0 ? 200.0 : v;
    v = v < -200.0 ? -200.0 : v;
    const double t = v + 6755399441055744.0, r = v - (t - 6755399441055744.0);
    double p = 1.5316459515166742e-5;
    p = p * r + 1.546973166456868e-4;
    p = p * r + 1.3333422654541328e-3;
    p = p * r + 9.618025604135166e-3;
    p = p * r + 5.5504109760983564e-2;
    p = p * r + 2.4022651213584043e-1;
    p = p * r + 6.931471805350297e-1;
    p = p * r + 9.999999999595499e-1;
    return smg_to_float(p * smg_from_bits64((smg_bits64(t) - 0x4338000000000000u + 1023) << 52));
}

/* x^y with the special values of C's pow; 0.51 ulp */
static inline float smg_powf(float x, float y) {
    if (y == 0 || x == 1) { return 1.0f; }
    if (y != y) { return y; }
    const float size = smg_pow_core(x, y), a = smg_absf(y);
    if (!(smg_bits(x) >> 31)) { return size; }
    const int32_t whole = a < 16777216.0f ? (int32_t)a : 0; /* larger floats are even integers */
    if (a < 16777216.0f && (float)whole != a) { return x < 0 && x > -SMG_INF ? SMG_NAN : size; }
    return whole & 1 ? -size : size;
}
#endif
