/* Convolution and its gradients, dense and grouped; one weight per output goes to depthwise.c.
 * Parameters are a Conv (conv.h); x[N][H][W][C], w[O][KH][KW][C/G], y[N][OH][OW][O].
 * Each output is one sum in an order of its own (sum.h), so neither blocking nor the batch it sits in changes a bit. */
#include "conv.h"
#include "rounded.h"
#include "tile.h"
#include "weight_kernels.h"

/* One pixel, `rows` (up to four) outputs: y[i] = the dot product over the window of taps h0..h1 by w0..w1 that starts
 * at (ih, iw). With neighbouring taps (DW = 1) and one group, a row of the window is one run of memory in x, w; the
 * runs add up in eight lanes, unless there is one only. */
static void pixel(const Conv *v, float *y, int rows, const float *x, const float *w, int32_t ih, int32_t iw, int32_t h0,
                  int32_t h1) {
    const int32_t Cg = v->C / v->G, fused = v->DW == 1 && v->G == 1;
    const ptrdiff_t row = (ptrdiff_t)v->KW * Cg, filter = row * v->KH;
    int32_t w0, w1;
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    const int32_t taps = fused && w0 < w1 ? w1 - w0 : 1, run = taps * Cg;
    if (SMG_SUMS != SMG_SUMS_FEW && v->KH == 1 && h0 < h1 && w0 < w1 && taps == w1 - w0) {
        smg_dots(y, rows, x + ((ptrdiff_t)ih * v->W + iw + w0 * v->DW) * v->C, w + (ptrdiff_t)w0 * Cg, filter, run);
        return;
    }
    float lanes[32] = {0};
    for (int32_t kh = h0; kh < h1; kh++) {
        for (int32_t kw = w0; kw < w1; kw += taps) {
            const float *a = x + ((ptrdiff_t)(ih + kh * v->DH) * v->W + iw + kw * v->DW) * v->C;
            const float *b = w + kh * row + (ptrdiff_t)kw * Cg;
            if (rows == 4) {
                smg_dot_x4(lanes, a, b, filter, run);
            } else {
                for (int i = 0; i < rows; i++) { smg_dot(lanes + 8 * i, a, b + i * filter, run); }
            }
        }
    }
    for (int i = 0; i < rows; i++) { y[i] = smg_lanes8(lanes + 8 * i); }
}

/* Four outputs share the loads of x, and their weights stay in the cache for the whole image. */
static void conv(const Conv *v, float *y, const float *x, const Weights *w, const float *b) {
    const int32_t Cg = v->C / v->G, Og = v->O / v->G, rows = Og < 4 ? Og : 4;
    for (int32_t g = 0; g < v->G; g++) {
        for (int32_t next = 0; next < Og; next += 4) {
            const int32_t o = g * Og + (next > Og - rows ? Og - rows : next); /* the last four may overlap */
            const float *wo = weights_rows(w, o, rows, (ptrdiff_t)v->KH * v->KW * Cg);
            for (int32_t n = 0; n < v->N; n++) {
                const float *image = x + (ptrdiff_t)n * v->H * v->W * v->C + g * Cg;
                float *out = y + (ptrdiff_t)n * v->OH * v->OW * v->O + o;
                for (int32_t oh = 0; oh < v->OH; oh++) {
                    const int32_t ih = oh * v->SH - v->PT;
                    int32_t h0, h1, iw = -v->PL;
                    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
                    for (int32_t ow = 0; ow < v->OW; ow++, out += v->O, iw += v->SW) {
                        pixel(v, out, rows, image, wo, ih, iw, h0, h1);
                        for (int i = 0; i < rows; i++) { out[i] += b ? b[o + i] : 0.0f; }
                    }
                }
            }
        }
    }
}

/* A tap of some input pixels that are neighbours a stride apart, and `count` outputs: sums of `width` channels each.
 * The first meets output ow, the second ow + 1 and so on; outputs outside the image count as if they were zero. */
static inline void tap_dx(const Conv *v, float *part, int pixels, int width, const float *dy, int32_t ow,
                          const float *k, ptrdiff_t output, int32_t count) {
    const float *d = dy + (ptrdiff_t)ow * v->O;
    if (pixels > 1 && ow >= 0 && ow + pixels <= v->OW) {
        if (pixels == 2) {
            smg_rows_x2(part, d, v->O, k, output, count);
        } else {
            smg_rows_x4(part, d, v->O, k, output, count);
        }
        return;
    }
    for (int p = 0; p < pixels; p++, d += v->O) {
        if (ow + p >= 0 && ow + p < v->OW) { smg_rows(part + p * width, width, d, 1, k, output, count); }
    }
}

/* `width` channels of one input pixel, eight of two, or four of four: the outputs they meet, tap by tap, and within a
 * tap the group's Og outputs in order. dy and w begin with the group's first output. */
static void pixels_dx(const Conv *v, float *total, int pixels, const float *dy, const Panel *w, int width, Meets mh,
                      Meets mw) {
    const int32_t Og = v->O / v->G;
    float part[16];
    int32_t pending = 0;
    memset(part, 0, sizeof part);
    memset(total, 0, sizeof part);
    for (int32_t kh = mh.first, oh = mh.out; kh < v->KH; kh += mh.tap_step, oh -= mh.out_step) {
        if (oh < 0 || oh >= v->OH) { continue; }
        const float *row = dy + (ptrdiff_t)oh * v->OW * v->O;
        for (int32_t kw = mw.first, ow = mw.out; kw < v->KW; kw += mw.tap_step, ow -= mw.out_step) {
            const float *k = w->w + ((ptrdiff_t)kh * v->KW + kw) * w->tap;
            for (int32_t o = 0; o < Og; o += SMG_BLOCK) {
                const int32_t count = Og - o < SMG_BLOCK ? Og - o : SMG_BLOCK;
                tap_dx(v, part, pixels, width, row + o, ow, k + o * w->output, w->output, count);
                pending += count;
                if (pending >= SMG_BLOCK) {
                    smg_flush_sixteen(total, part);
                    pending = 0;
                }
            }
        }
    }
    if (pending) { smg_flush_sixteen(total, part); }
}

/* The pixels from iw on that meet the same taps, of one row of dx, which begins with the panel's first channel. Where a
 * loop has registers for sixteen sums, several pixels share the loads of weights. */
static void row_dx(const Conv *v, float *dx, const float *dy, const Panel *panel, Meets mh, Meets mw, int32_t iw,
                   const float *b) {
    float total[16];
    for (int pixels, width; iw < v->W; iw += pixels * v->SW, mw.out += pixels) {
        width = panel->width;
        pixels = SMG_SUMS != SMG_SUMS_REGISTERS || width < 4 ? 1 : width >= 8 ? 2 : 4;
        if (pixels > 1 && iw + (pixels - 1) * v->SW >= v->W) { pixels = 1; }
        if (pixels > 1) { width = 16 / pixels; }
        for (int c = 0; c < panel->width; c += width) {
            if (c > panel->width - width) { c = panel->width - width; }
            Panel part = *panel;
            part.w += c;
            pixels_dx(v, total, pixels, dy, &part, width, mh, mw);
            for (int p = 0; p < pixels; p++) {
                float *out = dx + (ptrdiff_t)(iw + p * v->SW) * v->C + c;
                for (int l = 0; l < width; l++) { out[l] = total[p * width + l] + (b ? b[c + l] : 0.0f); }
            }
        }
    }
}

/* A kernel of one tap sees pixels and no rows: one row of all of them, as far as that can be counted. */
static Conv flat(const Conv *v) {
    Conv f = *v;
    const uint64_t pixels = smg_mul(smg_mul((uint64_t)v->N, (uint64_t)v->H), (uint64_t)v->W);
    if (v->KH > 1 || v->KW > 1 || v->SH > 1 || v->SW > 1 || v->PT || v->PL || v->OH != v->H || v->OW != v->W) {
        return f;
    }
    if (pixels > 1 << 28) { return f; }
    f.N = f.H = f.OH = 1;
    f.W = f.OW = (int32_t)pixels;
    return f;
}

static void conv_dx(const Conv *own, float *dx, const float *dy, const Weights *w, const float *b) {
    const Conv rows = flat(own), *v = &rows;
    const int32_t Cg = v->C / v->G, Og = v->O / v->G;
    Panel panel;
    for (int32_t g = 0; g < v->G; g++) {
        for (int32_t c = 0, width; c < Cg; c += width) {
            weights_panel(w, &panel, (ptrdiff_t)g * Og, Og, v->KH * v->KW, Cg, &c);
            width = panel.width;
            const int32_t at = g * Cg + c;
            for (int32_t n = 0; n < v->N; n++) {
                const float *d = dy + (ptrdiff_t)n * v->OH * v->OW * v->O + g * Og;
                for (int32_t ih = 0; ih < v->H; ih++) {
                    const Meets mh = conv_meets(ih, v->PT, 0, v->KH, v->SH, v->DH);
                    float *out = dx + ((ptrdiff_t)n * v->H + ih) * v->W * v->C + at;
                    /* pixels a stride apart meet the same taps */
                    for (int32_t phase = 0; phase < v->SW && phase < v->W; phase++) {
                        const Meets mw = conv_meets(phase, v->PL, 0, v->KW, v->SW, v->DW);
                        row_dx(v, out, d, &panel, mh, mw, phase, b ? b + at : NULL);
                    }
                }
            }
        }
    }
}

/* One row of outputs into a tile. q is the place in the row of x (W * C floats) that output 0 meets with the tile's
 * first column; of outputs outside first..last only some columns, or none, lie in the row. */
SOURCE_CODE void row_dw(Tile *t, const Conv *v, const float *dy, Source x, int64_t q, int32_t first, int32_t last) {
    const int64_t step = (int64_t)v->SW * v->C, length = (int64_t)v->W * v->C;
    for (int32_t ow = 0; ow < v->OW;) {
        const int32_t end = v->OW - ow < SMG_BLOCK ? v->OW : ow + SMG_BLOCK, begun = ow;
        while (ow < end) {
            const int64_t at = q + ow * step;
            const float *d = dy + (ptrdiff_t)ow * v->O;
            if (ow >= first && ow < last) {
                const int32_t count = (last < end ? last : end) - ow;
                source_outer(t->part, t->rows, t->columns, d, v->O, source_at(x, (ptrdiff_t)at), (ptrdiff_t)step,
                             count);
                ow += count;
                continue;
            }
            /* columns l0..l1 lie in the row */
            int l0 = 0, l1 = t->columns;
            if (at < 0) { l0 = at > -8 ? (int)-at : 8; }
            if (at + t->columns > length) { l1 = at < length ? (int)(length - at) : 0; }
            for (int i = 0; i < t->rows; i++) {
                for (int l = l0; l < l1; l++) { t->part[8 * i + l] += d[i] * source_get(x, (ptrdiff_t)at + l); }
            }
            ow++;
        }
        tile_count(t, end - begun);
    }
}

/* All samples into a tile of kernel row kh; dy points at the tile's first output, q is as above. A sum that goes on is
 * within its one sample. */
SOURCE_CODE void tile_dw(Tile *t, const Conv *v, int goes_on, const float *dy, Source x, int32_t kh, int64_t q) {
    /* outputs that meet all columns of the tile: 0 <= q + ow * step <= room */
    const int64_t step = (int64_t)v->SW * v->C, room = (int64_t)v->W * v->C - t->columns;
    const int64_t first = q >= 0 ? 0 : smg_div(step - 1 - q, step), last = room < q ? 0 : smg_div(room - q, step) + 1;
    const int32_t begin = first < v->OW ? (int32_t)first : v->OW, end = last < v->OW ? (int32_t)last : v->OW;
    for (int32_t n = 0; n < v->N; n++) {
        if (!goes_on) { tile_sample_begin(t); }
        for (int32_t oh = 0; oh < v->OH; oh++) {
            const int32_t ih = oh * v->SH - v->PT + kh * v->DH;
            if (ih < 0 || ih >= v->H) { continue; }
            const Source xr = source_at(x, ((ptrdiff_t)n * v->H + ih) * v->W * v->C);
            row_dw(t, v, dy + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->O, xr, q, begin, end);
        }
        if (!goes_on) { tile_sample_end(t); }
    }
}

/* As in `pixel`, a row of the window is one axis of the tiles where it is one run of memory. Into the sink, or as a sum
 * that goes on, with rows r. */
SOURCE_CODE void dense_dw(const Conv *v, const Sink *sink, const ConvRows *r, const Going *going, const float *dy,
                          Source x) {
    const int32_t Cg = v->C / v->G, Og = v->O / v->G, fused = v->DW == 1 && v->G == 1;
    const int32_t taps = fused ? v->KW : 1, run = taps * Cg;
    const size_t filter = (size_t)v->KH * (size_t)v->KW * (size_t)Cg;
    Tile t;
    for (int32_t g = 0; g < v->G; g++) {
        for (int32_t o = 0; o < Og; o += t.rows) {
            tile_rows(&t, &o, Og);
            for (int32_t kh = 0; kh < v->KH; kh++) {
                for (int32_t kw = 0; kw < v->KW; kw += taps) {
                    for (int32_t k = 0; k < run; k += t.columns) {
                        tile_columns(&t, &k, run);
                        const size_t tap = (size_t)kh * (size_t)v->KW + (size_t)kw;
                        const size_t at = (size_t)(g * Og + o) * filter + tap * (size_t)Cg + (size_t)k;
                        const int64_t q = ((int64_t)kw * v->DW - v->PL) * v->C + g * Cg + k;
                        if (going) {
                            tile_go_on(&t, going, at, filter, conv_pending(r, kh, SMG_BLOCK));
                        } else {
                            tile_begin(&t, sink, at, filter);
                        }
                        tile_dw(&t, v, going != NULL, dy + g * Og + o, x, kh, q);
                        if (going) {
                            tile_stop(&t, going, at, filter);
                        } else {
                            tile_end(&t, sink, at, filter);
                        }
                    }
                }
            }
        }
    }
}

static void conv_dw_rows(const ConvRows *r, const Going *going, const float *dy, const float *x) {
    dense_dw(&r->v, NULL, r, going, dy, source_f32(x));
}

static void conv2d(const int32_t *p, float *y, const float *x, const Weights *w, const float *b) {
    const Conv v = conv_of(p);
    (v.C == v.G ? smg_depthwise : conv)(&v, y, x, w, b);
}
EXTENT(conv2d_f32) {
    if (conv_need(p, &need[1], &need[2], &need[0])) { return -1; }
    if (operands > 3) { need[3] = 4 * (uint64_t)conv_of(p).O; }
    return 0;
}
KERNEL(conv2d_f32, "oiii?", CONV_PARAMS) {
    const Weights w = weights_f32(IN(2));
    conv2d(c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
static int conv2d_stored_need(const int32_t *p, WeightsNeed *n) {
    const Conv v = conv_of(p);
    if (conv_need(p, &n->x, &n->w, &n->y)) { return -1; }
    n->outputs = v.O;
    n->bias = 4 * (uint64_t)v.O;
    n->room = v.C == v.G ? 0 : weights_rows_room(v.O / v.G, n->w / 4 / (uint64_t)v.O);
    return 0;
}
WEIGHT_KERNELS(conv2d, conv2d, CONV_PARAMS, conv_filter, "i")

/* y[N][H][W][C] from x[N][OH][OW][O]: the gradient of a convolution for its image, and a layer with a bias b[C]. */
static void conv2d_dx(const int32_t *p, float *y, const float *x, const Weights *w, const float *b) {
    const Conv v = conv_of(p);
    (v.C == v.G ? smg_depthwise_dx : conv_dx)(&v, y, x, w, b);
}
EXTENT(conv2d_dx_f32) { return conv_need(p, &need[0], &need[2], &need[1]); }
KERNEL(conv2d_dx_f32, "oii", CONV_PARAMS) {
    const Weights w = weights_f32(IN(2));
    conv2d_dx(c->p, OUT(0), IN(1), &w, NULL);
    return SMG_NO_FAULT;
}
EXTENT(conv_transpose2d_f32) {
    if (conv_need(p, &need[0], &need[2], &need[1])) { return -1; }
    if (operands > 3) { need[3] = 4 * (uint64_t)conv_of(p).C; }
    return 0;
}
KERNEL(conv_transpose2d_f32, "oiii?", CONV_PARAMS) {
    const Weights w = weights_f32(IN(2));
    conv2d_dx(c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
static int conv2d_dx_stored_need(const int32_t *p, WeightsNeed *n) {
    const Conv v = conv_of(p);
    if (conv_need(p, &n->y, &n->w, &n->x)) { return -1; }
    n->outputs = v.O;
    n->bias = 4 * (uint64_t)v.C;
    n->room = v.C == v.G ? 0 : weights_panel_room(v.C / v.G, n->w / 4 / (uint64_t)v.C);
    return 0;
}
WEIGHT_KERNELS(conv2d_dx, conv2d_dx, CONV_PARAMS, conv_filter, "")
WEIGHT_KERNEL_INT8(conv2d_dx, conv2d_dx, CONV_PARAMS, conv_filter, "")

/* conv2d_dx_w8 of one output a channel, stride 1 and images of equal size; dx may take the place of dy. */
EXTENT(depthwise_dx_w8_f32) {
    const Conv v = conv_of(p);
    if (conv_need(p, &need[0], &need[2], &need[1])) { return -1; }
    if (v.C != v.G || v.O != v.G || v.SH != 1 || v.SW != 1 || v.OH != v.H || v.OW != v.W) { return -1; }
    need[2] /= sizeof(float);
    need[3] = sizeof(float) * (uint64_t)v.O;
    need[4] = smg_mul(smg_mul((uint64_t)v.H + 1, (uint64_t)v.W), 8 * sizeof(float));
    return 0;
}
KERNEL(depthwise_dx_w8_f32, "oiiis", CONV_PARAMS) {
    const Conv v = conv_of(c->p);
    Stored s;
    stored_of(&s, c, weights_widen, 1, NULL, conv_filter(c->p));
    const Weights w = {.stored = &s};
    smg_depthwise_dx_over(&v, OUT(0), IN(1), &w, OUT(4));
    return SMG_NO_FAULT;
}
WEIGHT_KERNELS(conv_transpose2d, conv2d_dx, CONV_PARAMS, conv_filter, "i")

static int conv2d_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    if (conv_need(p, &own[1], elements, &own[0])) { return -1; }
    *elements /= 4;
    return 0;
}
static void conv_dw(const Conv *v, const Sink *sink, const float *dy, const float *x) {
    dense_dw(v, sink, NULL, NULL, dy, source_f32(x));
}
static SmgFault conv2d_dw(const SmgCall *c, const Sink *sink) {
    const Conv v = conv_of(c->p);
    (v.C == v.G ? smg_depthwise_dw : conv_dw)(&v, sink, SINK_IN(sink, 0), SINK_IN(sink, 1));
    return SMG_NO_FAULT;
}
SINK_KERNELS(conv2d_dw, 2, "ii", CONV_PARAMS, "")

/* The same with x in int8, less its zero point, the parameter behind the others; what the sums stand for is the sink's
 * business. */
typedef struct {
    Conv own;
    int32_t zero;
} QConvDw;
UNPACK(qconv_dw_of, QConvDw)

static int qconv2d_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const int32_t zero = qconv_dw_of(p).zero;
    if (conv2d_dw_need(p, own, elements) || zero < -128 || zero > 127) { return -1; }
    own[1] /= sizeof(float);
    return 0;
}
static void conv_dw_int8(const Conv *v, const Sink *sink, const float *dy, const int8_t *x, int32_t zero) {
    dense_dw(v, sink, NULL, NULL, dy, source_int8(x, zero));
}
static SmgFault qconv2d_dw(const SmgCall *c, const Sink *sink) {
    const Conv v = conv_of(c->p);
    const int32_t zero = qconv_dw_of(c->p).zero;
    (v.C == v.G ? smg_depthwise_dw_int8 : conv_dw_int8)(&v, sink, SINK_IN(sink, 0), SINK_IN_AS(int8_t, sink, 1), zero);
    return SMG_NO_FAULT;
}
SINK_KERNEL_(qconv2d_dw, _f32, SMG_STORE, "o", 2, "ii", "", PARAMS(QConvDw), "")
SINK_KERNEL_(qconv2d_dw, _acc_f32, SMG_ACC, "u", 2, "ii", "", PARAMS(QConvDw), "")
ROUNDED_KERNELS(qconv2d_dw, 2, "ii", PARAMS(QConvDw), i8)
/* The same for some rows of dy[OH][OW][O]; a partial sum is kept from call to call. */
EXTENT(conv2d_dw_rows_f32) {
    const ConvRows r = conv_rows_of(p);
    const int32_t limit = 1 << 28;
    if (r.v.N != 1 || r.first < 0 || r.count < 1 || r.height < 1 || r.height > limit) { return -1; }
    if (r.pad > limit || r.pad < -limit || r.above > limit || r.above < -limit) { return -1; }
    if (conv_need(p, &need[2], &need[0], &need[1])) { return -1; }
    need[3] = need[0];
    return 0;
}
KERNEL(conv2d_dw_rows_f32, "oiis", PARAMS(ConvRows)) {
    const ConvRows r = conv_rows_of(c->p);
    const Going going = going_of(OUT(0), OUT(3), r.first, r.v.OH, r.count);
    (r.v.C == r.v.G ? smg_depthwise_dw_rows : conv_dw_rows)(&r, &going, IN(1), IN(2));
    return SMG_NO_FAULT;
}
