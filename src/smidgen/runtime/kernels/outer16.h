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

#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
/* Two terms at a time: numbers of two rows of w side by side, as SMLAD takes them. The same sums as below. */
static inline int32_t smg_smlad(uint32_t a, uint32_t b, int32_t sum) {
    int32_t r;
    __asm__("smlad %0, %1, %2, %3" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
    return r;
}
static inline uint32_t smg_even8(uint32_t v) { /* bytes 0 and 2 */
    uint32_t r;
    __asm__("sxtb16 %0, %1" : "=r"(r) : "r"(v));
    return r;
}
static inline uint32_t smg_odd8(uint32_t v) { /* bytes 1 and 3 */
    uint32_t r;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(r) : "r"(v));
    return r;
}
static inline uint32_t smg_low16(uint32_t a, uint32_t b) { /* both lower halves */
    uint32_t r;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
static inline uint32_t smg_high16(uint32_t a, uint32_t b) { /* both upper halves */
    uint32_t r;
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(r) : "r"(b), "r"(a));
    return r;
}
static inline uint32_t smg_word(const void *from) {
    uint32_t v;
    memcpy(&v, from, sizeof v);
    return v;
}
static inline void smg_outer16(int32_t *sum, const int16_t *p, ptrdiff_t p_step, const int8_t *w, ptrdiff_t w_step,
                               int32_t terms, int width) {
    for (int i = 0; i < PIXELS; i += 2, sum += 2 * SMG_RUN, p += 2 * p_step) {
        int l = 0;
        for (; l + 4 <= width; l += 4) {
            const int16_t *a = p, *b = p + p_step;
            const int8_t *v = w + l;
            int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
            for (int32_t t = terms; t > 1; t -= 2, a += 2, b += 2, v += 2 * w_step) {
                const uint32_t A = smg_word(a), B = smg_word(b), U = smg_word(v), V = smg_word(v + w_step);
                const uint32_t Ue = smg_even8(U), Ve = smg_even8(V), Uo = smg_odd8(U), Vo = smg_odd8(V);
                uint32_t k = smg_low16(Ue, Ve);
                s0 = smg_smlad(A, k, s0);
                t0 = smg_smlad(B, k, t0);
                k = smg_low16(Uo, Vo);
                s1 = smg_smlad(A, k, s1);
                t1 = smg_smlad(B, k, t1);
                k = smg_high16(Ue, Ve);
                s2 = smg_smlad(A, k, s2);
                t2 = smg_smlad(B, k, t2);
                k = smg_high16(Uo, Vo);
                s3 = smg_smlad(A, k, s3);
                t3 = smg_smlad(B, k, t3);
            }
            if (terms & 1) {
                s0 += *a * v[0];
                s1 += *a * v[1];
                s2 += *a * v[2];
                s3 += *a * v[3];
                t0 += *b * v[0];
                t1 += *b * v[1];
                t2 += *b * v[2];
                t3 += *b * v[3];
            }
            int32_t *to = sum + l, *below = to + SMG_RUN;
            to[0] += s0;
            to[1] += s1;
            to[2] += s2;
            to[3] += s3;
            below[0] += t0;
            below[1] += t1;
            below[2] += t2;
            below[3] += t3;
        }
        for (; l < width; l++) {
            const int8_t *v = w + l;
            for (int32_t t = 0; t < terms; t++, v += w_step) {
                sum[l] += p[t] * *v;
                sum[l + SMG_RUN] += p[p_step + t] * *v;
            }
        }
    }
}
#elif defined(__OPTIMIZE_SIZE__)
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
