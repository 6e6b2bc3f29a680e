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

#if defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && defined(__GNUC__)
/* Two terms at a time: numbers of two rows of w side by side, as SMLAD takes them. The same sums as below.
 *
 *     w     U  u0 u1 u2 u3        panel   u0|v0  u1|v1  u2|v2  u3|v3     made once for all pixels, 32 terms at a time
 *           V  v0 v1 v2 v3 */
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
static inline uint32_t smg_word(const void *from) { /* not by a call, which memcpy is in firmware */
    uint32_t v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

/* Sums over pairs of terms of p[pair][i] * w[pair][l], two pixels and four inputs, all in registers; they are stored
 * behind the last pair of w, as [i][l]. */
__attribute__((noinline)) static void smg_pairs16(const uint32_t *p, uint32_t *w, int32_t pairs) {
    uint32_t a, b, k;
    __asm__ volatile("mov r4, #0\n\t"
                     "mov r5, #0\n\t"
                     "mov r6, #0\n\t"
                     "mov r7, #0\n\t"
                     "mov r8, #0\n\t"
                     "mov r9, #0\n\t"
                     "mov r10, #0\n\t"
                     "mov r11, #0\n"
                     "1:\n\t"
                     "ldrd %[a], %[b], [%[p]], #8\n\t"
                     "ldr %[k], [%[w]], #4\n\t"
                     "smlad r4, %[a], %[k], r4\n\t"
                     "smlad r8, %[b], %[k], r8\n\t"
                     "ldr %[k], [%[w]], #4\n\t"
                     "smlad r5, %[a], %[k], r5\n\t"
                     "smlad r9, %[b], %[k], r9\n\t"
                     "ldr %[k], [%[w]], #4\n\t"
                     "smlad r6, %[a], %[k], r6\n\t"
                     "smlad r10, %[b], %[k], r10\n\t"
                     "ldr %[k], [%[w]], #4\n\t"
                     "smlad r7, %[a], %[k], r7\n\t"
                     "smlad r11, %[b], %[k], r11\n\t"
                     "subs %[n], %[n], #1\n\t"
                     "bne 1b\n\t"
                     "stmia %[w], {r4-r11}"
                     : [p] "+r"(p), [w] "+r"(w), [n] "+r"(pairs), [a] "=&r"(a), [b] "=&r"(b), [k] "=&r"(k)
                     :
                     : "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "cc", "memory");
}

enum { PAIRS16 = 16 };
static void smg_outer16(int32_t *sum, const int16_t *p, ptrdiff_t p_step, const int8_t *w, ptrdiff_t w_step,
                        int32_t terms, int width) {
    uint32_t pixels[PIXELS * PAIRS16], panel[4 * PAIRS16 + 8]; /* [pixels / 2][pair][2]; [pair][input], eight sums */
    for (int32_t few; terms > 0; terms -= few, p += few, w += few * w_step) {
        few = terms < 2 * PAIRS16 ? terms : 2 * PAIRS16;
        const int32_t pairs = (few + 1) / 2;
        for (int i = 0; i < PIXELS; i++) {
            uint32_t *to = pixels + (ptrdiff_t)(i / 2) * 2 * PAIRS16 + i % 2;
            const int16_t *from = p + i * p_step;
            for (int32_t t = few; t > 1; t -= 2, from += 2, to += 2) { *to = smg_word(from); }
            if (few & 1) { *to = (uint16_t)*from; }
        }
        int l = 0;
        for (; l + 4 <= width; l += 4) {
            const int8_t *v = w + l;
            uint32_t *to = panel;
            for (int32_t t = few; t > 0; t -= 2, v += 2 * w_step, to += 4) {
                const uint32_t U = smg_word(v), V = t > 1 ? smg_word(v + w_step) : 0;
                const uint32_t Ue = smg_even8(U), Ve = smg_even8(V), Uo = smg_odd8(U), Vo = smg_odd8(V);
                to[0] = smg_low16(Ue, Ve);
                to[1] = smg_low16(Uo, Vo);
                to[2] = smg_high16(Ue, Ve);
                to[3] = smg_high16(Uo, Vo);
            }
            for (int i = 0; i < PIXELS; i += 2) {
                int32_t *up = sum + i * SMG_RUN + l;
                smg_pairs16(pixels + (ptrdiff_t)i * PAIRS16, panel, pairs);
                const uint32_t *s = panel + (ptrdiff_t)4 * pairs;
                for (int k = 0; k < 4; k++) {
                    up[k] += (int32_t)s[k];
                    up[SMG_RUN + k] += (int32_t)s[4 + k];
                }
            }
        }
        for (; l < width; l++) {
            for (int i = 0; i < PIXELS; i++) {
                const int16_t *a = p + i * p_step;
                const int8_t *v = w + l;
                int32_t s = 0;
                for (int32_t t = 0; t < few; t++, v += w_step) { s += a[t] * *v; }
                sum[i * SMG_RUN + l] += s;
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
#if defined(__GNUC__) && !defined(__clang__) /* one of it: a copy for known steps would take kilobytes of stack */
__attribute__((noinline, noclone))
#endif
static void
smg_outer16(int32_t *restrict sum, const int16_t *restrict p, ptrdiff_t p_step, const int8_t *restrict w,
            ptrdiff_t w_step, int32_t terms, int width) {
    if (width < SMG_RUN) {
        for (int i = 0; i < PIXELS; i++, sum += SMG_RUN, p += p_step) {
            const int8_t *v = w;
            for (const int16_t *a = p; a < p + terms; a++, v += w_step) {
                for (int l = 0; l < width; l++) { sum[l] += *a * v[l]; }
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
