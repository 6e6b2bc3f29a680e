/* Convolution in integers with one weight per output and tap (C/G = 1; M = O/C outputs for each channel). Sixteen
 * outputs at a time, each in a lane of its own: their taps are laid out as [tap][lane] once for the whole image. */
#include "qlayers.h"

#define LANES(l) for (int l = 0; l < QTAPS; l++)

/* acc += (x - zero) * tap for the lanes of neighbouring channels. */
static inline void lanes_plain(int32_t *acc, const int8_t *x, const int16_t *t, int32_t zero) {
    LANES(l) { acc[l] += (int16_t)(x[l] - zero) * t[l]; }
}

/* The pixel whose window starts at (ih, iw); x begins with the image. */
static void pixel(const Conv *v, int32_t *acc, const int8_t *x, const int16_t *taps, int32_t ih, int32_t iw,
                  int32_t zero, const int32_t *from, int width, int plain) {
    int32_t h0, h1, w0, w1;
    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    for (int32_t kh = h0; kh < h1; kh++) {
        const int8_t *row = x + (ptrdiff_t)(ih + kh * v->DH) * v->W * v->C;
        for (int32_t kw = w0; kw < w1; kw++) {
            const int8_t *a = row + (ptrdiff_t)(iw + kw * v->DW) * v->C;
            const int16_t *t = taps + ((ptrdiff_t)kh * v->KW + kw) * QTAPS;
            if (plain) {
                lanes_plain(acc, a + from[0], t, zero);
            } else {
                for (int l = 0; l < width; l++) { acc[l] += (int16_t)(a[from[l]] - zero) * t[l]; }
            }
        }
    }
}

void smg_qdepthwise(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const int8_t *w, const int32_t *b,
                    const int32_t *m, int16_t *taps) {
    const int32_t M = v->O / v->C, filter = v->KH * v->KW;
    int32_t from[QTAPS], acc[QTAPS];
    for (int32_t o = 0, width; o < v->O; o += width) {
        width = v->O - o < QTAPS ? v->O - o : QTAPS;
        const int plain = M == 1 && width == QTAPS;
        for (int l = 0; l < width; l++) {
            from[l] = (o + l) / M;
            for (int32_t k = 0; k < filter; k++) { taps[k * QTAPS + l] = w[(ptrdiff_t)(o + l) * filter + k]; }
        }
        for (int32_t n = 0; n < v->N; n++) {
            const int8_t *image = x + (ptrdiff_t)n * v->H * v->W * v->C;
            int8_t *out = y + (ptrdiff_t)n * v->OH * v->OW * v->O + o;
            for (int32_t oh = 0; oh < v->OH; oh++) {
                for (int32_t ow = 0; ow < v->OW; ow++, out += v->O) {
                    for (int l = 0; l < width; l++) { acc[l] = 0; }
                    pixel(v, acc, image, taps, oh * v->SH - v->PT, ow * v->SW - v->PL, q->zero, from, width, plain);
                    for (int l = 0; l < width; l++) {
                        out[l] = smg_requantize(smg_wrap_add(acc[l], b[o + l]), m[o + l], q->requantize);
                    }
                }
            }
        }
    }
}
