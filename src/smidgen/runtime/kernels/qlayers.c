/* Convolution and linear layers in integers: x, w int8, bias int32, a multiplier for each output (fixed_point.h).
 * x[N][H][W][C], w[O][KH][KW][C/G], y[N][OH][OW][O]; one weight per output and tap goes to qdepthwise.c.
 * A block of windows is laid out as columns, and all outputs pass by it (qcolumns.h). Integer sums have no order: any
 * blocking gives the same bits. */
#include "qcolumns.h"

/* The window of pixel p that starts at (ih, iw), of the Cg channels that x begins with. */
static void gather(const Conv *v, int16_t *columns, int p, int32_t K, const int8_t *x, int32_t ih, int32_t iw,
                   int32_t zero) {
    const int32_t Cg = v->C / v->G, row = v->KW * Cg, fused = v->DW == 1 && v->G == 1;
    int32_t h0, h1, w0, w1;
    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    if (h0 > 0 || h1 < v->KH || w0 > 0 || w1 < v->KW) { column_clear(columns, p, K); }
    if (w0 >= w1) { return; }
    const int32_t taps = fused ? w1 - w0 : 1;
    for (int32_t kh = h0; kh < h1; kh++) {
        for (int32_t kw = w0; kw < w1; kw += taps) {
            const int8_t *from = x + ((ptrdiff_t)(ih + kh * v->DH) * v->W + iw + kw * v->DW) * v->C;
            column_widen(columns, p, kh * row + kw * Cg, K, from, taps * Cg, zero);
        }
    }
}

/* The pixel behind (n, oh, ow). */
static inline void step(const Conv *v, int32_t *n, int32_t *oh, int32_t *ow) {
    if (++*ow < v->OW) { return; }
    *ow = 0;
    if (++*oh < v->OH) { return; }
    *oh = 0;
    ++*n;
}

static void conv(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                 const int32_t *m, int16_t *columns) {
    const int32_t Cg = v->C / v->G, Og = v->O / v->G, K = v->KH * v->KW * Cg;
    const ptrdiff_t image = (ptrdiff_t)v->H * v->W * v->C;
    int32_t n = 0, oh = 0, ow = 0;
    for (ptrdiff_t left = (ptrdiff_t)v->N * v->OH * v->OW; left > 0; left -= PIXELS, y += PIXELS * (ptrdiff_t)v->O) {
        const int pixels = left < PIXELS ? (int)left : PIXELS;
        int32_t n1 = n, oh1 = oh, ow1 = ow;
        for (int32_t g = 0; g < v->G; g++) {
            n1 = n;
            oh1 = oh;
            ow1 = ow;
            for (int p = 0; p < PIXELS; p++) {
                if (p >= pixels) { /* computed and not looked at */
                    column_clear(columns, p, K);
                    continue;
                }
                gather(v, columns, p, K, x + n1 * image + g * Cg, oh1 * v->SH - v->PT, ow1 * v->SW - v->PL, q->zero);
                step(v, &n1, &oh1, &ow1);
            }
            outputs(y + g * Og, v->O, columns, pixels, w, (ptrdiff_t)g * Og, b + g * Og, m + g * Og, Og, K,
                    &q->requantize);
        }
        n = n1;
        oh = oh1;
        ow = ow1;
    }
}

/* Rows of x with all outputs, y[R][O] of x[R][K]. */
static void rows_of(int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b, const int32_t *m, ptrdiff_t R,
                    int32_t O, int32_t K, const QConv *q, int16_t *columns) {
    for (ptrdiff_t left = R; left > 0; left -= PIXELS, y += PIXELS * (ptrdiff_t)O, x += PIXELS * (ptrdiff_t)K) {
        const int rows = left < PIXELS ? (int)left : PIXELS;
        for (int p = 0; p < PIXELS; p++) {
            if (p < rows) {
                column_widen(columns, p, 0, K, x + (ptrdiff_t)p * K, K, q->zero);
            } else {
                column_clear(columns, p, K);
            }
        }
        outputs(y, O, columns, rows, w, 0, b, m, O, K, &q->requantize);
    }
}
/* A kernel of one tap sees rows of channels. */
static void qconv(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                  const int32_t *m, int16_t *room) {
    const int one = v->G == 1 && v->KH == 1 && v->KW == 1 && v->SH == 1 && v->SW == 1 && !v->PT && !v->PL;
    if (v->C == v->G) {
        smg_qdepthwise(v, q, y, x, w, b, m, room);
    } else if (one && v->OH == v->H && v->OW == v->W) {
        rows_of(y, x, w, b, m, (ptrdiff_t)v->N * v->H * v->W, v->O, v->C, q, room);
    } else {
        conv(v, q, y, x, w, b, m, room);
    }
}

/* Bytes of the operands of a layer with a slice, of those without one and of their room. */
static int qslice_need(const uint64_t *own, uint64_t outputs, Slice s, uint64_t *need) {
    const uint64_t length = own[2] / outputs;
    if (slice_refused(s, outputs, length)) { return -1; }
    need[0] = own[0];
    need[1] = own[1];
    need[2] = own[2];
    need[3] = own[2] / (uint64_t)s.V * (uint64_t)s.K;
    need[4] = (uint64_t)s.K * sizeof(int32_t);
    need[5] = own[3];
    need[6] = own[4];
    need[7] = own[5] + QROWS * length;
    return 0;
}

static QWeights qslice(const SmgCall *c, const int32_t *slice, void *room) {
    return (QWeights){.w = IN_AS(int8_t, 2),
                      .learned = IN_AS(int8_t, 3),
                      .index = IN_AS(int32_t, 4),
                      .slice = slice_of(slice),
                      .room = (int8_t *)room};
}

EXTENT(qconv2d_i8) {
    const Conv v = conv_of(p);
    const QConv q = qconv_of(p + CONV_PARAMS);
    uint64_t x, w, y;
    if (conv_need(p, &x, &w, &y) || !smg_zero_ok(q.zero) || !smg_requantize_ok(q.requantize)) { return -1; }
    const uint64_t terms = w / 4 / (uint64_t)v.O;
    if (terms > SMG_MOST_TERMS) { return -1; }
    need[0] = y / 4;
    need[1] = x / 4;
    need[2] = w / 4;
    need[3] = need[4] = 4 * (uint64_t)v.O;
    need[5] = v.C == v.G ? qdepthwise_room(&v) : columns_room(terms);
    return 0;
}
KERNEL(qconv2d_i8, "oiiiis", CONV_PARAMS + PARAMS(QConv)) {
    const Conv v = conv_of(c->p);
    const QConv q = qconv_of(c->p + CONV_PARAMS);
    const QWeights w = {.w = IN_AS(int8_t, 2)};
    qconv(&v, &q, OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 3), IN_AS(int32_t, 4), OUT_AS(int16_t, 5));
    return SMG_NO_FAULT;
}

/* With a slice: o y, i x, i w, i learned, i index, i b, i m, scratch     + p: Slice */
EXTENT(qconv2d_put_i8) {
    uint64_t own[6];
    if (qconv2d_i8_extent(p, params, 6, run, own)) { return -1; }
    const uint64_t outputs = (uint64_t)conv_of(p).O;
    return qslice_need(own, outputs, slice_of(p + CONV_PARAMS + PARAMS(QConv)), need);
}
KERNEL(qconv2d_put_i8, "oiiiiiis", CONV_PARAMS + PARAMS(QConv) + PARAMS(Slice)) {
    const Conv v = conv_of(c->p);
    const QConv q = qconv_of(c->p + CONV_PARAMS);
    int16_t *room = OUT_AS(int16_t, 7);
    const uint64_t own = v.C == v.G ? qdepthwise_room(&v) : columns_room((uint64_t)conv_filter(c->p));
    const QWeights w = qslice(c, c->p + CONV_PARAMS + PARAMS(QConv), room + own / sizeof *room);
    const SmgFault fault = slice_fault(w.slice, w.index);
    if (fault == SMG_NO_FAULT) {
        qconv(&v, &q, OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 5), IN_AS(int32_t, 6), room);
    }
    return fault;
}

/* y[R][O] of x[R][K], w[O][K] */
typedef struct {
    int32_t R, O, K;
    QConv own;
} QLinear;
UNPACK(qlinear_of, QLinear)

EXTENT(qlinear_i8) {
    const QLinear v = qlinear_of(p);
    if (v.R < 0 || v.O < 1 || v.O > 1 << 28 || v.K < 1 || v.K > SMG_MOST_TERMS) { return -1; }
    if (!smg_zero_ok(v.own.zero) || !smg_requantize_ok(v.own.requantize)) { return -1; }
    need[0] = smg_mul((uint64_t)v.R, (uint64_t)v.O);
    need[1] = smg_mul((uint64_t)v.R, (uint64_t)v.K);
    need[2] = smg_mul((uint64_t)v.O, (uint64_t)v.K);
    need[3] = need[4] = 4 * (uint64_t)v.O;
    need[5] = columns_room((uint64_t)v.K);
    return 0;
}
KERNEL(qlinear_i8, "oiiiis", PARAMS(QLinear)) {
    const QLinear v = qlinear_of(c->p);
    const QWeights w = {.w = IN_AS(int8_t, 2)};
    rows_of(OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 3), IN_AS(int32_t, 4), v.R, v.O, v.K, &v.own,
            OUT_AS(int16_t, 5));
    return SMG_NO_FAULT;
}

EXTENT(qlinear_put_i8) {
    uint64_t own[6];
    if (qlinear_i8_extent(p, params, 6, run, own)) { return -1; }
    return qslice_need(own, (uint64_t)qlinear_of(p).O, slice_of(p + PARAMS(QLinear)), need);
}
KERNEL(qlinear_put_i8, "oiiiiiis", PARAMS(QLinear) + PARAMS(Slice)) {
    const QLinear v = qlinear_of(c->p);
    int16_t *room = OUT_AS(int16_t, 7);
    const QWeights w = qslice(c, c->p + PARAMS(QLinear), room + columns_room((uint64_t)v.K) / sizeof *room);
    const SmgFault fault = slice_fault(w.slice, w.index);
    if (fault == SMG_NO_FAULT) {
        rows_of(OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 5), IN_AS(int32_t, 6), v.R, v.O, v.K, &v.own,
                room);
    }
    return fault;
}
