/* Convolution and linear layers in integers: x, w int8, bias int32, a multiplier for each output (fixed_point.h).
 * x[N][H][W][C], w[O][KH][KW][C/G], y[N][OH][OW][O]; one weight per output and tap goes to qdepthwise.c.
 *
 *     w, two outputs  ---- K ----          A block of PIXELS windows is widened to int16, less the zero point, so that
 *                     ---- K ----          padding is 0 and each product is one of 16 bits; all outputs pass by it.
 *     windows         ---- K ----  x4      Integer sums have no order: any blocking gives the same bits.
 */
#include "qlayers.h"

/* sum[p * SMG_RUN + i] = w[i] . column[p] for `rows` outputs, K terms each. */
#ifdef __OPTIMIZE_SIZE__
static void dots(int32_t *sum, const int16_t *column, const int8_t *w, int rows, int32_t K) {
    for (int i = 0; i < rows; i++, w += K, sum++) {
        const int16_t *a = column;
        for (int p = 0; p < PIXELS; p += 2, a += 2 * K) {
            const int16_t *b = a + K;
            int32_t s = 0, t = 0;
            for (int32_t k = 0; k < K; k++) {
                s += a[k] * w[k];
                t += b[k] * w[k];
            }
            sum[p * SMG_RUN] = s;
            sum[(p + 1) * SMG_RUN] = t;
        }
    }
}
#else
static void dots(int32_t *restrict sum, const int16_t *restrict column, const int8_t *restrict w, int rows, int32_t K) {
    const int16_t *a = column, *b = a + K, *c = b + K, *d = c + K;
    for (; rows > 0; rows -= 2, w += 2 * (ptrdiff_t)K, sum += 2) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        const int8_t *v = rows > 1 ? w + K : w;
        for (int32_t k = 0; k < K; k++) {
            const int16_t x = w[k], y = v[k];
            s0 += a[k] * x;
            s1 += b[k] * x;
            s2 += c[k] * x;
            s3 += d[k] * x;
            t0 += a[k] * y;
            t1 += b[k] * y;
            t2 += c[k] * y;
            t3 += d[k] * y;
        }
        sum[0] = s0;
        sum[SMG_RUN] = s1;
        sum[2 * SMG_RUN] = s2;
        sum[3 * SMG_RUN] = s3;
        if (rows > 1) {
            sum[1] = t0;
            sum[SMG_RUN + 1] = t1;
            sum[2 * SMG_RUN + 1] = t2;
            sum[3 * SMG_RUN + 1] = t3;
        }
    }
}
#endif

/* y[p * step + o] for `pixels` columns and O outputs, of which the first is number `from` of the layer. */
static void outputs(int8_t *y, ptrdiff_t step, const int16_t *columns, int pixels, const QWeights *w, ptrdiff_t from,
                    const int32_t *b, const int32_t *m, int32_t O, int32_t K, Requantize r) {
    int32_t sum[SMG_RUN * PIXELS];
    const int32_t most = w->learned ? QROWS : SMG_RUN;
    for (int32_t o = 0, rows; o < O; o += rows) {
        rows = O - o < SMG_RUN ? O - o : SMG_RUN;
        for (int32_t i = 0, few; i < rows; i += few) {
            few = rows - i < most ? rows - i : most;
            dots(sum + i, columns, qweights_rows(w, from + o + i, few, K), (int)few, K);
        }
        for (int p = 0; p < pixels; p++) {
            smg_requantize_run(y + p * step + o, sum + p * SMG_RUN, b + o, m + o, (int)rows, r);
        }
    }
}

static void widen(int16_t *restrict to, const int8_t *restrict from, int32_t count, int32_t zero) {
    for (int32_t i = 0; i < count; i++) { to[i] = (int16_t)(from[i] - zero); }
}

/* The window that starts at (ih, iw), of the Cg channels that x begins with. */
static void gather(const Conv *v, int16_t *to, const int8_t *x, int32_t ih, int32_t iw, int32_t zero) {
    const int32_t Cg = v->C / v->G, row = v->KW * Cg, fused = v->DW == 1 && v->G == 1;
    int32_t h0, h1, w0, w1;
    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    if (h0 > 0 || h1 < v->KH || w0 > 0 || w1 < v->KW) { memset(to, 0, (size_t)v->KH * (size_t)row * sizeof *to); }
    if (w0 >= w1) { return; }
    const int32_t taps = fused ? w1 - w0 : 1;
    for (int32_t kh = h0; kh < h1; kh++) {
        for (int32_t kw = w0; kw < w1; kw += taps) {
            const int8_t *from = x + ((ptrdiff_t)(ih + kh * v->DH) * v->W + iw + kw * v->DW) * v->C;
            widen(to + kh * row + kw * Cg, from, taps * Cg, zero);
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
                    memset(columns + (ptrdiff_t)p * K, 0, (size_t)K * sizeof *columns);
                    continue;
                }
                gather(v, columns + (ptrdiff_t)p * K, x + n1 * image + g * Cg, oh1 * v->SH - v->PT, ow1 * v->SW - v->PL,
                       q->zero);
                step(v, &n1, &oh1, &ow1);
            }
            outputs(y + g * Og, v->O, columns, pixels, w, (ptrdiff_t)g * Og, b + g * Og, m + g * Og, Og, K,
                    q->requantize);
        }
        n = n1;
        oh = oh1;
        ow = ow1;
    }
}

static void qconv(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                  const int32_t *m, int16_t *room) {
    (v->C == v->G ? smg_qdepthwise : conv)(v, q, y, x, w, b, m, room);
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
    need[5] = v.C == v.G ? QTAPS * sizeof(int16_t) * terms : PIXELS * sizeof(int16_t) * terms;
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
    const ptrdiff_t terms = (ptrdiff_t)v.KH * v.KW * (v.C / v.G);
    int16_t *room = OUT_AS(int16_t, 7);
    const QWeights w = qslice(c, c->p + CONV_PARAMS + PARAMS(QConv), room + (v.C == v.G ? QTAPS : PIXELS) * terms);
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
    need[5] = PIXELS * sizeof(int16_t) * (uint64_t)v.K;
    return 0;
}
static void qlinear(const QLinear *v, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b, const int32_t *m,
                    int16_t *columns) {
    for (int32_t left = v->R; left > 0; left -= PIXELS, y += PIXELS * (ptrdiff_t)v->O, x += PIXELS * (ptrdiff_t)v->K) {
        const int rows = left < PIXELS ? (int)left : PIXELS;
        const int32_t given = rows * v->K;
        widen(columns, x, given, v->own.zero);
        memset(columns + given, 0, (size_t)(PIXELS * v->K - given) * sizeof *columns);
        outputs(y, v->O, columns, rows, w, 0, b, m, v->O, v->K, v->own.requantize);
    }
}
KERNEL(qlinear_i8, "oiiiis", PARAMS(QLinear)) {
    const QLinear v = qlinear_of(c->p);
    const QWeights w = {.w = IN_AS(int8_t, 2)};
    qlinear(&v, OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 3), IN_AS(int32_t, 4), OUT_AS(int16_t, 5));
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
    const QWeights w = qslice(c, c->p + PARAMS(QLinear), room + PIXELS * (ptrdiff_t)v.K);
    const SmgFault fault = slice_fault(w.slice, w.index);
    if (fault == SMG_NO_FAULT) {
        qlinear(&v, OUT_AS(int8_t, 0), IN_AS(int8_t, 1), &w, IN_AS(int32_t, 5), IN_AS(int32_t, 6), room);
    }
    return fault;
}
