/* Windows of images as an axis of their own, and back: images [N][H][W][C], windows [N][OH][OW][KH][KW][C]. */
#include "conv.h"

/* As the fields of Conv of the same names. */
typedef struct {
    int32_t N, H, W, C, OH, OW, KH, KW, SH, SW, PT, PL, DH, DW;
} Windows;
UNPACK(windows_of, Windows)

/* Bytes of the image x and of its windows y; -1 refuses. */
static int windows_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Windows v = windows_of(p);
    if (v.N < 0 || v.C < 1) { return -1; }
    if (!conv_axis_ok(v.H, v.OH, v.KH, v.SH, v.PT, v.DH, 1)) { return -1; }
    if (!conv_axis_ok(v.W, v.OW, v.KW, v.SW, v.PL, v.DW, v.C)) { return -1; }
    const uint64_t pixel = smg_mul((uint64_t)v.N, 4 * (uint64_t)v.C);
    *x = smg_mul(smg_mul(pixel, (uint64_t)v.H), (uint64_t)v.W);
    *y = smg_mul(smg_mul(smg_mul(pixel, (uint64_t)v.OH), (uint64_t)v.OW), smg_mul((uint64_t)v.KH, (uint64_t)v.KW));
    return 0;
}

/* The C channels of a place in a window and of its pixel; no pixel in the padding. */
static inline void take(float *place, const float *pixel, size_t C) {
    if (pixel) {
        memcpy(place, pixel, C * sizeof(float));
    } else {
        memset(place, 0, C * sizeof(float));
    }
}

static inline void put(const float *place, float *pixel, size_t C) {
    if (pixel) {
        for (size_t l = 0; l < C; l++) { pixel[l] += place[l]; }
    }
}

/* Every window of every sample in turn, place by place: taken from the image, or added to it. */
static inline void each_place(const Windows *v, float *image, float *window, const int adds) {
    const size_t C = (size_t)v->C, row = (size_t)v->W * C;
    for (int32_t n = 0; n < v->N; n++, image += (size_t)v->H * row) {
        for (int32_t oh = 0; oh < v->OH; oh++) {
            for (int32_t ow = 0; ow < v->OW; ow++) {
                for (int32_t kh = 0; kh < v->KH; kh++) {
                    const int32_t h = oh * v->SH - v->PT + kh * v->DH;
                    float *line = h >= 0 && h < v->H ? image + (size_t)h * row : NULL;
                    for (int32_t kw = 0; kw < v->KW; kw++, window += C) {
                        const int32_t w = ow * v->SW - v->PL + kw * v->DW;
                        float *pixel = line && w >= 0 && w < v->W ? line + (size_t)w * C : NULL;
                        if (adds) {
                            put(window, pixel, C);
                        } else {
                            take(window, pixel, C);
                        }
                    }
                }
            }
        }
    }
}

EXTENT(im2col_f32) { return windows_need(p, &need[1], &need[0]); }
KERNEL(im2col_f32, "oi", PARAMS(Windows)) {
    const Windows v = windows_of(c->p);
    each_place(&v, OUT(1), OUT(0), 0);
    return SMG_NO_FAULT;
}

/* A pixel is the sum of its windows in the order of the windows. */
EXTENT(col2im_f32) { return windows_need(p, &need[0], &need[1]); }
KERNEL(col2im_f32, "oi", PARAMS(Windows)) {
    const Windows v = windows_of(c->p);
    memset(OUT(0), 0, (size_t)v.N * (size_t)v.H * (size_t)v.W * (size_t)v.C * sizeof(float));
    each_place(&v, OUT(0), OUT(1), 1);
    return SMG_NO_FAULT;
}
