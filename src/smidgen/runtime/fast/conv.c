/* Dense and grouped convolution as products of matrices whose rows are gathered from the image. Parameters and operands
 * are those of kernels/conv.c. */
#include "conv.h"
#include "gemm.h"
#include "sink.h"

#define FEW_CHANNELS 16 /* below, whole rows of the window are gathered instead of single taps */
#define LONGEST_ROW  160

/* x[N][H][W][C], w[O][KH][KW][C / G], y[N][OH][OW][O]: position (oh, ow) of y and tap (kh, kw) meet pixel
 * (oh * SH - PT + kh * DH, ow * SW - PL + kw * DW) of x. */
Grid SMG_LOCAL(conv_grid)(const Conv *v) {
    return (Grid){
        .h = {v->OH, v->H, v->SH, -v->PT, v->KH, v->DH, 0, 1, 0, 1},
        .w = {v->OW, v->W, v->SW, -v->PL, v->KW, v->DW, 0, 1, 0, 1},
        .pixel = v->C,
        .line = (ptrdiff_t)v->W * v->C,
        .image = (ptrdiff_t)v->H * v->W * v->C,
        .out_pixel = v->O,
        .out_line = (ptrdiff_t)v->OW * v->O,
        .out_image = (ptrdiff_t)v->OH * v->OW * v->O,
        .tap = v->C / v->G,
        .tap_line = (ptrdiff_t)v->KW * (v->C / v->G),
    };
}

/* One product a group: rows of C are the positions of y, K runs over taps and the group's channels, and the weights are
 * B turned (b_k = 1). With few channels a row of taps is one run of memory: longer runs, and fewer pointers. */
static void conv(const SmgWork *work, const Conv *v, float *y, const float *x, const Weights *w, const float *b) {
    const int32_t Cg = v->C / v->G, Og = v->O / v->G;
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW * Cg;
    Grid g = SMG_LOCAL(conv_grid)(v);
    Product p = {.M = (ptrdiff_t)v->N * v->OH * v->OW,
                 .N = Og,
                 .depth = Cg,
                 .a_row = v->C,
                 .a_step = 1,
                 .b_k = 1,
                 .b_n = filter,
                 .c_row = v->O,
                 .grid = conv_is_plain(v) ? NULL : &g};
    if (p.grid && v->G == 1 && v->DW == 1 && v->C < FEW_CHANNELS && v->KW * v->C <= LONGEST_ROW) {
        g.whole_rows = 1;
        p.depth = v->KW * v->C;
    }
    for (int32_t i = 0; i < v->G; i++) {
        p.a = x + (ptrdiff_t)i * Cg;
        product_weights(&p, w, (ptrdiff_t)i * Og, filter);
        p.c = y + (ptrdiff_t)i * Og;
        p.bias = b ? b + (ptrdiff_t)i * Og : NULL;
        SMG_LOCAL(product)(work, &p);
    }
}

/* Pixels of dx that are SH lines and SW columns apart meet the same taps: they are one grid, of which there are SH *
 * SW, and each is a product for each group. Rows of C are the grid's pixels; K runs over its taps and the channels of
 * dy. */
static void conv_dx(const SmgWork *work, const Conv *v, float *dx, const float *dy, const Weights *w, const float *b) {
    if (w->f && SMG_LOCAL(scatters)(v)) {
        SMG_LOCAL(scatter)(work, v, dx, dy, w->f, b);
        return;
    }
    const int32_t Cg = v->C / v->G, Og = v->O / v->G;
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW * Cg;
    Grid g = {
        .pixel = v->O,
        .line = (ptrdiff_t)v->OW * v->O,
        .image = (ptrdiff_t)v->OH * v->OW * v->O,
        .out_pixel = v->C,
        .out_line = (ptrdiff_t)v->W * v->C,
        .out_image = (ptrdiff_t)v->H * v->W * v->C,
        .tap = Cg,
        .tap_line = (ptrdiff_t)v->KW * Cg,
    };
    Product p = {.N = Cg,
                 .depth = Og,
                 .a_row = v->O,
                 .a_step = 1,
                 .b_k = filter,
                 .b_n = 1,
                 .c_row = v->C,
                 .grid = conv_is_plain(v) ? NULL : &g};
    for (int32_t h = 0; h < v->SH && h < v->H; h++) {
        for (int32_t u = 0; u < v->SW && u < v->W; u++) {
            g.h = SMG_LOCAL(phase_of)(h, v->H, v->OH, v->PT, v->KH, v->SH, v->DH);
            g.w = SMG_LOCAL(phase_of)(u, v->W, v->OW, v->PL, v->KW, v->SW, v->DW);
            p.M = (ptrdiff_t)v->N * g.h.count * g.w.count;
            for (int32_t i = 0; i < v->G; i++) {
                p.a = dy + (ptrdiff_t)i * Og;
                product_weights(&p, w, (ptrdiff_t)i * Og, filter);
                p.c = dx + (ptrdiff_t)i * Cg;
                p.bias = b ? b + (ptrdiff_t)i * Cg : NULL;
                SMG_LOCAL(product)(work, &p);
            }
        }
    }
}

/* Depthwise layers with filters too long for the memory of a thread, stored otherwise than in f32, are products. */
static int reads_depthwise(const SmgWork *work, const Conv *v, const Weights *w) {
    return conv_is_depthwise(v) &&
           (w->f || (v->O / v->C) * w->stored->length <= (ptrdiff_t)(work->each / sizeof(float)));
}

static void conv2d(const SmgWork *work, const int32_t *p, float *y, const float *x, const Weights *w, const float *b) {
    const Conv v = conv_of(p);
    (reads_depthwise(work, &v, w) ? SMG_LOCAL(depthwise) : conv)(work, &v, y, x, w, b);
}
FAST_KERNEL(conv2d_f32) {
    const Weights w = weights_f32(IN(2));
    conv2d(smg_work(c), c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
FAST_WEIGHT_KERNELS(conv2d, conv2d, CONV_PARAMS, conv_filter, 1)

/* A transposed convolution is the input gradient of the convolution whose parameters it has. */
static void conv2d_dx(const SmgWork *work, const int32_t *p, float *y, const float *x, const Weights *w,
                      const float *b) {
    const Conv v = conv_of(p);
    (reads_depthwise(work, &v, w) ? SMG_LOCAL(depthwise_dx) : conv_dx)(work, &v, y, x, w, b);
}
FAST_KERNEL(conv2d_dx_f32) {
    const Weights w = weights_f32(IN(2));
    conv2d_dx(smg_work(c), c->p, OUT(0), IN(1), &w, NULL);
    return SMG_NO_FAULT;
}
FAST_KERNEL(conv_transpose2d_f32) {
    const Weights w = weights_f32(IN(2));
    conv2d_dx(smg_work(c), c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
FAST_WEIGHT_KERNELS(conv2d_dx, conv2d_dx, CONV_PARAMS, conv_filter, 0)
FAST_WEIGHT_KERNELS(conv_transpose2d, conv2d_dx, CONV_PARAMS, conv_filter, 1)

/* Weights are [O][KH][KW][C / G], so the gradient of a group is one block dw[O / G][KH * KW * C / G] of them. */
static SmgFault conv_dw(const SmgWork *work, Conv v, const Sink *sink, const float *dy, const float *x) {
    if (conv_is_depthwise(&v)) {
        SMG_LOCAL(depthwise_dw)(work, &v, sink, dy, x);
        return SMG_NO_FAULT;
    }
    const int32_t Cg = v.C / v.G, Og = v.O / v.G;
    const Grid grid = SMG_LOCAL(conv_grid)(&v);
    Gradient g = {.v = conv_is_plain(&v) ? NULL : &v,
                  .grid = &grid,
                  .M = (ptrdiff_t)v.N * v.OH * v.OW,
                  .O = Og,
                  .J = v.KH * v.KW * Cg,
                  .x = x,
                  .dy_row = v.O,
                  .x_row = v.C};
    for (int32_t i = 0; i < v.G; i++) {
        g.dy = dy + (ptrdiff_t)i * Og;
        g.at = (size_t)i * (size_t)Og * (size_t)g.J;
        g.channel = i * Cg;
        if (!g.v) { g.x = x + (ptrdiff_t)i * Cg; }
        SMG_LOCAL(gradient)(work, &g, sink);
    }
    return SMG_NO_FAULT;
}
static SmgFault conv2d_dw(const SmgCall *c, const Sink *sink) {
    return conv_dw(smg_work(c), conv_of(c->p), sink, SINK_IN(sink, 0), SINK_IN(sink, 1));
}
FAST_SINK_KERNELS(conv2d_dw, 2, CONV_PARAMS)

/* Some rows at a time: what kernels/going.h keeps apart, these add up at once. */
FAST_KERNEL(conv2d_dw_rows_f32) {
    const ConvRows r = conv_rows_of(c->p);
    const Sink sink = {.mode = r.first ? SMG_ACC : SMG_STORE, .w = OUT(0)};
    return conv_dw(smg_work(c), r.v, &sink, IN(1), IN(2));
}
