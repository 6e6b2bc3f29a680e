/* Pooling over images [N,H,W,C]. Windows that hang over an edge see only what lies inside; channels are innermost.
 * Max-pooling follows torch: the first of equal values wins, NaN wins over everything. */
#include "../exact_math.h"
#include "../split.h"
#include "pool.h"

#ifdef __OPTIMIZE_SIZE__
#define WIDE 0
#else
#define WIDE 1 /* windows of 2 by 2 have loops of their own; the others do the same, to the bit */
#endif

/* max_window for a whole window of 2 by 2, all at once; `right` and `below` are the distances to its other pixels, in
 * floats. Masks instead of branches, since which value wins is unpredictable. */
static inline void max_four(const float *x, size_t right, size_t below, int32_t count, float *restrict best,
                            int32_t *restrict where) {
    for (int32_t l = 0; l < count; l++) {
        const float a = x[l], b = x[right + (size_t)l], p = x[below + (size_t)l], q = x[below + right + (size_t)l];
        const uint32_t second = 0u - (uint32_t)smg_beats(b, a), fourth = 0u - (uint32_t)smg_beats(q, p);
        const uint32_t above = smg_bits(a) ^ ((smg_bits(a) ^ smg_bits(b)) & second);
        const uint32_t under = smg_bits(p) ^ ((smg_bits(p) ^ smg_bits(q)) & fourth);
        const uint32_t lower = 0u - (uint32_t)smg_beats(smg_from_bits(under), smg_from_bits(above));
        best[l] = smg_from_bits(above ^ ((above ^ under) & lower));
        where[l] = (int32_t)((second & 1) ^ (((second & 1) ^ (2 + (fourth & 1))) & lower));
    }
}

/* best and where over `count` channels of one window. The image goes on to `end`: few channels are taken as eight, and
 * what is beyond them left alone. */
static void max_window(const MaxPool *g, const float *x, const float *end, Span r, Span q, int32_t count, float *best,
                       int32_t *where) {
    if (WIDE && g->KH == 2 && g->KW == 2 && is_whole_2x2(r, q)) {
        const size_t right = (size_t)g->DW * (size_t)g->C, below = (size_t)g->DH * (size_t)g->W * (size_t)g->C;
        const float *first = x + pixel(g, r, q, 0, 0) * (size_t)g->C;
        if (count <= 8 && (size_t)(end - first) >= below + right + 8) {
            max_four(first, right, below, 8, best, where);
        } else {
            max_four(first, right, below, count, best, where);
        }
        return;
    }
    const int32_t first = r.from < r.to && q.from < q.to ? r.from * g->KW + q.from : 0;
    for (int32_t l = 0; l < count; l++) {
        best[l] = smg_from_bits(0xff800000u);
        where[l] = first;
    }
    for (int32_t i = r.from; i < r.to; i++) {
        for (int32_t j = q.from; j < q.to; j++) {
            const float *v = x + pixel(g, r, q, i, j) * (size_t)g->C;
            const int32_t here = i * g->KW + j;
            /* Two loops without branches, so that every compiler vectorises them: which value wins is unpredictable. */
            for (int32_t l = 0; l < count; l++) { where[l] ^= (where[l] ^ here) & -smg_beats(v[l], best[l]); }
            for (int32_t l = 0; l < count; l++) { best[l] = smg_beats(v[l], best[l]) ? v[l] : best[l]; }
        }
    }
}

EXTENT(max_pool2d_f32) { return max_pool_index_need(p, &need[2], &need[0], &need[1]); }
/* Samples from..to. */
static SmgFault max_pool2d_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    const MaxPool g = max_pool_of(c->p);
    const int bits = index_bits(&g);
    const size_t row = (size_t)index_row(&g), C = (size_t)g.C, image = (size_t)g.H * (size_t)g.W * C;
    float *y = OUT(0) + (size_t)from * (size_t)g.OH * (size_t)g.OW * C;
    uint8_t *index = OUT_AS(uint8_t, 1) + (size_t)from * row;
    const float *x = IN(2) + (size_t)from * image;
    float best[SMG_CHANNELS];
    int32_t where[SMG_CHANNELS];
    for (int32_t n = from; n < to; n++) {
        size_t at = 0;
        uint32_t byte = 0, filled = 0; /* of indices of less than a byte */
        uint8_t *put = index;
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, g.DH, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++) {
                const Span q = span_of(ow, g.SW, g.PW, g.DW, g.KW, g.W);
                for (int32_t c0 = 0; c0 < g.C; c0 += SMG_CHANNELS) {
                    const int32_t count = g.C - c0 < SMG_CHANNELS ? g.C - c0 : SMG_CHANNELS;
                    max_window(&g, x + c0, x + image, r, q, count, best, where);
                    memcpy(y + at, best, (size_t)count * sizeof(float));
                    at += (size_t)count;
                    for (int32_t l = 0; l < count; l++) {
                        const uint32_t k = (uint32_t)where[l];
                        if (bits >= 8) {
                            *put++ = (uint8_t)k;
                            if (bits == 16) { *put++ = (uint8_t)(k >> 8); }
                            continue;
                        }
                        byte |= k << filled;
                        filled += (uint32_t)bits;
                        if (filled == 8) {
                            *put++ = (uint8_t)byte;
                            byte = filled = 0;
                        }
                    }
                }
            }
        }
        if (filled) { *put = (uint8_t)byte; }
        x += image;
        y += at;
        index += row;
    }
    return SMG_NO_FAULT;
}
KERNEL(max_pool2d_f32, "ooi", PARAMS(MaxPool)) { /* threads share the samples */
    const Images g = images_of(c->p);
    return smg_split(c, max_pool2d_range, c, g.N, (int64_t)g.N * g.H * g.W * g.C);
}

EXTENT(max_pool2d_plain_f32) { return max_pool_need(p, &need[1], &need[0]); }
KERNEL(max_pool2d_plain_f32, "oi", PARAMS(MaxPool)) {
    const MaxPool g = max_pool_of(c->p);
    const size_t C = (size_t)g.C;
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * (size_t)g.W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, g.DH, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                const Span q = span_of(ow, g.SW, g.PW, g.DW, g.KW, g.W);
                for (int32_t l = 0; l < g.C; l++) { y[l] = smg_from_bits(0xff800000u); }
                for (int32_t i = r.from; i < r.to; i++) {
                    for (int32_t j = q.from; j < q.to; j++) {
                        const float *v = x + pixel(&g, r, q, i, j) * C;
                        for (int32_t l = 0; l < g.C; l++) { y[l] = smg_beats(v[l], y[l]) ? v[l] : y[l]; }
                    }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(max_pool2d_dx_f32) { return max_pool_index_need(p, &need[0], &need[1], &need[2]); }
static SmgFault max_pool2d_dx_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    const MaxPool g = max_pool_of(c->p);
    const int bits = index_bits(&g);
    const uint64_t inverse = (uint64_t)(UINT32_MAX / (uint32_t)g.KW) + 1; /* exact for positions below 2^16 */
    const size_t row = (size_t)index_row(&g), C = (size_t)g.C, image = (size_t)g.H * (size_t)g.W * C;
    float *dx = OUT(0) + (size_t)from * image;
    const float *dy = IN(1) + (size_t)from * (size_t)g.OH * (size_t)g.OW * C;
    const uint8_t *index = IN_AS(uint8_t, 2) + (size_t)from * row;
    for (int32_t n = from; n < to; n++) {
        memset(dx, 0, image * sizeof(float));
        size_t at = 0;
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, g.DH, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++) {
                const Span q = span_of(ow, g.SW, g.PW, g.DW, g.KW, g.W);
                if (WIDE && bits == 2 && g.KW == 2 && is_whole_2x2(r, q)) { /* any index is inside */
                    float *first = dx + pixel(&g, r, q, 0, 0) * C;
                    const size_t right = (size_t)g.DW * C, below = (size_t)g.DH * (size_t)g.W * C;
                    for (size_t l = 0; l < C; l++, at++) {
                        const uint32_t k = (uint32_t)index[at >> 2] >> (at & 3) * 2;
                        first[(k & 1) * right + (k >> 1 & 1) * below + l] += dy[at];
                    }
                    continue;
                }
                for (size_t l = 0; l < C; l++, at++) {
                    const uint32_t k = get_index(index, at, bits);
                    const int32_t i = (int32_t)(k * inverse >> 32), j = (int32_t)k - i * g.KW; /* k / kw, k % kw */
                    if (i < r.from || i >= r.to || j < q.from || j >= q.to) { return SMG_FAULT_POOL_WINDOW; }
                    dx[pixel(&g, r, q, i, j) * C + l] += dy[at];
                }
            }
        }
        dx += image;
        dy += at;
        index += row;
    }
    return SMG_NO_FAULT;
}
KERNEL(max_pool2d_dx_f32, "oii", PARAMS(MaxPool)) { /* threads share the samples */
    const Images g = images_of(c->p);
    return smg_split(c, max_pool2d_dx_range, c, g.N, (int64_t)g.N * g.H * g.W * g.C);
}

/* ---- avg_pool2d: a window divides by the cells that count, with padding if count_pad, or by the divisor if not 0.
 * BH, BW: padding below and to the right, which differ from PH, PW only of a part of the rows ---- */

static float avg_divisor(const AvgPool *g, Span r, Span q) {
    if (g->divisor != 0) { return (float)g->divisor; }
    return (float)(cells(r, g->KH, g->H, g->BH, g->count_pad) * cells(q, g->KW, g->W, g->BW, g->count_pad));
}

EXTENT(avg_pool2d_f32) { return avg_refused(p) ? -1 : smg_images_need(p, &need[1], &need[0]); }
KERNEL(avg_pool2d_f32, "oi", PARAMS(AvgPool)) {
    const AvgPool g = avg_pool_of(c->p);
    const size_t C = (size_t)g.C;
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * (size_t)g.W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, 1, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                const Span q = span_of(ow, g.SW, g.PW, 1, g.KW, g.W);
                if (r.from == r.to || q.from == q.to) {
                    memset(y, 0, C * sizeof(float));
                    continue;
                }
                const size_t h = (size_t)(r.start + r.from), w = (size_t)(q.start + q.from);
                smg_mean_rectangle(y, x + (h * (size_t)g.W + w) * C, g.W, g.C, r.to - r.from, q.to - q.from,
                                   avg_divisor(&g, r, q));
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(avg_pool2d_dx_f32) { return avg_refused(p) ? -1 : smg_images_need(p, &need[0], &need[1]); }
KERNEL(avg_pool2d_dx_f32, "oi", PARAMS(AvgPool)) {
    const AvgPool g = avg_pool_of(c->p);
    const size_t C = (size_t)g.C, image = (size_t)g.H * (size_t)g.W * C;
    float *dx = OUT(0);
    const float *dy = IN(1);
    for (int32_t n = 0; n < g.N; n++, dx += image) {
        memset(dx, 0, image * sizeof(float));
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, 1, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++, dy += C) {
                const Span q = span_of(ow, g.SW, g.PW, 1, g.KW, g.W);
                if (r.from == r.to || q.from == q.to) { continue; }
                const size_t h = (size_t)(r.start + r.from), w = (size_t)(q.start + q.from);
                smg_spread_rectangle(dx + (h * (size_t)g.W + w) * C, dy, g.W, g.C, r.to - r.from, q.to - q.from,
                                     1.0f / avg_divisor(&g, r, q));
            }
        }
    }
    return SMG_NO_FAULT;
}
