/* Two products of 16 bits at a time, for cores with the DSP extension of Arm (Cortex-M4, M7, M33, M55). Each function
 * has a twin in plain C with the same bits, which tests run on hosts (SMG_DSP=1); other cores do without all of this.
 *
 * A word of four int8 numbers a b c d becomes two words of two numbers each, (a, c) and (b, d). */
#ifndef SMG_DSP_H
#define SMG_DSP_H
#include "../exact_math.h"
#include "fixed_point.h"

#if defined __ARM_FEATURE_DSP && defined __ARM_ARCH_PROFILE && __ARM_ARCH_PROFILE == 'M' && defined __GNUC__
#define SMG_DSP     1
#define SMG_DSP_ASM 1
#elif !defined SMG_DSP
#define SMG_DSP 0
#endif

#if SMG_DSP
/* At any address. */
static inline uint32_t smg_word(const void *from) {
    uint32_t word;
    SMG_COPY(&word, from, sizeof word);
    return word;
}

static inline uint32_t smg_two(int32_t low, int32_t high) { return ((uint32_t)low & 0xffff) | (uint32_t)high << 16; }

/* What four pixels of an output are made of: where the sums begin, and x, which has for each quad of numbers the words
 * (a, c) of four pixels, then their words (b, d). Up to y in the order in which assembly reads it. */
typedef struct {
    int32_t sum[4];
    const uint32_t *x;
    int32_t quads;
    int32_t m, add, shift;
    ptrdiff_t step;
    int8_t *y;
    int brief; /* with m, add and shift alone, as smg_requantize_four; otherwise as r says */
    const Requantize *r;
} Quads;

/* y[p * step] = smg_requantize(sum[p], m, r) for some pixels. */
__attribute__((noinline, unused)) static void smg_requantize_each(int8_t *y, ptrdiff_t step, const int32_t *sum,
                                                                  int pixels, int32_t m, const Requantize *r) {
    for (int p = 0; p < pixels; p++, y += step) { *y = smg_requantize(sum[p], m, *r); }
}

#ifdef SMG_DSP_ASM
/* add + (a, c), add + (b, d) of the word's bytes, in halves. */
static inline uint32_t smg_even(uint32_t add, uint32_t word) {
    uint32_t y;
    __asm__("sxtab16 %0, %1, %2" : "=r"(y) : "r"(add), "r"(word));
    return y;
}
static inline uint32_t smg_odd(uint32_t add, uint32_t word) {
    uint32_t y;
    __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(y) : "r"(add), "r"(word));
    return y;
}

/* Of two words, the low halves, and the high ones; the first word's below. */
static inline uint32_t smg_lows(uint32_t a, uint32_t b) {
    uint32_t y;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
static inline uint32_t smg_highs(uint32_t a, uint32_t b) {
    uint32_t y;
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(y) : "r"(b), "r"(a));
    return y;
}

/* sum + both products of halves. */
static inline int32_t smg_mac2(int32_t sum, uint32_t a, uint32_t b) {
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* The upper half of a product, + add. */
static inline int32_t smg_high_add(int32_t a, int32_t b, int32_t add) {
    int32_t y;
    __asm__("smmla %0, %1, %2, %3" : "=r"(y) : "r"(a), "r"(b), "r"(add));
    return y;
}

/* The nearest number of 8 bits. */
static inline int32_t smg_clip8(int32_t a) {
    int32_t y;
    __asm__("ssat %0, #8, %1" : "=r"(y) : "r"(a));
    return y;
}

#define SMG_QUADS                       \
    "ldmia %[v], {r3, r9, r10, r11}\n"  \
    "1:\n\t"                            \
    "ldr lr, [%[w]], #4\n\t"            \
    "ldmia %[x]!, {r4, r5, r6, r8}\n\t" \
    "sxtb16 ip, lr\n\t"                 \
    "smlad r3, r4, ip, r3\n\t"          \
    "smlad r9, r5, ip, r9\n\t"          \
    "smlad r10, r6, ip, r10\n\t"        \
    "smlad r11, r8, ip, r11\n\t"        \
    "ldmia %[x]!, {r4, r5, r6, r8}\n\t" \
    "sxtb16 ip, lr, ror #8\n\t"         \
    "subs %[quads], #1\n\t"             \
    "smlad r3, r4, ip, r3\n\t"          \
    "smlad r9, r5, ip, r9\n\t"          \
    "smlad r10, r6, ip, r10\n\t"        \
    "smlad r11, r8, ip, r11\n\t"        \
    "bne 1b\n\t"
#define SMG_QUADS_USED "r3", "r4", "r5", "r6", "r8", "r9", "r10", "r11", "ip", "lr", "cc", "memory"

/* y[p * step] of the sums with the products of 4 * quads numbers at w added; returns w behind them. */
__attribute__((noinline, unused)) static const int8_t *smg_quads_output(Quads *v, const int8_t *w) {
    int32_t quads = v->quads;
    const uint32_t *x = v->x;
    if (quads && v->brief) {
        __asm__ volatile(SMG_QUADS "add lr, %[v], #24\n\t"
                                   "ldmia lr, {r4, r5, r6, r8, ip}\n\t" /* m, add, shift, step, y */
                                   "smmla r3, r3, r4, r5\n\t"
                                   "smmla r9, r9, r4, r5\n\t"
                                   "smmla r10, r10, r4, r5\n\t"
                                   "smmla r11, r11, r4, r5\n\t"
                                   "asr r3, r3, r6\n\t"
                                   "asr r9, r9, r6\n\t"
                                   "asr r10, r10, r6\n\t"
                                   "asr r11, r11, r6\n\t"
                                   "ssat r3, #8, r3\n\t"
                                   "ssat r9, #8, r9\n\t"
                                   "ssat r10, #8, r10\n\t"
                                   "ssat r11, #8, r11\n\t"
                                   "strb r3, [ip]\n\t"
                                   "strb r9, [ip, r8]\n\t"
                                   "add ip, ip, r8, lsl #1\n\t"
                                   "strb r10, [ip]\n\t"
                                   "strb r11, [ip, r8]\n\t"
                         : [x] "+r"(x), [w] "+r"(w), [quads] "+r"(quads)
                         : [v] "r"(v)
                         : SMG_QUADS_USED);
        return w;
    }
    if (quads) {
        __asm__ volatile(SMG_QUADS "stmia %[v], {r3, r9, r10, r11}\n\t"
                         : [x] "+r"(x), [w] "+r"(w), [quads] "+r"(quads)
                         : [v] "r"(v)
                         : SMG_QUADS_USED);
    }
    smg_requantize_each(v->y, v->step, v->sum, 4, v->m, v->r);
    return w;
}
_Static_assert(offsetof(Quads, m) == 24, "as assembly reads it");
#else
static inline uint32_t smg_even(uint32_t add, uint32_t word) {
    return smg_two((int16_t)add + (int8_t)word, (int16_t)(add >> 16) + (int8_t)(word >> 16));
}
static inline uint32_t smg_odd(uint32_t add, uint32_t word) { return smg_even(add, word >> 8); }
static inline uint32_t smg_lows(uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; }
static inline uint32_t smg_highs(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000); }
static inline int32_t smg_mac2(int32_t sum, uint32_t a, uint32_t b) {
    const int32_t low = (int16_t)a * (int16_t)b, high = (int16_t)(a >> 16) * (int16_t)(b >> 16);
    return (int32_t)((uint32_t)sum + (uint32_t)low + (uint32_t)high);
}
static inline int32_t smg_high_add(int32_t a, int32_t b, int32_t add) {
    return (int32_t)(((int64_t)a * b) >> 32) + add;
}
static inline int32_t smg_clip8(int32_t a) {
    const int32_t above = a < -128 ? -128 : a;
    return above > 127 ? 127 : above;
}
SMG_UNUSED static const int8_t *smg_quads_output(Quads *v, const int8_t *w) {
    const uint32_t *x = v->x;
    for (int32_t quads = v->quads; quads > 0; quads--, w += 4) {
        const uint32_t even = smg_even(0, smg_word(w)), odd = smg_odd(0, smg_word(w));
        for (int p = 0; p < 4; p++) { v->sum[p] = smg_mac2(v->sum[p], *x++, even); }
        for (int p = 0; p < 4; p++) { v->sum[p] = smg_mac2(v->sum[p], *x++, odd); }
    }
    for (int p = 0; v->brief && p < 4; p++) {
        v->y[p * v->step] = (int8_t)smg_clip8(smg_high_add(v->sum[p], v->m, v->add) >> v->shift);
    }
    if (!v->brief) { smg_requantize_each(v->y, v->step, v->sum, 4, v->m, v->r); }
    return w;
}
#endif

/* smg_requantize in fewer steps: smg_requantize_add says for which shifts. `whole` bounds are those of int8. */
typedef struct {
    int32_t add, shift, whole;
} Short;
static inline Short smg_short(Requantize r) {
    return (Short){smg_requantize_add(r), r.shift - HIGH_SHIFT + 1, r.lo == -128 && r.hi == 127};
}

/* y[p * step] = smg_requantize(sum of p, m, r) for four pixels, where it is `brief` and bounds are whole. */
SMG_INLINE void smg_requantize_four(int8_t *y, ptrdiff_t step, int32_t s0, int32_t s1, int32_t s2, int32_t s3,
                                    int32_t m, const Short *brief) {
    const int32_t add = brief->add, shift = brief->shift;
    y[0] = (int8_t)smg_clip8(smg_high_add(s0, m, add) >> shift);
    y += step;
    y[0] = (int8_t)smg_clip8(smg_high_add(s1, m, add) >> shift);
    y += step;
    y[0] = (int8_t)smg_clip8(smg_high_add(s2, m, add) >> shift);
    y[step] = (int8_t)smg_clip8(smg_high_add(s3, m, add) >> shift);
}

#endif
#endif
