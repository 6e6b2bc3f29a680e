/* The geometry of a convolution. Output pixel (oh, ow) and tap (kh, kw) meet input pixel
 *     ih = oh * SH - PT + kh * DH,  iw = ow * SW - PL + kw * DW.
 * Where padding ends at the bottom and right follows from OH and OW. Images NHWC, weights [O][KH][KW][C/G]. */
#ifndef SMG_CONV_H
#define SMG_CONV_H
#include "going.h"
#include "sink.h"
#include "source.h"
#include "weights.h"

/* Samples; input image and its channels; outputs; output image; kernel, stride, padding at the top and left, dilation;
 * groups of channels. */
typedef struct {
    int32_t N, H, W, C, O, OH, OW, KH, KW, SH, SW, PT, PL, DH, DW, G;
} Conv;
UNPACK(conv_of, Conv)
#define CONV_PARAMS PARAMS(Conv)

/* Coordinates and the lengths of rows stay below 2^28, so that they can be added and stepped in int32. */
static inline int conv_axis_ok(int32_t in, int32_t out, int32_t kernel, int32_t stride, int32_t pad, int32_t dilation,
                               int32_t channels) {
    const int32_t limit = 1 << 28;
    if (in < 1 || out < 1 || kernel < 1 || stride < 1 || dilation < 1 || channels < 1) { return 0; }
    if (stride > limit || dilation > limit || pad > limit || pad < -limit) { return 0; }
    if (smg_mul((uint64_t)in, (uint64_t)channels) > (uint64_t)limit) { return 0; }
    if (smg_mul((uint64_t)kernel, (uint64_t)channels) > (uint64_t)limit) { return 0; }
    const uint64_t reach = smg_mul((uint64_t)kernel, (uint64_t)dilation);
    return smg_add(smg_mul((uint64_t)out, (uint64_t)stride), reach) <= (uint64_t)limit;
}

/* Bytes of the image x, the weights and the image y; -1 refuses. */
static inline int conv_need(const int32_t *p, uint64_t *x, uint64_t *w, uint64_t *y) {
    const Conv v = conv_of(p);
    if (v.N < 0 || v.O < 1 || v.O > 1 << 28 || v.G < 1 || v.C < 1 || v.C % v.G || v.O % v.G) { return -1; }
    if (!conv_axis_ok(v.H, v.OH, v.KH, v.SH, v.PT, v.DH, 1)) { return -1; }
    if (!conv_axis_ok(v.W, v.OW, v.KW, v.SW, v.PL, v.DW, v.C)) { return -1; }
    *x = smg_mul(smg_mul((uint64_t)v.N, (uint64_t)v.H), smg_mul((uint64_t)v.W, 4 * (uint64_t)v.C));
    *y = smg_mul(smg_mul((uint64_t)v.N, (uint64_t)v.OH), smg_mul((uint64_t)v.OW, 4 * (uint64_t)v.O));
    *w = smg_mul(smg_mul((uint64_t)v.KH, (uint64_t)v.KW), smg_mul((uint64_t)v.O, 4 * (uint64_t)(v.C / v.G)));
    return 0;
}

/* Weights of one output. */
static inline ptrdiff_t conv_filter(const int32_t *p) {
    const Conv v = conv_of(p);
    return (ptrdiff_t)v.KH * v.KW * (v.C / v.G);
}

/* Taps lo..hi of a window that starts at `at` lie inside 0..size; none if lo >= hi. */
static inline void conv_clip(int32_t at, int32_t kernel, int32_t dilation, int32_t size, int32_t *lo, int32_t *hi) {
    *lo = at >= 0 ? 0 : (dilation - 1 - at) / dilation;
    if (at + (kernel - 1) * dilation < size) {
        *hi = kernel;
    } else {
        *hi = at < size ? (size - 1 - at) / dilation + 1 : 0;
    }
}

/* Rows of dy from `first` on, of `count`, for a sum that goes on (going.h). The convolution has the size of what is at
 * hand: x begins `above` rows below the first tap. All of x has `height` rows, below `pad` rows of padding. */
typedef struct {
    Conv v;
    int32_t count, height, pad, above, first;
} ConvRows;
UNPACK(conv_rows_given, ConvRows)
static inline ConvRows conv_rows_of(const int32_t *p) {
    ConvRows r = conv_rows_given(p);
    r.v.PT = r.above;
    return r;
}

/* How many positions of kernel row kh have not moved on when the rows before `first` have been added: those outside the
 * image are left out, and others move on at the end of the row in which they become SMG_BLOCK. */
static inline int32_t conv_pending(const ConvRows *r, int32_t kh, int32_t block) {
    const int64_t top = (int64_t)r->pad - (int64_t)kh * r->v.DH; /* row oh meets row oh * SH - top */
    const int64_t from = top > 0 ? (top + r->v.SH - 1) / r->v.SH : 0, end = r->height + top;
    const int64_t to = end > 0 ? (end + r->v.SH - 1) / r->v.SH : 0;
    const int64_t rows = (to < r->first ? to : r->first) - from;
    if (rows <= 0) { return 0; }
    return r->v.OW < block ? (int32_t)(rows % ((block + r->v.OW - 1) / r->v.OW)) * r->v.OW : r->v.OW % block;
}

/* The outputs that one input coordinate meets: tap `first` meets output `out` (perhaps outside 0..OH or 0..OW), and
 * every tap_step taps later comes the output out_step earlier. first = taps if it meets none. */
typedef struct {
    int32_t first, out, tap_step, out_step;
} Meets;
static inline Meets conv_meets(int32_t in, int32_t pad, int32_t from, int32_t taps, int32_t stride, int32_t dilation) {
    int32_t a = stride, b = dilation;
    while (b) { /* a = greatest common divisor */
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    Meets m = {taps, 0, stride / a, dilation / a};
    for (int32_t k = from; k < taps && k - from < m.tap_step; k++) {
        const int32_t distance = in + pad - k * dilation;
        if (distance % stride == 0) {
            m.first = k;
            m.out = distance / stride;
            break;
        }
    }
    return m;
}

/* One weight per output and tap (C/G = 1), vectorised over channels. */
#define smg_depthwise SMG_EXTERN(depthwise)
void smg_depthwise(const Conv *v, float *y, const float *x, const Weights *w, const float *b);
#define smg_depthwise_dx SMG_EXTERN(depthwise_dx)
void smg_depthwise_dx(const Conv *v, float *dx, const float *dy, const Weights *w, const float *b);
#define smg_depthwise_dx_over SMG_EXTERN(depthwise_dx_over)
void smg_depthwise_dx_over(const Conv *v, float *dx, const float *dy, const Weights *w, float *room);
#define smg_depthwise_dw SMG_EXTERN(depthwise_dw)
void smg_depthwise_dw(const Conv *v, const Sink *sink, const float *dy, const float *x);
#define smg_depthwise_dw_int8 SMG_EXTERN(depthwise_dw_int8)
void smg_depthwise_dw_int8(const Conv *v, const Sink *sink, const float *dy, const int8_t *x, int32_t zero);
#define smg_depthwise_dw_rows SMG_EXTERN(depthwise_dw_rows)
void smg_depthwise_dw_rows(const ConvRows *r, const Going *going, const float *dy, const float *x);
#endif
