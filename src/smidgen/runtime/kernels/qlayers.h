/* What kernels of layers in integers share. */
#ifndef SMG_QLAYERS_H
#define SMG_QLAYERS_H
#include "conv.h"
#include "fixed_point.h"
#include "weights.h"

enum { PIXELS = 4, QTAPS = SMG_RUN, QROWS = 4 };

/* Behind the geometry: the zero point of x, and what the results become. */
typedef struct {
    int32_t zero;
    Requantize requantize;
} QConv;
UNPACK(qconv_of, QConv)

/* int8[O][length], or most of it there and a slice beside it, which learns. */
typedef struct {
    const int8_t *w;
    const int8_t *learned; /* w, with K in the place of V; NULL: there is no slice */
    const int32_t *index;
    Slice slice;
    int8_t *room; /* QROWS * length */
} QWeights;

/* Outputs o … o + rows - 1, with a slice no more than QROWS of them. */
static inline const int8_t *qweights_rows(const QWeights *q, ptrdiff_t o, int32_t rows, ptrdiff_t length) {
    const int8_t *from = q->w + o * length;
    if (!q->learned) { return from; }
    const ptrdiff_t K = q->slice.K, D = q->slice.D, line = q->slice.V * D;
    memcpy(q->room, from, (size_t)(rows * length));
    if (D == length && line != D) { /* outputs */
        for (ptrdiff_t k = slice_reach(q->slice, q->index, o); k < K && q->index[k] < o + rows; k++) {
            memcpy(q->room + (q->index[k] - o) * length, q->learned + k * D, (size_t)D);
        }
        return q->room;
    }
    const int8_t *learned = q->learned + o * (length / line) * K * D;
    for (int8_t *to = q->room; to < q->room + rows * length; to += line) {
        for (ptrdiff_t k = 0; k < K; k++) {
            for (ptrdiff_t d = 0; d < D; d++) { to[q->index[k] * D + d] = *learned++; }
        }
    }
    return q->room;
}

/* Bytes of a block of columns, in whole fours (qcolumns.h). */
static inline uint64_t columns_room(uint64_t K) { return (K + 3) / 4 * 4 * PIXELS * sizeof(int16_t); }

/* Columns of a line of a depthwise layer: QNEAR neighbouring outputs and what their windows reach beyond. */
enum { QNEAR = 16 };
#define QLINE(KW) (QNEAR + ((KW) + 1) / 2 * 2)
/* Outputs that a line is long enough for, in fours; may be 0. */
static inline int32_t qdepthwise_outputs(const Conv *v) { return v->SW > QNEAR ? 0 : (QNEAR / v->SW + 1) / 4 * 4; }
/* Bytes of room: for taps of QTAPS channels, or on some cores for lines and words of four, unless those are much more.
 * A plan fits any core. */
enum { QMORE = 512 };
static inline uint64_t qdepthwise_lanes(const Conv *v) {
    return smg_mul((uint64_t)v->KH, QTAPS * sizeof(int16_t) * (uint64_t)v->KW);
}
static inline uint64_t qdepthwise_lines(const Conv *v) {
    const uint64_t pairs = ((uint64_t)v->KW + 1) / 2;
    return smg_mul((uint64_t)v->KH, 4 * (sizeof(int16_t) * (QNEAR + 2 * pairs) + sizeof(uint32_t) * pairs));
}
static inline uint64_t qdepthwise_room(const Conv *v) {
    const uint64_t lanes = qdepthwise_lanes(v), lines = qdepthwise_lines(v);
    return lines > lanes && lines <= smg_add(lanes, QMORE) ? lines : lanes;
}

/* One weight per output and tap (C/G = 1). */
#define smg_qdepthwise SMG_EXTERN(qdepthwise)
void smg_qdepthwise(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                    const int32_t *m, int16_t *room);
#endif
