/* The geometry of pooling over images [N,H,W,C], and how max-pooling packs the positions that it keeps. */
#ifndef SMG_POOL_H
#define SMG_POOL_H
#include "image.h"

/* Both poolings: kernel KH by KW, stride SH, SW, padding PH, PW on each side. */
typedef struct {
    Images images;
    int32_t KH, KW, SH, SW, PH, PW;
} Windows;
UNPACK(windows_of, Windows)

static inline int window_refused(const int32_t *p) {
    const Windows v = windows_of(p);
    return v.KH < 1 || v.KW < 1 || v.SH < 1 || v.SW < 1 || v.PH < 0 || v.PW < 0;
}

/* One axis of a window: positions start + i*dilation with from <= i < to lie inside 0..size. */
typedef struct {
    int64_t start;
    int32_t from, to;
} Span;

static inline Span span_of(int32_t out, int32_t stride, int32_t padding, int32_t dilation, int32_t kernel,
                           int32_t size) {
    Span s = {(int64_t)out * stride - padding, 0, kernel};
    if (s.start >= 0 && s.start + (int64_t)(kernel - 1) * dilation < size) { return s; }
    const int64_t from = s.start < 0 ? smg_div(-s.start + dilation - 1, dilation) : 0;
    const int64_t to = s.start < size ? smg_div((int64_t)size - s.start + dilation - 1, dilation) : 0;
    s.to = to < kernel ? (int32_t)to : kernel;
    s.from = from < s.to ? (int32_t)from : s.to;
    return s;
}

static inline int is_whole_2x2(Span r, Span q) { return !r.from && !q.from && r.to == 2 && q.to == 2; }

/* ---- max_pool2d: windows with dilation DH, DW ---- */

typedef struct {
    int32_t N, H, W, C, OH, OW, KH, KW, SH, SW, PH, PW, DH, DW;
} MaxPool;
UNPACK(max_pool_of, MaxPool)

/* Fewest bits of 1, 2, 4, 8, 16 that hold a position in the window; 0 if none does. */
static inline int index_bits(const MaxPool *g) {
    const uint64_t positions = smg_mul((uint64_t)g->KH, (uint64_t)g->KW);
    if (positions > 65536) { return 0; }
    int bits = 1;
    while (positions > (uint64_t)1 << bits) { bits *= 2; }
    return bits;
}

/* Bytes of one sample's packed positions. */
static inline uint64_t index_row(const MaxPool *g) {
    const uint64_t per_sample = smg_mul(smg_mul((uint64_t)g->OH, (uint64_t)g->OW), (uint64_t)g->C);
    return smg_add(smg_mul(per_sample, (uint64_t)index_bits(g)), 7) / 8;
}

static inline int max_pool_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const MaxPool g = max_pool_of(p);
    if (smg_images_need(p, x, y) || window_refused(p) || g.DH < 1 || g.DW < 1) { return -1; }
    return 0;
}

/* The same, and the bytes of all samples' positions. */
static inline int max_pool_index_need(const int32_t *p, uint64_t *x, uint64_t *y, uint64_t *index) {
    const MaxPool g = max_pool_of(p);
    if (max_pool_need(p, x, y) || index_bits(&g) == 0) { return -1; }
    *index = smg_mul((uint64_t)g.N, index_row(&g));
    return 0;
}

/* Bits LSB first. */
static inline uint32_t get_index(const uint8_t *row, size_t at, int bits) {
    if (bits == 16) { return row[2 * at] | (uint32_t)row[2 * at + 1] << 8; }
    if (bits == 8) { return row[at]; }
    const size_t bit = at * (size_t)bits;
    return (uint32_t)(row[bit >> 3] >> (bit & 7)) & ((1u << bits) - 1);
}

/* h*W + w of position i,j in a window. */
static inline size_t pixel(const MaxPool *g, Span r, Span q, int32_t i, int32_t j) {
    return (size_t)(r.start + (int64_t)i * g->DH) * (size_t)g->W + (size_t)(q.start + (int64_t)j * g->DW);
}

/* A window divides by the cells that count, with padding if count_pad, or by the divisor if not 0. BH, BW: padding
 * below and to the right, which differ from PH, PW only of a part of the rows. */
typedef struct {
    int32_t N, H, W, C, OH, OW, KH, KW, SH, SW, PH, PW, count_pad, divisor, BH, BW;
} AvgPool;
UNPACK(avg_pool_of, AvgPool)

static inline int avg_refused(const int32_t *p) {
    const AvgPool v = avg_pool_of(p);
    return window_refused(p) || v.BH < 0 || v.BW < 0;
}

/* Cells that count along one axis: torch lets a window reach over the padding but not beyond it. */
static inline int64_t cells(Span s, int32_t kernel, int32_t size, int32_t behind, int32_t count_pad) {
    if (!count_pad) { return s.to - s.from; }
    const int64_t end = (int64_t)size + behind - s.start;
    return end < kernel ? end : kernel;
}
#endif
