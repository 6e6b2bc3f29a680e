/* Weight gradients in int16: sums over positions of mantissas dy[N][OH][OW][O] and x[N][H][W][C] in int8, less its zero
 * point, times 2^exponent. Where they go is the sink's business (sink.h, rounded.h).
 *
 *     dy, four outputs      positions --->       Four outputs are laid out side by side, `POSITIONS` at a time, and
 *     x, sixteen inputs     | positions          multiplied with x as it lies there. The zero point times the sum of
 *                                                the mantissas is taken away at the end.
 *
 * 256 products of 15 and 7 bits, or of 15 and 8, fit 32 bits; their sums are added up in 64. */
#include "gradients16.h"
#include "outer16.h"
#include "rounded.h"

enum { POSITIONS = 32, MOST_ADDED = 256, TILE16 = PIXELS * SMG_RUN };

typedef struct {
    Conv own;
    int32_t zero;
} Sums16;
UNPACK(sums16_of, Sums16)

typedef struct {
    int64_t total[TILE16];
    int32_t sum[TILE16], added; /* products in each sum */
    int64_t shift[PIXELS];      /* sums of mantissas */
} Sum16;

static void flush(Sum16 *s) {
    for (int i = 0; i < TILE16; i++) {
        s->total[i] += s->sum[i];
        s->sum[i] = 0;
    }
    s->added = 0;
}

/* `count` positions: outputs dy[0] … dy[outputs - 1] of each, inputs x[0] … x[width - 1]. */
static void positions(Sum16 *s, const int16_t *dy, ptrdiff_t dy_step, int outputs, const int8_t *x, ptrdiff_t x_step,
                      int32_t count, int width) {
    int16_t side[PIXELS * POSITIONS];
    for (int32_t few; count > 0; count -= few, x += few * x_step) {
        few = count < POSITIONS ? count : POSITIONS;
        memset(side, 0, sizeof side);
        for (int32_t i = 0; i < few; i++, dy += dy_step) {
            for (int o = 0; o < outputs; o++) {
                side[o * POSITIONS + i] = dy[o];
                s->shift[o] += dy[o];
            }
        }
        if (s->added + few > MOST_ADDED) { flush(s); }
        smg_outer16(s->sum, side, POSITIONS, x, x_step, few, width);
        s->added += few;
    }
}

/* `count` finished sums of a row of the gradient. */
static void finish(const Sink *sink, const int64_t *total, int64_t less, float power, size_t at, int count) {
    float tile[SMG_RUN], before[SMG_RUN] = {0};
    if (sink->mode == SMG_ACC) { smg_sink_begin(sink, before, at, (size_t)count); }
    for (int l = 0; l < count; l++) { /* the product is exact */
        const float own = (float)(total[l] - less) * power;
        tile[l] = sink->mode == SMG_ACC ? before[l] + own : own;
    }
    smg_sink_end(sink, tile, at, (size_t)count);
}

/* All positions of one tap: outputs from o on, inputs from `in` on. */
static void tap_sums(Sum16 *s, const Conv *v, const int16_t *dy, const int8_t *x, int32_t o, int outputs, int32_t in,
                     int width, int32_t kh, int32_t kw) {
    const int32_t down = kh * v->DH - v->PT, right = kw * v->DW - v->PL;
    memset(s, 0, sizeof *s);
    if (v->KH * v->KW == 1 && v->SH * v->SW == 1 && down == 0 && right == 0 && v->OH == v->H && v->OW == v->W) {
        const int32_t all = v->N * v->OH * v->OW;
        positions(s, dy + o, v->O, outputs, x + in, v->C, all, width);
        flush(s);
        return;
    }
    int32_t first = right >= 0 ? 0 : (-right + v->SW - 1) / v->SW; /* the outputs whose input is inside */
    const int32_t beyond = v->W - 1 - right;
    int32_t last = beyond < 0 ? 0 : beyond / v->SW + 1;
    last = last < v->OW ? last : v->OW;
    for (int32_t n = 0; n < v->N && first < last; n++) {
        for (int32_t oh = 0; oh < v->OH; oh++) {
            const int32_t ih = oh * v->SH + down;
            if (ih < 0 || ih >= v->H) { continue; }
            const int16_t *d = dy + (((ptrdiff_t)n * v->OH + oh) * v->OW + first) * v->O + o;
            const int8_t *from = x + (((ptrdiff_t)n * v->H + ih) * v->W + first * v->SW + right) * v->C + in;
            positions(s, d, v->O, outputs, from, (ptrdiff_t)v->SW * v->C, last - first, width);
        }
    }
    flush(s);
}

static SmgFault sums(const SmgCall *c, const Sink *sink) {
    const Sums16 p = sums16_of(c->p);
    const Conv *v = &p.own;
    const int32_t Cg = v->C / v->G, Og = v->O / v->G;
    const float power = smg_power(smg_exponent_of(SINK_IN_AS(int32_t, sink, 1)));
    const int16_t *dy = SINK_IN_AS(int16_t, sink, 0);
    const int8_t *x = SINK_IN_AS(int8_t, sink, 2);
    Sum16 s;
    for (int32_t o = 0, outputs; o < v->O; o += outputs) {
        const int32_t g = o / Og, left = (g + 1) * Og - o;
        outputs = left < PIXELS ? left : PIXELS;
        for (int32_t tap = 0; tap < v->KH * v->KW; tap++) {
            for (int32_t in = 0; in < Cg; in += SMG_RUN) {
                const int width = Cg - in < SMG_RUN ? (int)(Cg - in) : SMG_RUN;
                tap_sums(&s, v, dy, x, o, (int)outputs, g * Cg + in, width, tap / v->KW, tap % v->KW);
                for (int i = 0; i < outputs; i++) {
                    const size_t at = ((size_t)(o + i) * (size_t)(v->KH * v->KW) + (size_t)tap) * (size_t)Cg;
                    finish(sink, s.total + (ptrdiff_t)i * SMG_RUN, s.shift[i] * p.zero, power, at + (size_t)in, width);
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

/* Bytes of dy, about and x. */
static int sums_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const Sums16 v = sums16_of(p);
    uint64_t x, w, y;
    if (conv_need(p, &x, &w, &y) || v.zero < -128 || v.zero > 127) { return -1; }
    own[0] = y / 2;
    own[1] = SMG_ABOUT;
    own[2] = x / 4;
    *elements = w / 4;
    return 0;
}

#define LAYER16(name)                                                                  \
    static int name##_need(const int32_t *p, uint64_t *own, uint64_t *elements) {      \
        return sums_need(p, own, elements);                                            \
    }                                                                                  \
    static SmgFault name(const SmgCall *c, const Sink *sink) { return sums(c, sink); } \
    SINK_KERNEL_(name, _f32, SMG_STORE, "o", 3, "iii", "", PARAMS(Sums16), "")         \
    SINK_KERNEL_(name, _acc_f32, SMG_ACC, "u", 3, "iii", "", PARAMS(Sums16), "")       \
    ROUNDED_KERNELS(name, 3, "iii", PARAMS(Sums16), i8)
LAYER16(qconv2d_dw16)
LAYER16(qlinear_dw16)

/* db[C] of dy[R][C] */
typedef struct {
    int32_t R, C;
} Bias16;
UNPACK(bias16_of, Bias16)

static int bias_dw16_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const Bias16 v = bias16_of(p);
    if (v.R < 0 || v.C < 1) { return -1; }
    own[0] = smg_mul(smg_mul((uint64_t)v.R, (uint64_t)v.C), sizeof(int16_t));
    own[1] = SMG_ABOUT;
    *elements = (uint64_t)v.C;
    return 0;
}
static SmgFault bias_dw16(const SmgCall *c, const Sink *sink) {
    const Bias16 v = bias16_of(c->p);
    const float power = smg_power(smg_exponent_of(SINK_IN_AS(int32_t, sink, 1)));
    const int32_t most = 1 << 16; /* of 16 bits in 32 */
    for (int32_t at = 0, width; at < v.C; at += width) {
        int64_t total[SMG_RUN] = {0};
        width = v.C - at < SMG_RUN ? v.C - at : SMG_RUN;
        const int16_t *dy = SINK_IN_AS(int16_t, sink, 0) + at;
        for (int32_t r = 0, few; r < v.R; r += few) {
            int32_t sum[SMG_RUN] = {0};
            few = v.R - r < most ? v.R - r : most;
            for (int32_t i = 0; i < few; i++, dy += v.C) {
                for (int l = 0; l < width; l++) { sum[l] += dy[l]; }
            }
            for (int l = 0; l < width; l++) { total[l] += sum[l]; }
        }
        finish(sink, total, 0, power, (size_t)at, (int)width);
    }
    return SMG_NO_FAULT;
}
SINK_KERNEL_(bias_dw16, _f32, SMG_STORE, "o", 2, "ii", "", PARAMS(Bias16), "")
SINK_KERNEL_(bias_dw16, _acc_f32, SMG_ACC, "u", 2, "ii", "", PARAMS(Bias16), "")
ROUNDED_KERNELS(bias_dw16, 2, "ii", PARAMS(Bias16), i32)
