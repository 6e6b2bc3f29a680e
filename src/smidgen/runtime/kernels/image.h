/* What kernels over images [N,H,W,C] -> [N,OH,OW,C] share: their first check, and sums over rectangles of pixels. */
#ifndef SMG_IMAGE_H
#define SMG_IMAGE_H
#include "../kernel.h"
#include "sum.h"

/* Every family over images begins its parameters with these. x is [N][H][W][C], y is [N][OH][OW][C]. */
typedef struct {
    int32_t N, H, W, C, OH, OW;
} Images;
UNPACK(images_of, Images)

static inline int smg_images_size_ok(int32_t size) { return size >= 1 && size <= 1 << 30; }

/* Bytes of x and y; -1 refuses. Sizes end at 2^30, so that loops may step past the end without overflow. */
static inline int smg_images_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Images v = images_of(p);
    if (v.N < 0 || !smg_images_size_ok(v.H) || !smg_images_size_ok(v.W) || !smg_images_size_ok(v.C)) { return -1; }
    if (!smg_images_size_ok(v.OH) || !smg_images_size_ok(v.OW)) { return -1; }
    const uint64_t pixel = smg_mul(smg_mul((uint64_t)v.N, 4), (uint64_t)v.C);
    *x = smg_mul(smg_mul(pixel, (uint64_t)v.H), (uint64_t)v.W);
    *y = smg_mul(smg_mul(pixel, (uint64_t)v.OH), (uint64_t)v.OW);
    return 0;
}

/* Kernels that can be told which part of an image they have go on with this, for rows and for columns: the lengths of
 * the whole axis of x and of y, the first place that is there and the first to make. All of it: {H, OH, 0, 0}. */
typedef struct {
    int32_t size, out, first, from;
} Place;
typedef struct {
    Images images;
    Place tall, wide;
} PlacedImages;
_Static_assert(offsetof(PlacedImages, tall.first) == SMG_TALL * 4, "the loader looks for it there");
_Static_assert(offsetof(PlacedImages, wide.first) == SMG_WIDE * 4, "the loader looks for it there");

static inline int smg_place_ok(Place v) {
    return smg_images_size_ok(v.size) && smg_images_size_ok(v.out) && v.first >= 0 && v.from >= 0 && v.from <= 1 << 30;
}
/* Of the `count` places that are there, the one that is `at` of the whole axis, or the nearest. */
static inline int32_t smg_place(Place v, int32_t at, int32_t count) {
    if (at <= v.first) { return 0; }
    return at - v.first < count ? at - v.first : count - 1;
}

#define SMG_CHANNELS 16 /* reduced together, in registers */

/* Does v replace the largest value so far? The first of equal values stays; NaN wins over everything. */
static inline int smg_beats(float v, float best) { return (v > best) | (v != v); }

/* y = sum over rows x cols pixels / divisor, for `count` channels; blocks join lines, lines join the total. */
static inline void smg_mean_lanes(float *y, const float *x, size_t row_step, size_t C, int32_t rows, int32_t cols,
                                  float divisor, int32_t count) {
    float total[SMG_CHANNELS], line[SMG_CHANNELS], part[SMG_CHANNELS];
    for (int32_t l = 0; l < count; l++) { total[l] = 0; }
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t l = 0; l < count; l++) { line[l] = 0; }
        for (int32_t j0 = 0; j0 < cols; j0 += SMG_BLOCK) {
            const int32_t more = cols - j0 < SMG_BLOCK ? cols - j0 : SMG_BLOCK;
            for (int32_t l = 0; l < count; l++) { part[l] = 0; }
            for (int32_t j = 0; j < more; j++) {
                const float *v = x + (size_t)i * row_step + (size_t)(j0 + j) * C;
                for (int32_t l = 0; l < count; l++) { part[l] += v[l]; }
            }
            for (int32_t l = 0; l < count; l++) { line[l] += part[l]; }
        }
        for (int32_t l = 0; l < count; l++) { total[l] += line[l]; }
    }
    for (int32_t l = 0; l < count; l++) { y[l] = total[l] / divisor; }
}

static inline void smg_mean_rectangle(float *y, const float *x, int32_t W, int32_t C, int32_t rows, int32_t cols,
                                      float divisor) {
    const size_t row_step = (size_t)W * (size_t)C;
    int32_t c0 = 0;
    for (; c0 + SMG_CHANNELS <= C; c0 += SMG_CHANNELS) {
        smg_mean_lanes(y + c0, x + c0, row_step, (size_t)C, rows, cols, divisor, SMG_CHANNELS);
    }
    if (c0 < C) { smg_mean_lanes(y + c0, x + c0, row_step, (size_t)C, rows, cols, divisor, C - c0); }
}

/* dx += dy * share at every pixel of the rectangle. */
static inline void smg_spread_rectangle(float *dx, const float *dy, int32_t W, int32_t C, int32_t rows, int32_t cols,
                                        float share) {
    for (int32_t i = 0; i < rows; i++) {
        float *v = dx + (size_t)i * (size_t)W * (size_t)C;
        for (int32_t j = 0; j < cols; j++, v += C) {
            for (int32_t l = 0; l < C; l++) { v[l] += dy[l] * share; }
        }
    }
}
#endif
