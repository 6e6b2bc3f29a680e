/* What input gradients in int16 share. */
#ifndef SMG_QBACK16_H
#define SMG_QBACK16_H
#include "gradients16.h"
#include "qlayers.h"

/* Behind the geometry: scales are m * 2^(exponent - 31) of channels, m * 2^(exponent - 15) of outputs. */
typedef struct {
    Conv own;
    int32_t exponent;
} Back16;
UNPACK(back16_of, Back16)

/* Products in a sum. */
static inline int32_t back16_terms(const Conv *v) { return v->KH * v->KW * (v->O / v->G); }
/* Bits of a mantissa in it: all such sums, of numbers of 8 bits, stay below 2^31. */
static inline int32_t back16_bits(int32_t terms) {
    const int32_t bits = 24 - smg_bit_length((uint32_t)terms);
    return bits < SMG_MANTISSA ? bits : SMG_MANTISSA;
}
/* One output a channel: the scale is that of its sum. */
static inline int back16_by_channel(const Conv *v) {
    return v->G > 1 && v->C == v->G && v->O == v->G && back16_bits(back16_terms(v)) == SMG_MANTISSA;
}

/* Numbers at … at + count - 1 of output o, which has `length`. */
static inline void qweights_part(const QWeights *q, int8_t *to, ptrdiff_t o, ptrdiff_t length, ptrdiff_t at,
                                 ptrdiff_t count) {
    memcpy(to, q->w + o * length + at, (size_t)count);
    if (!q->learned) { return; }
    const ptrdiff_t K = q->slice.K, D = q->slice.D, line = q->slice.V * D;
    if (D == length && line != D) { /* outputs */
        const ptrdiff_t k = slice_reach(q->slice, q->index, o);
        if (k < K && q->index[k] == o) { memcpy(to, q->learned + k * D + at, (size_t)count); }
        return;
    }
    const ptrdiff_t lines = length / line;
    for (ptrdiff_t a = at / line; a * line < at + count; a++) {
        const ptrdiff_t begin = at - a * line; /* of the part in this line */
        for (ptrdiff_t k = begin > 0 ? slice_reach(q->slice, q->index, begin / D) : 0; k < K; k++) {
            const ptrdiff_t first = q->index[k] * D - begin; /* of the index in the part */
            if (first >= count) { break; }
            for (ptrdiff_t l = first < 0 ? -first : 0; l < D && first + l < count; l++) {
                to[first + l] = q->learned[((o * lines + a) * K + k) * D + l];
            }
        }
    }
}

/* Some channels of a depthwise layer. `dx` may be dy where `ring` has rows: those of dy that are overwritten before
 * they were read for the last time. NULL: nothing is written. Returns the magnitudes of all sums. */
enum { LANES16 = 8 };
#define smg_qdepthwise_back SMG_EXTERN(qdepthwise_back)
uint32_t smg_qdepthwise_back(const Conv *v, int16_t *dx, const int16_t *dy, const QWeights *w, const int32_t *m,
                             int32_t shift, int16_t *taps, int16_t *ring, int32_t rows);
#endif
