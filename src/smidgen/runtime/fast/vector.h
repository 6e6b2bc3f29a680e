/* Vectors of floats in GCC's vector extensions, which gcc and clang turn into the instructions of the set that a file
 * is compiled for. VL lanes; loads and stores need no alignment. */
#ifndef SMG_VECTOR_H
#define SMG_VECTOR_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(VL) /* a test tries another width */
#elif defined(__AVX512F__)
#define VL 16
#elif defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif

#define INLINE      static inline __attribute__((always_inline))
#define APART       static __attribute__((noinline)) /* keeps its locals out of the caller's frame */
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/* In front of a loop whose count is known after inlining. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef float vf __attribute__((vector_size(4 * VL)));
typedef float vf_any __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32)));
typedef float v8_any __attribute__((vector_size(32), aligned(4), may_alias));

/* `_any` types may lie anywhere and alias floats; vf and the like are values in registers. */
INLINE vf vload(const float *p) { return *(const vf_any *)p; }
INLINE void vstore(float *p, vf v) { *(vf_any *)p = v; }
INLINE vf vzero(void) { return (vf){0}; }
INLINE vf vset(float s) { return s - (vf){0}; }

/* n floats, n < VL, in few pieces. */
INLINE void copy_part(float *to, const float *from, int n) {
#if VL > 8
    if (n & 8) {
        *(v8_any *)to = *(const v8_any *)from;
        to += 8;
        from += 8;
    }
#endif
#if VL > 4
    if (n & 4) {
        *(v4_any *)to = *(const v4_any *)from;
        to += 4;
        from += 4;
    }
#endif
    if (n & 2) {
        memcpy(to, from, 8);
        to += 2;
        from += 2;
    }
    if (n & 1) { *to = *from; }
}
/* The first n lanes, n < VL; the others load as zero. */
#if VL == 16 && defined(__AVX512F__)
INLINE vf vload_part(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void vstore_part(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v); }
/* p[0].. in lanes from..to, to <= VL; zero in the others. */
INLINE vf vload_lanes(const float *p, int from, int to) {
    return (vf)_mm512_maskz_expandloadu_ps((__mmask16)((1u << to) - (1u << from)), p);
}
#else
INLINE vf vload_part(const float *p, int n) {
    float lanes[VL] __attribute__((aligned(4 * VL))) = {0};
    copy_part(lanes, p, n);
    return vload(lanes);
}
INLINE void vstore_part(float *p, vf v, int n) {
    float lanes[VL] __attribute__((aligned(4 * VL)));
    vstore(lanes, v);
    copy_part(p, lanes, n);
}
INLINE vf vload_lanes(const float *p, int from, int to) {
    float lanes[VL] __attribute__((aligned(4 * VL))) = {0};
    for (int l = from; l < to; l++) { lanes[l] = p[l - from]; }
    return vload(lanes);
}
#endif

/* Sums of all lanes, by halves: the same order for every way to get at the lanes. */
INLINE float vsum4(v4 v) {
    v4 w = v + __builtin_shufflevector(v, v, 2, 3, 0, 1);
    return w[0] + w[1];
}
INLINE v4 vfold8(v8 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7); }
INLINE float vsum(vf v) {
#if VL == 16
    return vsum4(vfold8(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                        __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)));
#elif VL == 8
    return vsum4(vfold8(v));
#else
    return vsum4(v);
#endif
}

/* 4 rows, `row` floats apart, of G = 4 or 8 columns each are G columns: to[k * pitch + j] = from[j * row + k]. */
#if VL >= 8
#define TURN 8
INLINE v8 vpair(const float *a, const float *b) {
    return __builtin_shufflevector((v4) * (const v4_any *)a, (v4) * (const v4_any *)b, 0, 1, 2, 3, 4, 5, 6, 7);
}
INLINE void vturn(v8 out[4], const float *from, ptrdiff_t row) {
    const v8 a = vpair(from, from + 4 * row), b = vpair(from + row, from + 5 * row);
    const v8 c = vpair(from + 2 * row, from + 6 * row), d = vpair(from + 3 * row, from + 7 * row);
    const v8 e = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    const v8 f = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    const v8 g = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    const v8 h = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    out[0] = __builtin_shufflevector(e, g, 0, 1, 8, 9, 4, 5, 12, 13);
    out[1] = __builtin_shufflevector(e, g, 2, 3, 10, 11, 6, 7, 14, 15);
    out[2] = __builtin_shufflevector(f, h, 0, 1, 8, 9, 4, 5, 12, 13);
    out[3] = __builtin_shufflevector(f, h, 2, 3, 10, 11, 6, 7, 14, 15);
}
typedef v8 vturned;
typedef v8_any vturned_any;
#else
#define TURN 4
INLINE void vturn(v4 out[4], const float *from, ptrdiff_t row) {
    const v4 a = *(const v4_any *)from, b = *(const v4_any *)(from + row);
    const v4 c = *(const v4_any *)(from + 2 * row), d = *(const v4_any *)(from + 3 * row);
    const v4 e = __builtin_shufflevector(a, b, 0, 4, 1, 5), f = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const v4 g = __builtin_shufflevector(c, d, 0, 4, 1, 5), h = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(e, g, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(e, g, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(f, h, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(f, h, 2, 3, 6, 7);
}
typedef v4 vturned;
typedef v4_any vturned_any;
#endif
#endif
