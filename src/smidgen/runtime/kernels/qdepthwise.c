/* Convolution in integers with one weight per output and tap (C/G = 1; M = O/C outputs for each channel). Sixteen
 * outputs at a time, each in a lane of its own: their taps are laid out as [tap][lane] once for the whole image. */
#include "qlayers.h"

#define LANES(l) for (int l = 0; l < QTAPS; l++)

/* Sums of the pixel whose window starts at (ih, iw); x begins with the image. A product has 16 bits. */
static void pixel_plain(const Conv *v, int32_t *restrict sum, const int8_t *restrict x, const int16_t *restrict taps,
                        int32_t ih, int32_t iw, int32_t zero) {
    int32_t h0, h1, w0, w1, s[QTAPS] = {0};
    const int16_t z = (int16_t)zero;
    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    for (int32_t kh = h0; kh < h1; kh++) {
        const int8_t *a = x + ((ptrdiff_t)(ih + kh * v->DH) * v->W + iw + w0 * v->DW) * v->C;
        const int16_t *t = taps + ((ptrdiff_t)kh * v->KW + w0) * QTAPS;
        for (int32_t kw = w0; kw < w1; kw++, a += (ptrdiff_t)v->DW * v->C, t += QTAPS) {
            LANES(l) { s[l] += (int16_t)((int16_t)(a[l] - z) * t[l]); }
        }
    }
    memcpy(sum, s, sizeof s);
}

/* The same for outputs of which several, or none, belong to a channel. */
static void pixel(const Conv *v, int32_t *sum, const int8_t *x, const int16_t *taps, int32_t ih, int32_t iw,
                  int32_t zero, const int32_t *from, int width) {
    int32_t h0, h1, w0, w1;
    conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
    conv_clip(iw, v->KW, v->DW, v->W, &w0, &w1);
    for (int l = 0; l < width; l++) { sum[l] = 0; }
    for (int32_t kh = h0; kh < h1; kh++) {
        const int8_t *row = x + (ptrdiff_t)(ih + kh * v->DH) * v->W * v->C;
        for (int32_t kw = w0; kw < w1; kw++) {
            const int8_t *a = row + (ptrdiff_t)(iw + kw * v->DW) * v->C;
            const int16_t *t = taps + ((ptrdiff_t)kh * v->KW + kw) * QTAPS;
            for (int l = 0; l < width; l++) { sum[l] += (a[from[l]] - zero) * t[l]; }
        }
    }
}

void smg_qdepthwise(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                    const int32_t *m, int16_t *taps) {
    const int32_t M = v->O / v->C, filter = v->KH * v->KW;
    int32_t from[QTAPS], sum[QTAPS];
    for (int32_t o = 0, width; o < v->O; o += width) {
        width = v->O - o < QTAPS ? v->O - o : QTAPS;
        const int plain = M == 1 && width == QTAPS;
        for (int l = 0; l < width; l++) {
            from[l] = (o + l) / M;
            const int8_t *own = qweights_rows(w, o + l, 1, filter);
            for (int32_t k = 0; k < filter; k++) { taps[k * QTAPS + l] = own[k]; }
        }
        for (int32_t n = 0; n < v->N; n++) {
            const int8_t *image = x + (ptrdiff_t)n * v->H * v->W * v->C;
            int8_t *out = y + (ptrdiff_t)n * v->OH * v->OW * v->O + o;
            for (int32_t oh = 0; oh < v->OH; oh++) {
                for (int32_t ow = 0; ow < v->OW; ow++, out += v->O) {
                    const int32_t ih = oh * v->SH - v->PT, iw = ow * v->SW - v->PL;
                    if (plain) {
                        pixel_plain(v, sum, image + from[0], taps, ih, iw, q->zero);
                    } else {
                        pixel(v, sum, image, taps, ih, iw, q->zero, from, (int)width);
                    }
                    smg_requantize_run(out, sum, b + o, m + o, (int)width, q->requantize);
                }
            }
        }
    }
}
