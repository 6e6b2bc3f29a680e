/* Input gradients of depthwise layers in integers, eight channels at a time, each in a lane of its own: their taps are
 * laid out as [tap][lane] once for the whole image, and their sums take the scale of the channel.
 *
 * In place, the rows of dy that a window still reaches are kept in a ring, as row % rows:
 *
 *     dy   . . . . .      ring        Row ih of dx reads rows up to ih + PT of dy. They are copied before; no row is
 *          . . . . .  ->  . . . . .   in the ring for longer than the window is high. */
#include "qback16.h"

#define LANES(l) for (int l = 0; l < LANES16; l++)

typedef struct {
    const int16_t *from; /* row 0 of dy */
    ptrdiff_t row, step; /* mantissas from row to row and from pixel to pixel */
    int32_t rows;        /* row r is at r % rows */
} Rows16;

/* sum[lane] of the pixel (ih, iw). */
static void pixel(const Conv *v, int32_t *restrict sum, const Rows16 *r, const int16_t *restrict taps, int32_t ih,
                  int32_t iw, int width) {
    int32_t s[LANES16] = {0};
    for (int32_t kh = 0; kh < v->KH; kh++) {
        const int32_t h = ih + v->PT - kh * v->DH, oh = v->SH == 1 ? h : h / v->SH;
        if (h < 0) { break; }
        if (oh >= v->OH || oh * v->SH != h) { continue; }
        const int16_t *row = r->from + (r->rows ? oh % r->rows : oh) * r->row;
        const int16_t *t = taps + (ptrdiff_t)kh * v->KW * LANES16;
        for (int32_t kw = 0; kw < v->KW; kw++, t += LANES16) {
            const int32_t w = iw + v->PL - kw * v->DW, ow = v->SW == 1 ? w : w / v->SW;
            if (w < 0) { break; }
            if (ow >= v->OW || ow * v->SW != w) { continue; }
            const int16_t *d = row + ow * r->step;
            if (width == LANES16) {
                LANES(l) { s[l] += d[l] * t[l]; }
            } else {
                for (int l = 0; l < width; l++) { s[l] += d[l] * t[l]; }
            }
        }
    }
    memcpy(sum, s, sizeof s);
}

uint32_t smg_qdepthwise_back(const Conv *v, int16_t *dx, const int16_t *dy, const QWeights *w, const int32_t *m,
                             int32_t shift, int16_t *taps, int16_t *ring, int32_t rows) {
    const int32_t filter = v->KH * v->KW;
    const ptrdiff_t x_image = (ptrdiff_t)v->H * v->W * v->C, y_image = (ptrdiff_t)v->OH * v->OW * v->O;
    uint32_t seen = 0;
    for (int32_t at = 0, width; at < v->C; at += width) {
        width = v->C - at < LANES16 ? v->C - at : LANES16;
        for (int l = 0; l < width; l++) {
            for (int32_t k = 0; k < filter; k++) {
                int8_t one;
                qweights_part(w, &one, at + l, filter, k, 1);
                taps[(ptrdiff_t)k * LANES16 + l] = one;
            }
        }
        for (int32_t n = 0; n < v->N; n++) {
            const int16_t *y = dy + n * y_image + at;
            const Rows16 r = rows ? (Rows16){ring, (ptrdiff_t)v->OW * LANES16, LANES16, rows}
                                  : (Rows16){y, (ptrdiff_t)v->OW * v->O, v->O, 0};
            int32_t copied = 0;
            for (int32_t ih = 0; ih < v->H; ih++) {
                const int32_t reach = v->PT > 0 ? ih + v->PT : ih;
                for (; rows && copied <= reach && copied < v->OH; copied++) {
                    const int16_t *from = y + (ptrdiff_t)copied * v->OW * v->O;
                    int16_t *to = ring + copied % rows * r.row;
                    for (int32_t ow = 0; ow < v->OW; ow++, from += v->O, to += LANES16) {
                        for (int l = 0; l < width; l++) { to[l] = from[l]; }
                    }
                }
                int16_t *out = dx ? dx + n * x_image + (ptrdiff_t)ih * v->W * v->C + at : NULL;
                for (int32_t iw = 0; iw < v->W; iw++) {
                    int32_t sum[LANES16];
                    pixel(v, sum, &r, taps, ih, iw, (int)width);
                    for (int l = 0; l < width; l++) {
                        const int32_t scaled = (int32_t)(((int64_t)sum[l] * m[at + l] + ((int64_t)1 << 31)) >> 32);
                        seen |= smg_magnitude(scaled);
                        if (dx) { out[l] = smg_narrow16(scaled, shift); }
                    }
                    if (dx) { out += v->C; }
                }
            }
        }
    }
    return seen;
}

/* Rows of the ring. */
static int32_t reached(const Conv *v) {
    const int32_t rows = (v->KH - 1) * v->DH + 1 + (v->PT < 0 ? -v->PT : 0);
    return rows < v->H ? rows : v->H;
}

EXTENT(qdepthwise_dx16_i16) {
    const Back16 b = back16_of(p);
    const Conv *v = &b.own;
    if (conv_need(p, &need[0], &need[4], &need[2]) || b.exponent < -200 || b.exponent > 200) { return -1; }
    if (smg_mul((uint64_t)v->KH, (uint64_t)v->KW) > 511 || !back16_by_channel(v)) { return -1; }
    if (v->SH != 1 || v->SW != 1 || v->OH != v->H || v->OW != v->W) { return -1; }
    need[0] /= 2;
    need[2] /= 2;
    need[1] = need[3] = SMG_ABOUT;
    need[4] /= 4;
    need[5] = smg_mul((uint64_t)v->O, sizeof(int32_t));
    need[6] = sizeof(int32_t);
    const uint64_t ring = smg_mul((uint64_t)reached(v), (uint64_t)v->W);
    need[7] = smg_mul(smg_add((uint64_t)back16_terms(v), ring), LANES16 * sizeof(int16_t));
    return 0;
}
KERNEL(qdepthwise_dx16_i16, "ooiiiiis", PARAMS(Back16)) {
    const Back16 p = back16_of(c->p);
    const Conv *v = &p.own;
    const QWeights w = {.w = IN_AS(int8_t, 4)};
    const int32_t *m = IN_AS(int32_t, 5), hint = smg_hint(*IN_AS(int32_t, 6));
    const int32_t base = smg_exponent_of(IN_AS(int32_t, 3)) + p.exponent + 1, rows = reached(v);
    int16_t *dx = OUT_AS(int16_t, 0), *taps = OUT_AS(int16_t, 7);
    int16_t *ring = taps + (ptrdiff_t)back16_terms(v) * LANES16;
    const int16_t *dy = IN_AS(int16_t, 2);
    int32_t bits = hint, *about = OUT_AS(int32_t, 1);
    if (hint == 0) { bits = smg_bit_length(smg_qdepthwise_back(v, NULL, dy, &w, m, 0, taps, ring, rows)); }
    const Fit16 f = smg_fitted(base, bits, SMG_HEADROOM);
    const uint32_t seen = smg_qdepthwise_back(v, dx, dy, &w, m, f.shift, taps, ring, rows);
    about[0] = f.exponent;
    about[1] = smg_bit_length(seen);
    return SMG_NO_FAULT;
}
