/* Pooling and means in integers. Means: the sum of x - zero, then as everything that changes its scale (fixed_point.h);
 * the multiplier holds the count, or, where windows differ in it, is divided by it. */
#include "fixed_point.h"
#include "groups.h"
#include "pool.h"

#define MOST_CELLS (1 << 22) /* in a sum of differences of 8 bits */

/* ---- max_pool2d: as in f32, the first of equal values wins ---- */

static void max_window(const MaxPool *g, const int8_t *x, Span r, Span q, int32_t count, int8_t *best, int32_t *where) {
    for (int32_t l = 0; l < count; l++) {
        best[l] = -128;
        where[l] = r.from < r.to && q.from < q.to ? r.from * g->KW + q.from : 0;
    }
    for (int32_t i = r.from; i < r.to; i++) {
        for (int32_t j = q.from; j < q.to; j++) {
            const int8_t *v = x + pixel(g, r, q, i, j) * (size_t)g->C;
            const int32_t here = i * g->KW + j;
            for (int32_t l = 0; l < count; l++) { where[l] ^= (where[l] ^ here) & -(v[l] > best[l]); }
            for (int32_t l = 0; l < count; l++) { best[l] = v[l] > best[l] ? v[l] : best[l]; }
        }
    }
}

EXTENT(max_pool2d_i8) {
    if (max_pool_index_need(p, &need[2], &need[0], &need[1])) { return -1; }
    need[0] /= sizeof(float);
    need[2] /= sizeof(float);
    return 0;
}
KERNEL(max_pool2d_i8, "ooi", PARAMS(MaxPool)) {
    const MaxPool g = max_pool_of(c->p);
    const int bits = index_bits(&g);
    const size_t row = (size_t)index_row(&g), C = (size_t)g.C, image = (size_t)g.H * (size_t)g.W * C;
    int8_t *y = OUT_AS(int8_t, 0);
    uint8_t *index = OUT_AS(uint8_t, 1);
    const int8_t *x = IN_AS(int8_t, 2);
    int32_t where[SMG_CHANNELS];
    for (int32_t n = 0; n < g.N; n++, x += image, index += row) {
        size_t at = 0;
        memset(index, 0, row);
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, g.DH, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++) {
                const Span q = span_of(ow, g.SW, g.PW, g.DW, g.KW, g.W);
                for (int32_t c0 = 0; c0 < g.C; c0 += SMG_CHANNELS) {
                    const int32_t count = g.C - c0 < SMG_CHANNELS ? g.C - c0 : SMG_CHANNELS;
                    max_window(&g, x + c0, r, q, count, y, where);
                    y += count;
                    for (int32_t l = 0; l < count; l++, at++) {
                        const size_t bit = at * (size_t)bits;
                        index[bit >> 3] |= (uint8_t)((uint32_t)where[l] << (bit & 7));
                        if (bits == 16) { index[(bit >> 3) + 1] = (uint8_t)(where[l] >> 8); }
                    }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(max_pool2d_plain_i8) {
    if (max_pool_need(p, &need[1], &need[0])) { return -1; }
    need[0] /= sizeof(float);
    need[1] /= sizeof(float);
    return 0;
}
KERNEL(max_pool2d_plain_i8, "oi", PARAMS(MaxPool)) {
    const MaxPool g = max_pool_of(c->p);
    const size_t C = (size_t)g.C;
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *x = IN_AS(int8_t, 1);
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * (size_t)g.W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, g.DH, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                const Span q = span_of(ow, g.SW, g.PW, g.DW, g.KW, g.W);
                memset(y, -128, C);
                for (int32_t i = r.from; i < r.to; i++) {
                    for (int32_t j = q.from; j < q.to; j++) {
                        const int8_t *v = x + pixel(&g, r, q, i, j) * C;
                        for (int32_t l = 0; l < g.C; l++) { y[l] = v[l] > y[l] ? v[l] : y[l]; }
                    }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

/* ---- means ---- */

/* The zero point of x, the multiplier, and what the results become. */
typedef struct {
    int32_t zero, m;
    Requantize requantize;
} QMean;
UNPACK(qmean_of, QMean)

static int qmean_refused(QMean v) { return !smg_zero_ok(v.zero) || v.m < 0 || !smg_requantize_ok(v.requantize); }

EXTENT(qavg_pool2d_i8) {
    const AvgPool g = avg_pool_of(p);
    if (avg_refused(p) || smg_images_need(p, &need[1], &need[0]) || g.divisor < 0) { return -1; }
    if (smg_mul((uint64_t)g.KH, (uint64_t)g.KW) > MOST_CELLS || qmean_refused(qmean_of(p + PARAMS(AvgPool)))) {
        return -1;
    }
    need[0] /= sizeof(float);
    need[1] /= sizeof(float);
    return 0;
}
KERNEL(qavg_pool2d_i8, "oi", PARAMS(AvgPool) + PARAMS(QMean)) {
    const AvgPool g = avg_pool_of(c->p);
    const QMean v = qmean_of(c->p + PARAMS(AvgPool));
    const size_t C = (size_t)g.C;
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *x = IN_AS(int8_t, 1);
    int32_t sum[SMG_CHANNELS], last = 0, m = 0;
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * (size_t)g.W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Span r = span_of(oh, g.SH, g.PH, 1, g.KH, g.H);
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                Span q = span_of(ow, g.SW, g.PW, 1, g.KW, g.W);
                const int32_t wide = q.to - q.from, first = wide ? (int32_t)q.start + q.from : 0;
                int32_t count = g.divisor;
                if (!count) {
                    const int64_t all = cells(r, g.KH, g.H, g.BH, g.count_pad) * cells(q, g.KW, g.W, g.BW, g.count_pad);
                    count = all > 0 && all <= MOST_CELLS ? (int32_t)all : 1;
                }
                if (count != last) {
                    m = (int32_t)(((int64_t)v.m + count / 2) / count);
                    last = count;
                }
                for (size_t c0 = 0; c0 < C; c0 += SMG_CHANNELS) {
                    const size_t width = C - c0 < SMG_CHANNELS ? C - c0 : SMG_CHANNELS;
                    for (size_t l = 0; l < width; l++) { sum[l] = 0; }
                    for (int32_t i = r.from; i < r.to; i++) {
                        const int8_t *a = x + ((size_t)(r.start + i) * (size_t)g.W + (size_t)first) * C;
                        for (int32_t j = 0; j < wide; j++, a += C) {
                            for (size_t l = 0; l < width; l++) { sum[l] += a[c0 + l] - v.zero; }
                        }
                    }
                    for (size_t l = 0; l < width; l++) { y[c0 + l] = smg_requantize(sum[l], m, v.requantize); }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

/* Mean over any axes. p: QMean, then the groups of axes. */
EXTENT(qmean_i8) {
    if (params < PARAMS(QMean) || qmean_refused(qmean_of(p))) { return -1; }
    const int32_t *axes = p + PARAMS(QMean);
    if (groups_need(axes, params - PARAMS(QMean), 1, 0, &need[1], &need[0])) { return -1; }
    const Groups g = groups_of(axes);
    return smg_product(g.rd, g.reduced) > MOST_CELLS ? -1 : 0;
}

/* Sums of `width` neighbours along the last kept group, whose first one is x. */
static void sums(const Groups *g, int32_t *sum, const int8_t *x, int32_t width, int32_t zero) {
    const size_t across = g->kept ? (size_t)g->ks[g->kept - 1] : 0;
    const size_t along = g->reduced ? (size_t)g->rs[g->reduced - 1] : 0;
    const int32_t len = g->reduced ? g->rd[g->reduced - 1] : 1;
    int32_t at[SMG_MAX_RANK] = {0};
    size_t off[1] = {0};
    for (int32_t l = 0; l < width; l++) { sum[l] = 0; }
    do {
        for (int32_t k = 0; k < len; k++) {
            const int8_t *a = x + off[0] + (size_t)k * along;
            if (across == 1) {
                for (int32_t l = 0; l < width; l++) { sum[l] += a[l] - zero; }
            } else {
                for (int32_t l = 0; l < width; l++) { sum[l] += a[(size_t)l * across] - zero; }
            }
        }
    } while (smg_walk_next(at, g->rd, g->reduced - 1, g->rs, g->reduced, off, 1));
}
KERNEL(qmean_i8, "oi", -1) {
    const QMean v = qmean_of(c->p);
    const Groups g = groups_of(c->p + PARAMS(QMean));
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *x = IN_AS(int8_t, 1);
    const int32_t len = g.kept ? g.kd[g.kept - 1] : 1;
    const size_t step = g.kept ? (size_t)g.ks[g.kept - 1] : 0;
    int32_t at[SMG_MAX_RANK] = {0}, sum[SMG_CHANNELS];
    size_t off[1] = {0};
    if (smg_product(g.kd, g.kept) == 0 || smg_product(g.rd, g.reduced) == 0) { return SMG_NO_FAULT; }
    do {
        for (int32_t i = 0, width; i < len; i += width) {
            width = len - i < SMG_CHANNELS ? len - i : SMG_CHANNELS;
            sums(&g, sum, x + off[0] + (size_t)i * step, width, v.zero);
            for (int32_t l = 0; l < width; l++) { *y++ = smg_requantize(sum[l], v.m, v.requantize); }
        }
    } while (smg_walk_next(at, g.kd, g.kept - 1, g.ks, g.kept, off, 1));
    return SMG_NO_FAULT;
}
