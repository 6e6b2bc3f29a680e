/* Images [N,H,W,C] to a given height and width, as torch computes it: adaptive pooling and upsampling.
 * A gradient scatters along the very same indices and weights. */
#include "../exact_math.h"
#include "../kernel.h"
#include "image.h"

/* ---- adaptive pooling: Images (image.h). Window o covers floor(o*size/out) .. ceil((o+1)*size/out) ---- */

static int32_t window_from(int32_t o, int32_t size, int32_t out) { return (int32_t)((int64_t)o * size / out); }
static int32_t window_to(int32_t o, int32_t size, int32_t out) {
    return (int32_t)((((int64_t)o + 1) * size + out - 1) / out);
}

EXTENT(adaptive_avg_pool2d_f32) { return smg_images_need(p, &need[1], &need[0]); }
KERNEL(adaptive_avg_pool2d_f32, "oi", PARAMS(Images)) {
    const Images g = images_of(c->p);
    const int32_t N = g.N, H = g.H, W = g.W, C = g.C, OH = g.OH, OW = g.OW;
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t n = 0; n < N; n++, x += (size_t)H * (size_t)W * (size_t)C) {
        for (int32_t oh = 0; oh < OH; oh++) {
            const int32_t h = window_from(oh, H, OH), rows = window_to(oh, H, OH) - h;
            for (int32_t ow = 0; ow < OW; ow++, y += C) {
                const int32_t w = window_from(ow, W, OW), cols = window_to(ow, W, OW) - w;
                smg_mean_rectangle(y, x + ((size_t)h * (size_t)W + (size_t)w) * (size_t)C, W, C, rows, cols,
                                   (float)((int64_t)rows * cols));
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(adaptive_avg_pool2d_dx_f32) { return smg_images_need(p, &need[0], &need[1]); }
KERNEL(adaptive_avg_pool2d_dx_f32, "oi", PARAMS(Images)) {
    const Images g = images_of(c->p);
    const int32_t N = g.N, H = g.H, W = g.W, C = g.C, OH = g.OH, OW = g.OW;
    const size_t image = (size_t)H * (size_t)W * (size_t)C;
    float *dx = OUT(0);
    const float *dy = IN(1);
    for (int32_t n = 0; n < N; n++, dx += image) {
        memset(dx, 0, image * sizeof(float));
        for (int32_t oh = 0; oh < OH; oh++) {
            const int32_t h = window_from(oh, H, OH), rows = window_to(oh, H, OH) - h;
            for (int32_t ow = 0; ow < OW; ow++, dy += C) {
                const int32_t w = window_from(ow, W, OW), cols = window_to(ow, W, OW) - w;
                smg_spread_rectangle(dx + ((size_t)h * (size_t)W + (size_t)w) * (size_t)C, dy, W, C, rows, cols,
                                     1.0f / (float)((int64_t)rows * cols));
            }
        }
    }
    return SMG_NO_FAULT;
}

/* The index is h*W + w, an int32. */
static int adaptive_max_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Images g = images_of(p);
    if (smg_images_need(p, x, y) || smg_mul((uint64_t)g.H, (uint64_t)g.W) > INT32_MAX) { return -1; }
    return 0;
}
EXTENT(adaptive_max_pool2d_f32) {
    if (adaptive_max_need(p, &need[2], &need[0])) { return -1; }
    need[1] = need[0];
    return 0;
}
KERNEL(adaptive_max_pool2d_f32, "ooi", PARAMS(Images)) {
    const Images g = images_of(c->p);
    const int32_t N = g.N, H = g.H, W = g.W, C = g.C, OH = g.OH, OW = g.OW;
    float *y = OUT(0);
    int32_t *index = OUT_AS(int32_t, 1);
    const float *x = IN(2);
    for (int32_t n = 0; n < N; n++, x += (size_t)H * (size_t)W * (size_t)C) {
        for (int32_t oh = 0; oh < OH; oh++) {
            const int32_t h0 = window_from(oh, H, OH), h1 = window_to(oh, H, OH);
            for (int32_t ow = 0; ow < OW; ow++, y += C, index += C) {
                const int32_t w0 = window_from(ow, W, OW), w1 = window_to(ow, W, OW);
                for (int32_t l = 0; l < C; l++) {
                    y[l] = smg_from_bits(0xff800000u);
                    index[l] = h0 * W + w0;
                }
                for (int32_t h = h0; h < h1; h++) {
                    for (int32_t w = w0; w < w1; w++) {
                        const int32_t here = h * W + w;
                        const float *v = x + (size_t)here * (size_t)C;
                        for (int32_t l = 0; l < C; l++) { index[l] ^= (index[l] ^ here) & -smg_beats(v[l], y[l]); }
                        for (int32_t l = 0; l < C; l++) { y[l] = smg_beats(v[l], y[l]) ? v[l] : y[l]; }
                    }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(adaptive_max_pool2d_dx_f32) {
    if (adaptive_max_need(p, &need[0], &need[1])) { return -1; }
    need[2] = need[1];
    return 0;
}
KERNEL(adaptive_max_pool2d_dx_f32, "oii", PARAMS(Images)) {
    const Images g = images_of(c->p);
    const int32_t N = g.N, C = g.C, pixels = g.H * g.W;
    const size_t image = (size_t)pixels * (size_t)C, outs = (size_t)g.OH * (size_t)g.OW;
    float *dx = OUT(0);
    const float *dy = IN(1);
    const int32_t *index = IN_AS(int32_t, 2);
    for (int32_t n = 0; n < N; n++, dx += image) {
        memset(dx, 0, image * sizeof(float));
        for (size_t o = 0; o < outs; o++, dy += C, index += C) {
            for (int32_t l = 0; l < C; l++) {
                if (index[l] < 0 || index[l] >= pixels) { return SMG_FAULT_POOL_INDEX; }
                dx[(size_t)index[l] * (size_t)C + (size_t)l] += dy[l];
            }
        }
    }
    return SMG_NO_FAULT;
}

/* ---- nearest: input pixels per output pixel along each axis ---- */

typedef struct {
    PlacedImages placed;
    float ratio_h, ratio_w;
} Nearest;
UNPACK(nearest_of, Nearest)

/* In float, as torch, so that the same pixel is picked. */
static int32_t nearest(int32_t o, int32_t size, int32_t out, float ratio) {
    if (out == size) { return o; }
    if (out / 2 == size && out % 2 == 0) { return o / 2; }
    const float at = (float)o * ratio;
    return at >= (float)size || (int32_t)at >= size ? size - 1 : (int32_t)at;
}
static size_t nearest_at(Place v, int32_t o, float ratio, int32_t count) {
    return (size_t)smg_place(v, nearest(v.from + o, v.size, v.out, ratio), count);
}

static int ratio_refused(double r) { return !(r >= 0.0 && r <= 16777216.0); }

static int placed_need(const int32_t *p, const PlacedImages *v, uint64_t *x, uint64_t *y) {
    return smg_place_ok(v->tall) && smg_place_ok(v->wide) ? smg_images_need(p, x, y) : -1;
}
static int nearest_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Nearest v = nearest_of(p);
    if (ratio_refused((double)v.ratio_h) || ratio_refused((double)v.ratio_w)) { return -1; }
    return placed_need(p, &v.placed, x, y);
}

EXTENT(upsample_nearest2d_f32) { return nearest_need(p, &need[1], &need[0]); }
KERNEL_FLAGS(upsample_nearest2d_f32, "oi", PARAMS(Nearest), SMG_PLACED) {
    const Nearest v = nearest_of(c->p);
    const Images g = v.placed.images;
    const size_t W = (size_t)g.W, C = (size_t)g.C;
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const float *row = x + nearest_at(v.placed.tall, oh, v.ratio_h, g.H) * W * C;
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                memcpy(y, row + nearest_at(v.placed.wide, ow, v.ratio_w, g.W) * C, C * sizeof(float));
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(upsample_nearest2d_dx_f32) { return nearest_need(p, &need[0], &need[1]); }
KERNEL(upsample_nearest2d_dx_f32, "oi", PARAMS(Nearest)) {
    const Nearest v = nearest_of(c->p);
    const Images g = v.placed.images;
    const size_t W = (size_t)g.W, C = (size_t)g.C, image = (size_t)g.H * W * C;
    float *dx = OUT(0);
    const float *dy = IN(1);
    for (int32_t n = 0; n < g.N; n++, dx += image) {
        memset(dx, 0, image * sizeof(float));
        for (int32_t oh = 0; oh < g.OH; oh++) {
            float *row = dx + nearest_at(v.placed.tall, oh, v.ratio_h, g.H) * W * C;
            for (int32_t ow = 0; ow < g.OW; ow++, dy += C) {
                float *pixel = row + nearest_at(v.placed.wide, ow, v.ratio_w, g.W) * C;
                for (size_t l = 0; l < C; l++) { pixel[l] += dy[l]; }
            }
        }
    }
    return SMG_NO_FAULT;
}

/* ---- bilinear: ratios as for nearest, but doubles (smg_f64) ---- */

typedef struct {
    PlacedImages placed;
    int32_t align_corners, ratio_h[2], ratio_w[2];
} Bilinear;
UNPACK(bilinear_of, Bilinear)

/* Two neighbours along one axis and their weights. Positions are doubles: a float loses the weight in wide images. */
typedef struct {
    size_t at[2];
    float weight[2];
} Taps;

static Taps taps_of(Place v, int32_t o, int32_t count, int32_t align_corners, double ratio) {
    int32_t low = v.from + o, high = low;
    double part = 0.0;
    if (v.out != v.size) {
        double at = align_corners ? ratio * (double)low : ratio * ((double)low + 0.5) - 0.5;
        if (at < 0.0) { at = 0.0; }
        low = at >= (double)(v.size - 1) ? v.size - 1 : (int32_t)at;
        high = low < v.size - 1 ? low + 1 : low;
        part = at - (double)low;
        if (part > 1.0) { part = 1.0; }
    }
    return (Taps){{(size_t)smg_place(v, low, count), (size_t)smg_place(v, high, count)},
                  {(float)(1.0 - part), (float)part}};
}

static int bilinear_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Bilinear v = bilinear_of(p);
    if (ratio_refused(smg_f64(v.ratio_h)) || ratio_refused(smg_f64(v.ratio_w))) { return -1; }
    return placed_need(p, &v.placed, x, y);
}

EXTENT(upsample_bilinear2d_f32) { return bilinear_need(p, &need[1], &need[0]); }
KERNEL_FLAGS(upsample_bilinear2d_f32, "oi", PARAMS(Bilinear), SMG_PLACED) {
    const Bilinear v = bilinear_of(c->p);
    const Images g = v.placed.images;
    const size_t W = (size_t)g.W, C = (size_t)g.C;
    const double ratio_h = smg_f64(v.ratio_h), ratio_w = smg_f64(v.ratio_w);
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t n = 0; n < g.N; n++, x += (size_t)g.H * W * C) {
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Taps h = taps_of(v.placed.tall, oh, g.H, v.align_corners, ratio_h);
            const float *top = x + h.at[0] * W * C, *bottom = x + h.at[1] * W * C;
            for (int32_t ow = 0; ow < g.OW; ow++, y += C) {
                const Taps w = taps_of(v.placed.wide, ow, g.W, v.align_corners, ratio_w);
                const size_t left = w.at[0] * C, right = w.at[1] * C;
                for (size_t l = 0; l < C; l++) {
                    y[l] = h.weight[0] * (w.weight[0] * top[left + l] + w.weight[1] * top[right + l]) +
                           h.weight[1] * (w.weight[0] * bottom[left + l] + w.weight[1] * bottom[right + l]);
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(upsample_bilinear2d_dx_f32) { return bilinear_need(p, &need[0], &need[1]); }
KERNEL(upsample_bilinear2d_dx_f32, "oi", PARAMS(Bilinear)) {
    const Bilinear v = bilinear_of(c->p);
    const Images g = v.placed.images;
    const size_t W = (size_t)g.W, C = (size_t)g.C, image = (size_t)g.H * W * C;
    const double ratio_h = smg_f64(v.ratio_h), ratio_w = smg_f64(v.ratio_w);
    float *dx = OUT(0);
    const float *dy = IN(1);
    for (int32_t n = 0; n < g.N; n++, dx += image) {
        memset(dx, 0, image * sizeof(float));
        for (int32_t oh = 0; oh < g.OH; oh++) {
            const Taps h = taps_of(v.placed.tall, oh, g.H, v.align_corners, ratio_h);
            for (int32_t ow = 0; ow < g.OW; ow++, dy += C) {
                const Taps w = taps_of(v.placed.wide, ow, g.W, v.align_corners, ratio_w);
                for (int a = 0; a < 2; a++) {
                    for (int b = 0; b < 2; b++) {
                        const float weight = h.weight[a] * w.weight[b];
                        float *pixel = dx + (h.at[a] * W + w.at[b]) * C;
                        if (weight != 0.0f) {
                            for (size_t l = 0; l < C; l++) { pixel[l] += weight * dy[l]; }
                        }
                    }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}
