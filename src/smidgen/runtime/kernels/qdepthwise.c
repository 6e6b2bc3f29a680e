/* Convolution in integers with one weight per output and tap (C/G = 1; M = O/C outputs for each channel). Sixteen
 * outputs at a time, each in a lane of its own: their taps are laid out as [tap][lane] once for the whole image. With
 * DSP, where there is one output a channel and no dilation, channel by channel:
 *
 *     lines[channel < 4][KH][QLINE]    rows of x as far as some neighbouring outputs see them, in int16 less the
 *                                      zero point, in the order of a ring: a row is widened once for all rows of y
 *     words[channel < 4][KH][pairs]    two neighbouring taps each, the last with 0 if they are odd
 *
 *     x  | . . | . .              four outputs of a row; each product of two words has two taps, wherever a window
 *     w  |0 1|2 -|                begins
 */
#include "dsp.h"
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

static void lanes(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
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

#if SMG_DSP
/* A row of outputs of one channel. */
typedef struct {
    const int16_t *x;      /* the line of the first row */
    const uint32_t *words; /* taps, two by two */
    int8_t *y;
    int32_t line, rows, until, ring; /* after `until` rows the next line lies `ring` numbers earlier */
    int32_t outputs, bias, m, pairs, step;
    ptrdiff_t apart; /* of outputs in y */
    const Requantize *requantize;
    Short brief;
} Near;

/* Four at a time. `pairs` and `step` are constants where they are usual. */
__attribute__((always_inline)) static inline void windows(const Near *v, const int pairs, const int step) {
    const int16_t *from = v->x;
    int8_t *y = v->y;
    for (int32_t left = v->outputs; left > 0; left -= 4, from += 4 * step, y += 4 * v->apart) {
        int32_t s0 = v->bias, s1 = s0, s2 = s0, s3 = s0;
        const int16_t *x = from;
        const uint32_t *w = v->words, *turn = w + v->until * pairs, *end = w + v->rows * pairs;
        do {
            const ptrdiff_t line = v->line;
            do {
                SMG_UNROLL for (int j = 0; j < pairs; j++) {
                    const uint32_t taps = *w++;
                    s0 = smg_mac2(s0, smg_word(x + 2 * j), taps);
                    s1 = smg_mac2(s1, smg_word(x + 2 * j + step), taps);
                    s2 = smg_mac2(s2, smg_word(x + 2 * j + 2 * step), taps);
                    s3 = smg_mac2(s3, smg_word(x + 2 * j + 3 * step), taps);
                }
                x += line;
            } while (w != turn);
            x -= v->ring;
            turn = end;
        } while (w != end);
        if (left >= 4 && v->brief.add && v->brief.whole) {
            smg_requantize_four(y, v->apart, s0, s1, s2, s3, v->m, &v->brief);
        } else {
            const int32_t sum[4] = {s0, s1, s2, s3};
            smg_requantize_each(y, v->apart, sum, left < 4 ? (int)left : 4, v->m, v->requantize);
        }
    }
}
#define WINDOWS(pairs, step) \
    __attribute__((noinline)) static void windows_##pairs##_##step(const Near *v) { windows(v, pairs, step); }
WINDOWS(2, 1)
WINDOWS(3, 1)
WINDOWS(4, 1)
WINDOWS(2, 2)
WINDOWS(3, 2)
WINDOWS(4, 2)
__attribute__((noinline)) static void any_windows(const Near *v) { windows(v, v->pairs, v->step); }
static void near(const Near *v) {
    switch (v->step <= 2 && v->pairs >= 2 && v->pairs <= 4 ? 10 * v->pairs + v->step : 0) {
    case 21: windows_2_1(v); break;
    case 31: windows_3_1(v); break;
    case 41: windows_4_1(v); break;
    case 22: windows_2_2(v); break;
    case 32: windows_3_2(v); break;
    case 42: windows_4_2(v); break;
    default: any_windows(v);
    }
}

/* Columns iw to iw + count of a row of x, which begins with the first of `channels` channels, into a line each; lines
 * of channels are `apart`. Outside of the image, which x == NULL is, they are 0. */
static void widen(int16_t *to, ptrdiff_t apart, const int8_t *x, const Conv *v, int32_t iw, int32_t count,
                  int32_t channels, int32_t zero) {
    const uint32_t less = smg_two(-zero, -zero);
    int32_t first = iw < 0 ? -iw : 0, last = v->W - iw;
    if (!x || first > count) { first = count; }
    if (last > count) { last = count; }
    for (int32_t c = 0; c < channels; c++) {
        int16_t *own = to + c * apart;
        for (int32_t k = 0; k < first; k++) { own[k] = 0; }
        for (int32_t k = last > first ? last : first; k < count; k++) { own[k] = 0; }
    }
    if (first >= last) { return; }
    x += (ptrdiff_t)(iw + first) * v->C;
    to += first;
    count = last - first;
    for (; channels == 4 && count >= 2; count -= 2, x += 2 * (ptrdiff_t)v->C, to += 2) {
        const uint32_t a = smg_word(x), b = smg_word(x + v->C);
        const uint32_t a02 = smg_even(less, a), a13 = smg_odd(less, a), b02 = smg_even(less, b);
        const uint32_t b13 = smg_odd(less, b), zeroth = smg_lows(a02, b02), second = smg_highs(a02, b02);
        const uint32_t oneth = smg_lows(a13, b13), third = smg_highs(a13, b13);
        SMG_COPY(to, &zeroth, sizeof zeroth);
        SMG_COPY(to + apart, &oneth, sizeof oneth);
        SMG_COPY(to + 2 * apart, &second, sizeof second);
        SMG_COPY(to + 3 * apart, &third, sizeof third);
    }
    for (; count > 0; count--, x += v->C, to++) {
        for (int32_t c = 0; c < channels; c++) { to[c * apart] = (int16_t)(x[c] - zero); }
    }
}

static void planes(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                   const int32_t *m, int16_t *room) {
    const int32_t pairs = (v->KW + 1) / 2, line = QLINE(v->KW), most = qdepthwise_outputs(v);
    const ptrdiff_t apart = (ptrdiff_t)v->KH * line, taps = (ptrdiff_t)v->KH * pairs;
    uint32_t *words = (uint32_t *)(void *)(room + 4 * apart);
    Near near_by = {.line = line,
                    .rows = v->KH,
                    .ring = (int32_t)apart,
                    .pairs = pairs,
                    .step = v->SW,
                    .apart = v->O,
                    .requantize = &q->requantize,
                    .brief = smg_short(q->requantize)};
    for (int32_t o = 0, channels; o < v->O; o += channels) {
        channels = v->O < 4 ? v->O : 4;
        if (o > v->O - channels) { o = v->O - channels; } /* the last four may overlap */
        for (int32_t c = 0; c < channels; c++) {
            const int8_t *own = qweights_rows(w, o + c, 1, (ptrdiff_t)v->KH * v->KW);
            uint32_t *to = words + c * taps;
            for (int32_t kh = 0; kh < v->KH; kh++, own += v->KW) {
                for (int32_t kw = 0; kw < v->KW; kw += 2) {
                    *to++ = smg_two(own[kw], kw + 1 < v->KW ? own[kw + 1] : 0);
                }
            }
        }
        for (int32_t n = 0; n < v->N; n++) {
            const int8_t *image = x + (ptrdiff_t)n * v->H * v->W * v->C + o;
            for (int32_t ow = 0; ow < v->OW; ow += most) {
                near_by.outputs = v->OW - ow < most ? v->OW - ow : most;
                const int32_t columns = ((near_by.outputs + 3) / 4 * 4 - 1) * v->SW + 2 * pairs;
                int32_t next = 0; /* rows of x from -PT on, of which the last KH are there */
                for (int32_t oh = 0; oh < v->OH; oh++) {
                    const int32_t first = oh * v->SH, turn = first % v->KH; /* where the first lies in the ring */
                    for (next = next < first ? first : next; next < first + v->KH; next++) {
                        const int32_t ih = next - v->PT;
                        const int8_t *row = ih >= 0 && ih < v->H ? image + (ptrdiff_t)ih * v->W * v->C : NULL;
                        widen(room + next % v->KH * line, apart, row, v, ow * v->SW - v->PL, columns, channels,
                              q->zero);
                    }
                    near_by.x = room + turn * line;
                    near_by.words = words;
                    near_by.until = v->KH - turn;
                    near_by.y = y + (((ptrdiff_t)n * v->OH + oh) * v->OW + ow) * v->O + o;
                    for (int32_t c = 0; c < channels; c++) {
                        near_by.bias = b[o + c];
                        near_by.m = m[o + c];
                        near(&near_by);
                        near_by.x += apart;
                        near_by.words += taps;
                        near_by.y++;
                    }
                }
            }
        }
    }
}
#endif

void smg_qdepthwise(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const QWeights *w, const int32_t *b,
                    const int32_t *m, int16_t *room) {
#if SMG_DSP
    const int fits = qdepthwise_lines(v) <= qdepthwise_room(v) && qdepthwise_outputs(v) > 0;
    if (v->O == v->C && v->DH == 1 && v->DW == 1 && fits) {
        planes(v, q, y, x, w, b, m, room);
        return;
    }
#endif
    lanes(v, q, y, x, w, b, m, room);
}
