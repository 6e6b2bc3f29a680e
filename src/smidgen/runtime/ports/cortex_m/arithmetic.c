/* Arithmetic that the core does not have, IEEE 754 and rounded to nearest, in a fraction of the library's size: double
 * wherever there is no unit for it, float and division of integers on ARMv6-M. Values are passed as their bits, which
 * is how these functions of the run-time ABI (ARM IHI 0043) pass them on every core. They are weak: the library's are
 * taken where they come along anyway.
 *
 * Inside, a number is m / 2^63 * 2^(e - bias) (double) or m / 2^31 * 2^(e - bias) (float), m with its highest bit set,
 * or 0. Bits of m below those that are kept, the lowest of them for all that were lost, decide how it is rounded. */
#include <stdint.h>

#ifndef ABI /* a test on another machine has names of its own */
#define ABI(name) __aeabi_##name
#if defined(__ARM_FP) && (__ARM_FP & 8)
#define WANT_DOUBLE 0
#else
#define WANT_DOUBLE 1
#endif
#define WANT_FLOAT (__ARM_ARCH == 6)
#endif
#define WEAK __attribute__((weak))
typedef uint32_t Single; /* the bits of a float */
typedef uint64_t Double;

#if WANT_DOUBLE
#define SIGN64 0x8000000000000000u
#define INF64  0x7ff0000000000000u
#define NAN64  0x7ff8000000000000u

Double ABI(dadd)(Double a, Double b);
Double ABI(dsub)(Double a, Double b);
Double ABI(drsub)(Double a, Double b);
Double ABI(dmul)(Double a, Double b);
Double ABI(ddiv)(Double a, Double b);
Double ABI(i2d)(int32_t i);
Double ABI(ui2d)(uint32_t i);
Double ABI(l2d)(int64_t i);
Double ABI(ul2d)(uint64_t i);
Double ABI(f2d)(Single f);
Single ABI(d2f)(Double d);

static int is_nan64(Double a) { return (a & ~SIGN64) > INF64; }

/* n / 2^distance; what is lost leaves a one behind. */
static uint64_t shifted64(uint64_t n, int32_t distance) {
    if (!n || distance > 63) { return n != 0; }
    return n >> distance | (n << 1 << (63 - distance) != 0);
}

/* The bits without sign. `drop` of m are not kept: 11 for a double, 40 for a float. m may be any number. */
static Double rounded64(int32_t e, uint64_t m, int drop) {
    const int kept = 63 - drop, last = drop == 11 ? 2047 : 255;
    if (!m) { return 0; }
    for (; !(m >> 63); m <<= 1) { e--; }
    if (e >= last) { return (Double)last << kept; }
    if (e < 1) {
        m = shifted64(m, 1 - e);
        e = 1; /* a denormal, or less */
    }
    const uint64_t rest = m << kept << 1;
    m >>= drop;
    /* The highest bit of m counts in the exponent, and so does a carry. */
    return ((Double)(e - 1) << kept) + m + ((rest | (m & 1)) > SIGN64);
}

static int32_t unpacked64(Double a, uint64_t *m) {
    int32_t e = (int32_t)(a >> 52 & 2047);
    *m = a << 11;
    if (e) {
        *m |= SIGN64;
    } else if (*m) {
        for (e = 1; !(*m >> 63); e--) { *m <<= 1; }
    }
    return e;
}

WEAK Double ABI(dadd)(Double a, Double b) {
    if ((a & ~SIGN64) < (b & ~SIGN64)) {
        const Double other = a;
        a = b;
        b = other;
    }
    const int differ = (int)((a ^ b) >> 63);
    uint64_t m, n;
    const int32_t e = unpacked64(a, &m), f = unpacked64(b, &n);
    if (e == 2047) { return is_nan64(a) || (differ && f == 2047) ? NAN64 : a; }
    m >>= 1;
    n = shifted64(n, e - f + 1); /* room for a carry */
    if (differ && m == n) { return 0; }
    return (a & SIGN64) | rounded64(e + 1, differ ? m - n : m + n, 11);
}
WEAK Double ABI(dsub)(Double a, Double b) { return ABI(dadd)(a, b ^ SIGN64); }
WEAK Double ABI(drsub)(Double a, Double b) { return ABI(dadd)(b, a ^ SIGN64); }

WEAK Double ABI(dmul)(Double a, Double b) {
    const Double sign = (a ^ b) & SIGN64;
    uint64_t m, n;
    const int32_t e = unpacked64(a, &m), f = unpacked64(b, &n);
    if (e == 2047 || f == 2047) { return is_nan64(a) || is_nan64(b) || !m || !n ? NAN64 : sign | INF64; }
    const uint32_t ml = (uint32_t)m, mh = (uint32_t)(m >> 32), nl = (uint32_t)n, nh = (uint32_t)(n >> 32);
    const uint64_t low = (uint64_t)ml * nl, left = (uint64_t)mh * nl + (low >> 32);
    const uint64_t right = (uint64_t)ml * nh + (uint32_t)left;
    const uint64_t high = (uint64_t)mh * nh + (left >> 32) + (right >> 32);
    return sign | rounded64(e + f - 1022, high | (((uint32_t)low | (uint32_t)right) != 0), 11);
}

/* The first `count` binary digits of *m / n; *m is the remainder. */
static uint64_t digits64(uint64_t *m, uint64_t n, int count) {
    uint64_t digits = 0;
    for (int i = 0; i < count; i++, *m <<= 1) {
        digits <<= 1;
        if (*m >= n) {
            *m -= n;
            digits |= 1;
        }
    }
    return digits;
}

WEAK Double ABI(ddiv)(Double a, Double b) {
    const Double sign = (a ^ b) & SIGN64;
    uint64_t m, n;
    const int32_t e = unpacked64(a, &m), f = unpacked64(b, &n);
    if (is_nan64(a) || is_nan64(b) || (e == 2047 && f == 2047) || (!m && !n)) { return NAN64; }
    if (e == 2047 || !n) { return sign | INF64; }
    if (f == 2047) { return sign; }
    m >>= 11;
    const uint64_t quotient = digits64(&m, n >> 11, 56);
    return sign | rounded64(e - f + 1023 + 8, quotient | (m != 0), 11);
}

WEAK Double ABI(ul2d)(uint64_t i) { return rounded64(1023 + 63, i, 11); }
WEAK Double ABI(l2d)(int64_t i) { return i < 0 ? SIGN64 | ABI(ul2d)(0 - (uint64_t)i) : ABI(ul2d)((uint64_t)i); }
WEAK Double ABI(ui2d)(uint32_t i) { return ABI(ul2d)(i); }
WEAK Double ABI(i2d)(int32_t i) { return ABI(l2d)(i); }

WEAK Double ABI(f2d)(Single f) {
    const Double sign = (Double)(f >> 31) << 63;
    const int32_t e = (int32_t)(f >> 23 & 255);
    const uint64_t m = (uint64_t)f << 41 >> 1;
    if (e == 255) { return m ? NAN64 : sign | INF64; }
    return sign | rounded64(e ? e + 896 : 897, e ? m | SIGN64 : m, 11);
}

WEAK Single ABI(d2f)(Double d) {
    const Single sign = (Single)(d >> 63) << 31;
    uint64_t m;
    const int32_t e = unpacked64(d, &m);
    return is_nan64(d) ? 0x7fc00000u : sign | (Single)rounded64(e == 2047 ? e : e - 896, m, 40);
}
#endif

#if WANT_FLOAT
#define SIGN32 0x80000000u
#define INF32  0x7f800000u
#define NAN32  0x7fc00000u

Single ABI(fadd)(Single a, Single b);
Single ABI(fsub)(Single a, Single b);
Single ABI(frsub)(Single a, Single b);
Single ABI(fmul)(Single a, Single b);
Single ABI(fdiv)(Single a, Single b);
Single ABI(i2f)(int32_t i);
Single ABI(ui2f)(uint32_t i);
int ABI(fcmpeq)(Single a, Single b);
int ABI(fcmplt)(Single a, Single b);
int ABI(fcmple)(Single a, Single b);
int ABI(fcmpge)(Single a, Single b);
int ABI(fcmpgt)(Single a, Single b);
int ABI(fcmpun)(Single a, Single b);
uint64_t ABI(uidivmod)(uint32_t n, uint32_t d);
uint64_t ABI(idivmod)(int32_t n, int32_t d);
uint32_t ABI(uidiv)(uint32_t n, uint32_t d);
int32_t ABI(idiv)(int32_t n, int32_t d);

static int is_nan32(Single a) { return a << 1 > INF32 << 1; }

static uint32_t shifted32(uint32_t n, int32_t distance) {
    if (!n || distance > 31) { return n != 0; }
    return n >> distance | (n << 1 << (31 - distance) != 0);
}

/* The first `count` binary digits of *m / n; *m is the remainder. */
static uint32_t digits32(uint32_t *m, uint32_t n, int count) {
    uint32_t digits = 0;
    for (int i = 0; i < count; i++, *m <<= 1) {
        digits <<= 1;
        if (*m >= n) {
            *m -= n;
            digits |= 1;
        }
    }
    return digits;
}

static Single rounded32(Single sign, int32_t e, uint32_t m) {
    if (!m) { return sign; }
    for (; !(m >> 31); m <<= 1) { e--; }
    if (e >= 255) { return sign | INF32; }
    if (e < 1) {
        m = shifted32(m, 1 - e);
        e = 1;
    }
    const uint32_t rest = m << 24;
    m >>= 8;
    return (sign | (Single)(e - 1) << 23) + m + ((rest | (m & 1)) > SIGN32);
}

/* m and, in the upper half, e. */
static uint64_t unpacked_denormal32(Single a) {
    uint32_t m = a << 8;
    int32_t e = m != 0;
    for (; m && !(m >> 31); e--) { m <<= 1; }
    return (uint64_t)(uint32_t)e << 32 | m;
}

/* In place, because training does little else. */
static inline __attribute__((always_inline)) int32_t unpacked32(Single a, uint32_t *m) {
    const int32_t e = (int32_t)(a << 1 >> 24);
    *m = a << 8 | SIGN32;
    if (e) { return e; }
    const uint64_t both = unpacked_denormal32(a);
    *m = (uint32_t)both;
    return (int32_t)(both >> 32);
}

WEAK Single ABI(fadd)(Single a, Single b) {
    if (a << 1 < b << 1) {
        const Single other = a;
        a = b;
        b = other;
    }
    const int differ = (int)((a ^ b) >> 31);
    uint32_t m, n;
    const int32_t e = unpacked32(a, &m), f = unpacked32(b, &n);
    if (e == 255) { return is_nan32(a) || (differ && f == 255) ? NAN32 : a; }
    m >>= 1;
    n = shifted32(n, e - f + 1);
    if (differ && m == n) { return 0; }
    return rounded32(a & SIGN32, e + 1, differ ? m - n : m + n);
}
WEAK Single ABI(fsub)(Single a, Single b) { return ABI(fadd)(a, b ^ SIGN32); }
WEAK Single ABI(frsub)(Single a, Single b) { return ABI(fadd)(b, a ^ SIGN32); }

WEAK Single ABI(fmul)(Single a, Single b) {
    const Single sign = (a ^ b) & SIGN32;
    uint32_t m, n;
    const int32_t e = unpacked32(a, &m), f = unpacked32(b, &n);
    if (e == 255 || f == 255) { return is_nan32(a) || is_nan32(b) || !m || !n ? NAN32 : sign | INF32; }
    m >>= 8;
    n >>= 8; /* 24 bits, multiplied as 8 and 16: the core has no longer product than 32 bits */
    const uint32_t low = (m & 0xffffu) * (n & 0xffffu), middle = (m >> 16) * (n & 0xffffu) + (m & 0xffffu) * (n >> 16);
    const uint32_t high = ((m >> 16) * (n >> 16) << 16) + middle + (low >> 16);
    return rounded32(sign, e + f - 126, high | (low << 16 != 0));
}

WEAK Single ABI(fdiv)(Single a, Single b) {
    const Single sign = (a ^ b) & SIGN32;
    uint32_t m, n;
    const int32_t e = unpacked32(a, &m), f = unpacked32(b, &n);
    if (is_nan32(a) || is_nan32(b) || (e == 255 && f == 255) || (!m && !n)) { return NAN32; }
    if (e == 255 || !n) { return sign | INF32; }
    if (f == 255) { return sign; }
    m >>= 8;
    const uint32_t quotient = digits32(&m, n >> 8, 27);
    return rounded32(sign, e - f + 127 + 5, quotient | (m != 0));
}

WEAK Single ABI(ui2f)(uint32_t i) { return rounded32(0, 127 + 31, i); }
WEAK Single ABI(i2f)(int32_t i) {
    return rounded32((uint32_t)i & SIGN32, 127 + 31, i < 0 ? 0 - (uint32_t)i : (uint32_t)i);
}

/* Floats in their order as integers, with both zeros at 0. */
static int32_t rank32(Single a) { return a & SIGN32 ? -(int32_t)(a & ~SIGN32) : (int32_t)a; }
WEAK int ABI(fcmpun)(Single a, Single b) { return is_nan32(a) || is_nan32(b); }
WEAK int ABI(fcmplt)(Single a, Single b) { return !ABI(fcmpun)(a, b) && rank32(a) < rank32(b); }
WEAK int ABI(fcmple)(Single a, Single b) { return !ABI(fcmpun)(a, b) && rank32(a) <= rank32(b); }
WEAK int ABI(fcmpeq)(Single a, Single b) { return !ABI(fcmpun)(a, b) && rank32(a) == rank32(b); }
WEAK int ABI(fcmpge)(Single a, Single b) { return ABI(fcmple)(b, a); }
WEAK int ABI(fcmpgt)(Single a, Single b) { return ABI(fcmplt)(b, a); }

/* Division of integers: the quotient, and in the upper half the remainder. By 0 it is 0, as where the core divides. */
WEAK uint64_t ABI(uidivmod)(uint32_t n, uint32_t d) {
    uint32_t quotient = 0, bit = d != 0;
    for (; bit && d < n && !(d >> 31); d <<= 1) { bit <<= 1; }
    for (; bit; bit >>= 1, d >>= 1) {
        if (n >= d) {
            n -= d;
            quotient |= bit;
        }
    }
    return (uint64_t)n << 32 | quotient;
}
WEAK uint32_t ABI(uidiv)(uint32_t n, uint32_t d) { return (uint32_t)ABI(uidivmod)(n, d); }
WEAK uint64_t ABI(idivmod)(int32_t n, int32_t d) {
    const uint64_t both = ABI(uidivmod)(n < 0 ? 0 - (uint32_t)n : (uint32_t)n, d < 0 ? 0 - (uint32_t)d : (uint32_t)d);
    const uint32_t quotient = (uint32_t)both, rest = (uint32_t)(both >> 32);
    return (uint64_t)(n < 0 ? 0 - rest : rest) << 32 | ((n ^ d) < 0 ? 0 - quotient : quotient);
}
WEAK int32_t ABI(idiv)(int32_t n, int32_t d) { return (int32_t)(uint32_t)ABI(idivmod)(n, d); }
#endif
