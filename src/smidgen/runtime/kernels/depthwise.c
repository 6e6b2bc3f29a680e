/* Convolution with one weight per output and tap (C/G = 1; M = O/C outputs for each channel), eight channels at a time.
 * Sums are kept in memory between the rows of the kernel; within a row they run over up to eight taps. */
#include "conv.h"
#include "tile.h"
#include "vfp.h"

#define TAPS     8
#define WHOLE    9 /* taps of a kernel that are kept for all rows */
#define LANES(l) SMG_LANES(l)
#define WIDE     (SMG_SUMS != SMG_SUMS_FEW) /* eight outputs have loops of their own; others do the same, to the bit */

/* The next eight of `size` channels; the last eight overlap where fewer are left. */
static int eight(int32_t *at, int32_t size) {
    const int width = size < 8 ? (int)size : 8;
    if (*at > size - width) { *at = size - width; }
    return width;
}

/* Rows of y start as the bias. */
static void start(float *y, int32_t pixels, int32_t step, int width, const float *b) {
    if (!b && step == width) {
        memset(y, 0, sizeof *y * (size_t)pixels * (size_t)width);
        return;
    }
    for (int32_t i = 0; i < pixels; i++) {
        for (int l = 0; l < width; l++) { y[(ptrdiff_t)i * step + l] = b ? b[l] : 0.0f; }
    }
}

/* to[i][l] = from[i][l] for up to eight channels of some pixels. */
static void copy(float *to, ptrdiff_t to_step, const float *from, ptrdiff_t from_step, ptrdiff_t pixels, int width) {
    for (; pixels > 0; pixels--, to += to_step, from += from_step) {
        if (width == 8) {
            LANES(l) { to[l] = from[l]; }
        } else {
            for (int l = 0; l < width; l++) { to[l] = from[l]; }
        }
    }
}

/* y[ow][l] += taps first..first+count of one row of x; from[l] is the channel of output l. Taps of no output are 0. */
static void row(const Conv *v, float *y, const float *x, float taps[TAPS][8], int32_t first, int count, int width,
                const int32_t *from) {
    const int plain = WIDE && width == 8 && v->O == v->C, one = WIDE && from[0] == from[width - 1];
    const ptrdiff_t step = (ptrdiff_t)v->DW * v->C;
    for (int32_t ow = 0; ow < v->OW; ow++, y += v->O) {
        int32_t iw = ow * v->SW - v->PL + first * v->DW, lo, hi;
        conv_clip(iw, count, v->DW, v->W, &lo, &hi);
        if (lo >= hi) { continue; }
        const float *a = x + (ptrdiff_t)(iw + lo * v->DW) * v->C;
        if (plain) {
            smg_lane_products(y, a + from[0], step, taps[lo], 8, hi - lo);
        } else if (one) { /* all of one channel */
            float sum[8] = {0};
            a += from[0];
            for (int32_t k = lo; k < hi; k++, a += step) {
                const float pixel = *a;
                LANES(l) { sum[l] += pixel * taps[k][l]; }
            }
            LANES(l) {
                if (l < width) { y[l] += sum[l]; }
            }
        } else {
            for (int l = 0; l < width; l++) {
                const float *at = a + from[l];
                float sum = 0.0f;
                for (int32_t k = lo; k < hi; k++, at += step) { sum += *at * taps[k][l]; }
                y[l] += sum;
            }
        }
    }
}

void smg_depthwise(const Conv *v, float *y, const float *x, const Weights *w, const float *b) {
    const int32_t M = v->O / v->C;
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW;
    float taps[TAPS][8] = {{0}};
    int32_t from[8], h0, h1;
    for (int32_t n = 0; n < v->N; n++) {
        for (int32_t oh = 0; oh < v->OH; oh++) {
            const int32_t ih = oh * v->SH - v->PT;
            float *yr = y + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->O;
            conv_clip(ih, v->KH, v->DH, v->H, &h0, &h1);
            for (int32_t o = 0, width; o < v->O; o += width) {
                width = eight(&o, v->O);
                for (int l = 0; l < width; l++) { from[l] = (o + l) / M; }
                start(yr + o, v->OW, v->O, width, b ? b + o : NULL);
                for (int32_t kh = h0; kh < h1; kh++) {
                    for (int32_t kw = 0; kw < v->KW; kw += TAPS) {
                        const int count = v->KW - kw < TAPS ? (int)(v->KW - kw) : TAPS;
                        weights_taps(w, taps[0], count, width, o, 1, (ptrdiff_t)kh * v->KW + kw, filter);
                        const float *xr = x + ((ptrdiff_t)n * v->H + ih + kh * v->DH) * v->W * v->C;
                        row(v, yr + o, xr, taps, kw, count, width, from);
                    }
                }
            }
        }
    }
}

/* dx[iw][l] += taps first..first+count of one row of dy, whose output for channel l is l * M further on. */
static void row_dx(const Conv *v, float *dx, const float *dy, float taps[TAPS][8], int32_t first, int count,
                   int width) {
    const int32_t M = v->O / v->C;
    const int plain = WIDE && width == 8 && M == 1;
    for (int32_t phase = 0; phase < v->SW && phase < v->W; phase++) { /* pixels a stride apart meet the same taps */
        Meets m = conv_meets(phase, v->PL, first, first + count, v->SW, v->DW);
        if (m.first == first + count) { continue; }
        for (int32_t iw = phase; iw < v->W; iw += v->SW, m.out++) {
            float *out = dx + (ptrdiff_t)iw * v->C;
            /* taps k, k + tap_step, … of the piece meet outputs ow, ow - out_step, …: those inside 0..OW */
            int32_t k = m.first - first, ow = m.out;
            for (; ow >= v->OW && k < count; ow -= m.out_step) { k += m.tap_step; }
            if (plain) {
                /* as many as there are taps, and outputs */
                const int32_t left = (count - k + m.tap_step - 1) / m.tap_step;
                const int32_t outs = m.out_step == 1 ? ow + 1 : (ow + m.out_step) / m.out_step;
                if (k < count && ow >= 0) {
                    smg_lane_products(out, dy + (ptrdiff_t)ow * v->O, -(ptrdiff_t)m.out_step * v->O, taps[k],
                                      8 * (ptrdiff_t)m.tap_step, left < outs ? left : outs);
                }
            } else {
                for (int l = 0; l < width; l++) {
                    const float *d = dy + (ptrdiff_t)l * M;
                    float sum = 0.0f;
                    for (int32_t t = k, o = ow; t < count && o >= 0; t += m.tap_step, o -= m.out_step) {
                        sum += d[(ptrdiff_t)o * v->O] * taps[t][l];
                    }
                    out[l] += sum;
                }
            }
        }
    }
}

void smg_depthwise_dx(const Conv *v, float *dx, const float *dy, const Weights *w, const float *b) {
    const int32_t M = v->O / v->C;
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW;
    float taps[TAPS][8];
    for (int32_t n = 0; n < v->N; n++) {
        for (int32_t ih = 0; ih < v->H; ih++) {
            const Meets m = conv_meets(ih, v->PT, 0, v->KH, v->SH, v->DH);
            float *out = dx + ((ptrdiff_t)n * v->H + ih) * v->W * v->C;
            for (int32_t at = 0, width; at < v->C; at += width) {
                width = eight(&at, v->C);
                start(out + at, v->W, v->C, width, b ? b + at : NULL);
                for (int32_t kh = m.first, oh = m.out; kh < v->KH; kh += m.tap_step, oh -= m.out_step) {
                    if (oh < 0 || oh >= v->OH) { continue; }
                    const float *d = dy + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->O + (ptrdiff_t)at * M;
                    for (int32_t j = 0; j < M; j++) {
                        for (int32_t kw = 0; kw < v->KW; kw += TAPS) {
                            const int count = v->KW - kw < TAPS ? (int)(v->KW - kw) : TAPS;
                            const ptrdiff_t o = (ptrdiff_t)at * M + j;
                            weights_taps(w, taps[0], count, width, o, M, (ptrdiff_t)kh * v->KW + kw, filter);
                            row_dx(v, out + at, d + j, taps, kw, count, width);
                        }
                    }
                }
            }
        }
    }
}

/* The same for one output a channel, stride 1 and images of equal size, where dx may be dy: eight channels at a time
 * are copied to `room` first, which has 8 * (H + 1) * W floats. */
void smg_depthwise_dx_over(const Conv *v, float *dx, const float *dy, const Weights *w, float *room) {
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW, pixels = (ptrdiff_t)v->H * v->W;
    float taps[WHOLE][8], *line = room + 8 * pixels;
    const int whole = filter <= WHOLE; /* all taps are read at once */
    Conv eight_of = *v;
    eight_of.C = eight_of.O = eight_of.G = 8;
    for (int32_t n = 0; n < v->N; n++, dx += pixels * v->C, dy += pixels * v->C) {
        for (int32_t at = 0, width; at < v->C; at += width) {
            width = v->C - at < 8 ? v->C - at : 8;
            copy(room, 8, dy + at, v->C, pixels, (int)width);
            if (whole) { weights_taps(w, taps[0], (int)filter, width, at, 1, 0, filter); }
            for (int32_t ih = 0; ih < v->H; ih++) {
                const Meets m = conv_meets(ih, v->PT, 0, v->KH, 1, v->DH);
                start(line, v->W, 8, width, NULL);
                for (int32_t kh = m.first, oh = m.out; kh < v->KH; kh += m.tap_step, oh -= m.out_step) {
                    if (oh < 0 || oh >= v->OH) { continue; }
                    for (int32_t kw = 0; kw < v->KW; kw += TAPS) {
                        const int count = v->KW - kw < TAPS ? (int)(v->KW - kw) : TAPS;
                        const ptrdiff_t tap = (ptrdiff_t)kh * v->KW + kw;
                        if (!whole) { weights_taps(w, taps[0], count, width, at, 1, tap, filter); }
                        row_dx(&eight_of, line, room + 8 * (ptrdiff_t)oh * v->W, taps + (whole ? tap : 0), kw, count,
                               width);
                    }
                }
                copy(dx + (ptrdiff_t)ih * v->W * v->C + at, v->C, line, 8, v->W, (int)width);
            }
        }
    }
}

/* `count` outputs of one row with all taps inside, eight channels of their own. Fewer than three taps repeat the first,
 * to no effect. */
static void eight_dw(Tile *t, const Conv *v, const float *dy, const float *x, int32_t count) {
    const ptrdiff_t tap = (ptrdiff_t)v->DW * v->C, step = (ptrdiff_t)v->SW * v->C;
    const float *x1 = t->rows > 1 ? x + tap : x, *x2 = t->rows > 2 ? x + 2 * tap : x;
    float *part = t->part, s0[8], s1[8], s2[8];
    ptrdiff_t at = 0;
    LANES(l) {
        s0[l] = part[l];
        s1[l] = part[8 + l];
        s2[l] = part[16 + l];
    }
    for (; count > 0; count--, dy += v->O, at += step) {
#if SMG_SUMS == SMG_SUMS_REGISTERS /* lane by lane, so that dy takes one */
        LANES(l) {
            const float d = dy[l];
            s0[l] += d * x[at + l];
            s1[l] += d * x1[at + l];
            s2[l] += d * x2[at + l];
        }
#else
        LANES(l) { s0[l] += dy[l] * x[at + l]; }
        LANES(l) { s1[l] += dy[l] * x1[at + l]; }
        LANES(l) { s2[l] += dy[l] * x2[at + l]; }
#endif
    }
    LANES(l) {
        part[l] = s0[l];
        part[8 + l] = s1[l];
        part[16 + l] = s2[l];
    }
}

/* The same for any outputs, one after the other. */
static void each_dw(Tile *t, const Conv *v, const float *dy, const float *x, int32_t count, const int32_t *from) {
    const ptrdiff_t tap = (ptrdiff_t)v->DW * v->C, step = (ptrdiff_t)v->SW * v->C;
    const ptrdiff_t tap1 = t->rows > 1 ? tap : 0, tap2 = t->rows > 2 ? 2 * tap : 0;
    for (int l = 0; l < t->columns; l++) {
        float *part = t->part + l, s0 = part[0], s1 = part[8], s2 = part[16];
        const float *d = dy + l, *at = x + from[l];
        for (int32_t i = count; i > 0; i--, d += v->O, at += step) {
            s0 += *d * at[0];
            s1 += *d * at[tap1];
            s2 += *d * at[tap2];
        }
        part[0] = s0;
        part[8] = s1;
        part[16] = s2;
    }
}

/* The same with x in int8, a tap at a time: each sum is of one tap. */
static void inside_dw_int8(Tile *t, const Conv *v, const float *dy, Source x, int32_t count, const int32_t *from) {
    const ptrdiff_t tap = (ptrdiff_t)v->DW * v->C, step = (ptrdiff_t)v->SW * v->C;
    const int eight = t->columns == 8 && v->O == v->C;
    for (int k = 0; k < t->rows; k++) {
        const int8_t *q = x.q + k * tap;
        const float *d = dy;
        float s[8];
        memcpy(s, t->part + 8 * k, sizeof s);
        if (eight) {
            q += from[0];
            for (int32_t i = 0; i < count; i++, d += v->O, q += step) {
                LANES(l) { s[l] += d[l] * (float)(q[l] - x.zero); }
            }
        } else {
            for (int32_t i = 0; i < count; i++, d += v->O, q += step) {
                for (int l = 0; l < t->columns; l++) { s[l] += d[l] * (float)(q[from[l]] - x.zero); }
            }
        }
        memcpy(t->part + 8 * k, s, sizeof s);
    }
}

/* One row of outputs, taps kw.. of a kernel row; outputs first..last have all of them inside the row of x. */
SOURCE_CODE void row_dw(Tile *t, const Conv *v, const float *dy, Source x, int32_t kw, const int32_t *from,
                        int32_t first, int32_t last) {
    for (int32_t ow = 0; ow < v->OW;) {
        const int32_t end = v->OW - ow < SMG_BLOCK ? v->OW : ow + SMG_BLOCK, begun = ow;
        while (ow < end) {
            const int32_t iw = ow * v->SW - v->PL + kw * v->DW;
            const float *d = dy + (ptrdiff_t)ow * v->O;
            if (ow >= first && ow < last) {
                const int32_t count = (last < end ? last : end) - ow;
                const Source a = source_at(x, (ptrdiff_t)iw * v->C);
                if (a.is_int8) {
                    inside_dw_int8(t, v, d, a, count, from);
                } else if (WIDE && t->columns == 8 && v->O == v->C) {
                    eight_dw(t, v, d, a.f + from[0], count);
                } else {
                    each_dw(t, v, d, a.f, count, from);
                }
                ow += count;
                continue;
            }
            int32_t lo, hi;
            conv_clip(iw, t->rows, v->DW, v->W, &lo, &hi);
            for (int32_t k = lo; k < hi; k++) {
                const Source a = source_at(x, (ptrdiff_t)(iw + k * v->DW) * v->C);
                for (int l = 0; l < t->columns; l++) { t->part[8 * k + l] += d[l] * source_get(a, from[l]); }
            }
            ow++;
        }
        tile_count(t, end - begun);
    }
}

/* A tile holds up to three taps (rows) of eight outputs (columns); in memory the taps of an output are neighbours. Into
 * the sink, or as a sum that goes on, with rows r. */
SOURCE_CODE void depthwise_dw(const Conv *v, const Sink *sink, const ConvRows *r, const Going *going, const float *dy,
                              Source x) {
    const int32_t M = v->O / v->C;
    const size_t filter = (size_t)v->KH * (size_t)v->KW;
    int32_t from[8];
    float taps[3], parts[3];
    Tile t;
    for (int32_t o = 0; o < v->O; o += t.columns) {
        tile_columns(&t, &o, v->O);
        for (int l = 0; l < t.columns; l++) { from[l] = (o + l) / M; }
        for (int32_t kh = 0; kh < v->KH; kh++) {
            for (int32_t kw = 0; kw < v->KW; kw += 3) {
                t.rows = v->KW - kw < 3 ? (int)(v->KW - kw) : 3;
                const size_t at = (size_t)o * filter + (size_t)kh * (size_t)v->KW + (size_t)kw;
                const int32_t left = kw * v->DW - v->PL, right = v->W - 1 - left - (t.rows - 1) * v->DW;
                int32_t first = left >= 0 ? 0 : (v->SW - 1 - left) / v->SW, last = right < 0 ? 0 : right / v->SW + 1;
                if (last > v->OW) { last = v->OW; }
                if (!WIDE) { last = 0; }
                memset(t.tile, 0, sizeof t.tile);
                for (int l = t.old_columns; !going && sink->mode == SMG_ACC && l < t.columns; l++) {
                    smg_sink_begin(sink, taps, at + (size_t)l * filter, (size_t)t.rows);
                    for (int k = 0; k < t.rows; k++) { t.tile[8 * k + l] = taps[k]; }
                }
                for (int32_t n = 0; n < v->N; n++) {
                    tile_sample_begin(&t);
                    for (int l = 0; going && l < t.columns; l++) {
                        going_begin(going, taps, parts, at + (size_t)l * filter, (size_t)t.rows);
                        for (int k = 0; k < t.rows; k++) {
                            t.sample[8 * k + l] = taps[k];
                            t.part[8 * k + l] = parts[k];
                        }
                    }
                    if (going) { t.pending = conv_pending(r, kh, SMG_BLOCK); }
                    for (int32_t oh = 0; oh < v->OH; oh++) {
                        const int32_t ih = oh * v->SH - v->PT + kh * v->DH;
                        if (ih < 0 || ih >= v->H) { continue; }
                        row_dw(&t, v, dy + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->O + o,
                               source_at(x, ((ptrdiff_t)n * v->H + ih) * v->W * v->C), kw, from, first, last);
                    }
                    if (!going) { tile_sample_end(&t); }
                }
                if (going && going->is_last && t.pending) { smg_flush(t.sample, t.part, 32); }
                for (int l = t.old_columns; l < t.columns; l++) {
                    for (int k = 0; k < t.rows; k++) {
                        taps[k] = going ? t.sample[8 * k + l] : t.tile[8 * k + l];
                        if (going) { parts[k] = t.part[8 * k + l]; }
                    }
                    if (going) {
                        going_end(going, taps, parts, at + (size_t)l * filter, (size_t)t.rows);
                    } else {
                        smg_sink_end(sink, taps, at + (size_t)l * filter, (size_t)t.rows);
                    }
                }
            }
        }
    }
}
void smg_depthwise_dw(const Conv *v, const Sink *sink, const float *dy, const float *x) {
    depthwise_dw(v, sink, NULL, NULL, dy, source_f32(x));
}
void smg_depthwise_dw_int8(const Conv *v, const Sink *sink, const float *dy, const int8_t *x, int32_t zero) {
    depthwise_dw(v, sink, NULL, NULL, dy, source_int8(x, zero));
}
void smg_depthwise_dw_rows(const ConvRows *r, const Going *going, const float *dy, const float *x) {
    depthwise_dw(&r->v, NULL, r, going, dy, source_f32(x));
}
