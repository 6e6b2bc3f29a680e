/* Input gradients of layers in integers: dx[N][H][W][C] of mantissas dy[N][OH][OW][O] and w[O][KH][KW][C/G] in int8.
 *
 *     mantissas, four pixels  ---- K ----   K = taps * outputs of a group. Those that a pixel meets are multiplied by
 *                             ---- K ----   the scale of their output once, and rounded to the bits for which all sums
 *     w, sixteen inputs       | K           stay below 2^31; 0 where a tap meets no output.
 *
 * The exponent of dx is the one that the gain expects. Where it expects nothing yet, all is computed twice. */
#include "outer16.h"
#include "qback16.h"

enum { FEW = 16 }; /* terms of a weight with a slice that are put together at a time */

typedef struct {
    Conv v;
    const int16_t *dy, *m;
    const QWeights *w;
    int16_t *pixels;
    int32_t K, down; /* of a product of mantissa and multiplier */
} Job;

/* The mantissas that the pixel meets, in the order [tap][output], of the outputs from `from` on. */
static void meet(const Job *j, int16_t *to, int32_t n, int32_t ih, int32_t iw, int32_t from) {
    const Conv *v = &j->v;
    const int32_t Og = v->O / v->G, half = 1 << (j->down - 1), down = j->down;
    const int16_t *m = j->m + from;
    for (int32_t kh = 0; kh < v->KH; kh++) {
        const int32_t h = ih + v->PT - kh * v->DH;
        for (int32_t kw = 0; kw < v->KW; kw++, to += Og) {
            const int32_t w = iw + v->PL - kw * v->DW, oh = h / v->SH, ow = w / v->SW;
            if (h < 0 || w < 0 || oh >= v->OH || ow >= v->OW || oh * v->SH != h || ow * v->SW != w) {
                memset(to, 0, (size_t)Og * sizeof *to);
                continue;
            }
            const int16_t *d = j->dy + (((ptrdiff_t)n * v->OH + oh) * v->OW + ow) * v->O + from;
            for (int32_t o = 0; o < Og; o++) { to[o] = (int16_t)((d[o] * m[o] + half) >> down); }
        }
    }
}

/* sum[pixel][input]: `width` inputs from c on, of the group whose first output is `from`. */
static void block(const Job *j, int32_t *sum, int32_t from, int32_t c, int width) {
    const int32_t Og = j->v.O / j->v.G, taps = j->v.KH * j->v.KW, Cg = j->v.C / j->v.G;
    const ptrdiff_t length = (ptrdiff_t)taps * Cg;
    memset(sum, 0, PIXELS * SMG_RUN * sizeof *sum);
    for (int32_t tap = 0; tap < taps; tap++) {
        const int16_t *p = j->pixels + (ptrdiff_t)tap * Og;
        const ptrdiff_t at = (ptrdiff_t)tap * Cg + c;
        if (!j->w->learned) {
            smg_outer16(sum, p, j->K, j->w->w + from * length + at, length, Og, width);
            continue;
        }
        int8_t part[FEW * SMG_RUN];
        for (int32_t o = 0, few; o < Og; o += few) {
            few = Og - o < FEW ? Og - o : FEW;
            for (int32_t k = 0; k < few; k++) {
                qweights_part(j->w, part + (ptrdiff_t)k * SMG_RUN, (ptrdiff_t)from + o + k, length, at, width);
            }
            smg_outer16(sum, p + o, j->K, part, SMG_RUN, few, width);
        }
    }
}

/* All of dx, or nothing where that is NULL; returns the magnitudes of all sums. */
static uint32_t sums(const Job *j, int16_t *dx, int32_t shift) {
    const Conv *v = &j->v;
    const int32_t Cg = v->C / v->G, Og = v->O / v->G;
    int32_t n = 0, ih = 0, iw = 0, sum[PIXELS * SMG_RUN];
    uint32_t seen = 0;
    for (ptrdiff_t at = 0, left = (ptrdiff_t)v->N * v->H * v->W; left > 0; left -= PIXELS, at += PIXELS) {
        const int count = left < PIXELS ? (int)left : PIXELS;
        int32_t n1 = n, ih1 = ih, iw1 = iw;
        for (int32_t g = 0; g < v->G; g++) {
            n1 = n;
            ih1 = ih;
            iw1 = iw;
            for (int i = 0; i < PIXELS; i++) {
                int16_t *to = j->pixels + (ptrdiff_t)i * j->K;
                if (i >= count) { /* computed and not looked at */
                    memset(to, 0, (size_t)j->K * sizeof *to);
                    continue;
                }
                meet(j, to, n1, ih1, iw1, g * Og);
                if (++iw1 == v->W) {
                    iw1 = 0;
                    if (++ih1 == v->H) {
                        ih1 = 0;
                        n1++;
                    }
                }
            }
            for (int32_t c = 0; c < Cg; c += SMG_RUN) {
                const int width = Cg - c < SMG_RUN ? (int)(Cg - c) : SMG_RUN;
                block(j, sum, g * Og, c, width);
                for (int i = 0; i < count; i++) {
                    const int32_t *s = sum + (ptrdiff_t)i * SMG_RUN;
                    for (int l = 0; l < width; l++) { seen |= smg_magnitude(s[l]); }
                    if (!dx) { continue; }
                    int16_t *to = dx + (at + i) * v->C + g * Cg + c;
                    if (shift > 0) {
                        for (int l = 0; l < width; l++) { to[l] = smg_right16(s[l], shift); }
                    } else {
                        for (int l = 0; l < width; l++) { to[l] = smg_left16(s[l], -shift); }
                    }
                }
            }
        }
        n = n1;
        ih = ih1;
        iw = iw1;
    }
    return seen;
}

/* Outputs dx, about; the first inputs dy, about; w is input 4, and the others begin with m at `at`. */
static void back(const SmgCall *c, const QWeights *w, int at) {
    const Back16 p = back16_of(c->p);
    const Conv *v = &p.own;
    const int32_t terms = back16_terms(v), bits = back16_bits(terms), hint = smg_hint(*IN_AS(int32_t, at + 1));
    const int channels = back16_by_channel(v);
    const int32_t base = smg_exponent_of(IN_AS(int32_t, 3)) + p.exponent + (channels ? 1 : SMG_MANTISSA - bits);
    int16_t *dx = OUT_AS(int16_t, 0), *room = OUT_AS(int16_t, at + 2);
    int32_t *about = OUT_AS(int32_t, 1);
    const Job j = {*v, IN_AS(int16_t, 2), IN_AS(int16_t, at), w, room, terms, 2 * SMG_MANTISSA - bits};
    uint32_t seen = 0;
    Fit16 f = smg_fitted(base, hint, SMG_HEADROOM);
    for (int measured = hint > 0; measured < 2; measured++) {
        int16_t *to = measured ? dx : NULL;
        seen = channels ? smg_qdepthwise_back(v, to, j.dy, w, IN_AS(int32_t, at), f.shift, room, NULL, 0)
                        : sums(&j, to, f.shift);
        if (measured) { break; }
        f = smg_fitted(base, smg_bit_length(seen), SMG_HEADROOM);
    }
    about[0] = f.exponent;
    about[1] = smg_bit_length(seen);
}

/* Bytes of dx, about, dy, about, w, m, gain and scratch. */
static int back_need(const int32_t *p, uint64_t *need) {
    const Back16 b = back16_of(p);
    const Conv *v = &b.own;
    if (conv_need(p, &need[0], &need[4], &need[2])) { return -1; }
    if (smg_mul((uint64_t)v->KH * (uint64_t)v->KW, (uint64_t)(v->O / v->G)) > 65535) { return -1; }
    if (b.exponent < -200 || b.exponent > 200) { return -1; }
    const int channels = back16_by_channel(v);
    need[0] /= 2;
    need[2] /= 2;
    need[1] = need[3] = SMG_ABOUT;
    need[4] /= 4;
    need[5] = smg_mul((uint64_t)v->O, channels ? sizeof(int32_t) : sizeof(int16_t));
    need[6] = sizeof(int32_t);
    const uint64_t lanes = channels ? LANES16 : PIXELS;
    need[7] = smg_mul((uint64_t)back16_terms(v), lanes * sizeof(int16_t));
    return 0;
}
EXTENT(qconv2d_dx16_i16) { return back_need(p, need); }
KERNEL(qconv2d_dx16_i16, "ooiiiiis", PARAMS(Back16)) {
    const QWeights w = {.w = IN_AS(int8_t, 4)};
    back(c, &w, 5);
    return SMG_NO_FAULT;
}

EXTENT(qconv2d_dx16_put_i16) {
    uint64_t own[8];
    if (back_need(p, own)) { return -1; }
    const uint64_t outputs = (uint64_t)back16_of(p).own.O;
    const Slice s = slice_of(p + PARAMS(Back16));
    if (slice_refused(s, outputs, own[4] / outputs)) { return -1; }
    for (int i = 0; i < 5; i++) { need[i] = own[i]; }
    need[5] = own[4] / (uint64_t)s.V * (uint64_t)s.K;
    need[6] = (uint64_t)s.K * sizeof(int32_t);
    for (int i = 5; i < 8; i++) { need[i + 2] = own[i]; }
    return 0;
}
KERNEL(qconv2d_dx16_put_i16, "ooiiiiiiis", PARAMS(Back16) + PARAMS(Slice)) {
    const QWeights w = {
        .w = IN_AS(int8_t, 4),
        .learned = IN_AS(int8_t, 5),
        .index = IN_AS(int32_t, 6),
        .slice = slice_of(c->p + PARAMS(Back16)),
    };
    const SmgFault fault = slice_fault(w.slice, w.index);
    if (fault == SMG_NO_FAULT) { back(c, &w, 7); }
    return fault;
}
