/* Dot products of a block of PIXELS windows with all outputs, in integers. A window is widened to int16, less the zero
 * point, so that padding is 0 and each product is one of 16 bits. Two forms, with the same bits and the same room:
 *
 *     plain    [pixel][k]                                          w, two outputs  ---- K ----
 *                                                                  windows         ---- K ----  x4
 *
 *     DSP      [k / 4][k % 2][pixel] words of k and k + 2          w               one word: k, k + 2 and k + 1, k + 3
 *              K % 4 are in fours of their own, the first          windows         two words of each, x4
 */
#ifndef SMG_QCOLUMNS_H
#define SMG_QCOLUMNS_H
#include "dsp.h"
#include "qlayers.h"

#if SMG_DSP
/* Numbers k to k + count of pixel p, of K in all. */
static void column_widen(int16_t *columns, int p, int32_t k, int32_t K, const int8_t *from, int32_t count,
                         int32_t zero) {
    static const uint8_t places[4] = {0, 2 * PIXELS, 1, 2 * PIXELS + 1};
    const uint32_t less = smg_two(-zero, -zero);
    const int32_t few = K & 3, end = k + count;
    int16_t *to = columns + 2 * p;
    if (k < few) {
        for (int i = few; i < 4; i++) { to[places[i]] = 0; }
        for (; k < few && k < end; k++) { to[places[k]] = (int16_t)(*from++ - zero); }
    }
    const int32_t gap = few ? 4 - few : 0, last = end + gap; /* places from here on */
    k += gap;
    while (k < last) {
        if (k & 3 || k + 4 > last) {
            to[(ptrdiff_t)(k & ~3) * PIXELS + places[k & 3]] = (int16_t)(*from++ - zero);
            k++;
            continue;
        }
        uint32_t *words = (uint32_t *)(void *)(to + (ptrdiff_t)k * PIXELS);
        for (; k + 4 <= last; k += 4, from += 4, words += 2 * PIXELS) {
            const uint32_t word = smg_word(from);
            words[0] = smg_even(less, word);
            words[PIXELS] = smg_odd(less, word);
        }
    }
}

static void column_clear(int16_t *columns, int p, int32_t K) {
    uint32_t *words = (uint32_t *)(void *)columns + p;
    for (int32_t k = 0; k < K; k += 4, words += 2 * PIXELS) { words[0] = words[PIXELS] = 0; }
}

/* The first word of an output's weights, of which K & 3 count, in memory that may end behind K. */
static inline uint32_t first_word(const int8_t *w, int32_t K) {
    uint32_t word = 0;
    if (K >= 4) { return smg_word(w); }
    for (int32_t k = 0; k < K; k++) { word |= (uint32_t)(uint8_t)w[k] << 8 * k; }
    return word;
}

/* `rows` outputs from w, b and m on, and y[p * step] of all pixels. */
__attribute__((noinline)) static void outputs_of_four(const int16_t *columns, const int8_t *w, const int32_t *b,
                                                      const int32_t *m, int32_t rows, int32_t K, Quads *v) {
    const int32_t few = K & 3;
    const uint32_t *first = (const uint32_t *)(const void *)columns;
    v->x = first + (few ? 2 * PIXELS : 0);
    v->quads = K >> 2;
    for (; rows > 0; rows--, v->y++) {
        const int32_t bias = *b++;
        v->sum[0] = v->sum[1] = v->sum[2] = v->sum[3] = bias;
        if (few) {
            const uint32_t word = first_word(w, K), even = smg_even(0, word), odd = smg_odd(0, word);
            SMG_UNROLL for (int p = 0; p < PIXELS; p++) {
                v->sum[p] = smg_mac2(smg_mac2(bias, first[p], even), first[PIXELS + p], odd);
            }
            w += few;
        }
        v->m = *m++;
        w = smg_quads_output(v, w);
    }
}

static void outputs(int8_t *y, ptrdiff_t step, const int16_t *columns, int pixels, const QWeights *w, ptrdiff_t from,
                    const int32_t *b, const int32_t *m, int32_t O, int32_t K, const Requantize *r) {
    const Short brief = smg_short(*r);
    int8_t few[PIXELS];
    Quads quads = {.add = brief.add, .shift = brief.shift, .step = step, .r = r, .brief = brief.add && brief.whole};
    for (int32_t o = 0, rows; o < O; o += rows) {
        rows = w->learned && O - o > QROWS ? QROWS : O - o; /* of a slice, a few at a time */
        const int8_t *row = qweights_rows(w, from + o, rows, K);
        if (pixels == PIXELS) {
            quads.y = y + o;
            outputs_of_four(columns, row, b + o, m + o, rows, K, &quads);
            continue;
        }
        quads.step = 1;
        for (int32_t i = o; i < o + rows; i++, row += K) {
            quads.y = few;
            outputs_of_four(columns, row, b + i, m + i, 1, K, &quads);
            for (int p = 0; p < pixels; p++) { y[p * step + i] = few[p]; }
        }
    }
}
#else
/* sum[p * SMG_RUN + i] = w[i] . column[p] for `rows` outputs, K terms each. */
#ifdef __OPTIMIZE_SIZE__
static void dots(int32_t *sum, const int16_t *column, const int8_t *w, int rows, int32_t K) {
    for (int i = 0; i < rows; i++, w += K, sum++) {
        const int16_t *a = column;
        for (int p = 0; p < PIXELS; p += 2, a += 2 * K) {
            const int16_t *b = a + K;
            int32_t s = 0, t = 0;
            for (int32_t k = 0; k < K; k++) {
                s += a[k] * w[k];
                t += b[k] * w[k];
            }
            sum[p * SMG_RUN] = s;
            sum[(p + 1) * SMG_RUN] = t;
        }
    }
}
#else
static void dots(int32_t *restrict sum, const int16_t *restrict column, const int8_t *restrict w, int rows, int32_t K) {
    const int16_t *a = column, *b = a + K, *c = b + K, *d = c + K;
    for (; rows > 0; rows -= 2, w += 2 * (ptrdiff_t)K, sum += 2) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        const int8_t *v = rows > 1 ? w + K : w;
        for (int32_t k = 0; k < K; k++) {
            const int16_t x = w[k], y = v[k];
            s0 += a[k] * x;
            s1 += b[k] * x;
            s2 += c[k] * x;
            s3 += d[k] * x;
            t0 += a[k] * y;
            t1 += b[k] * y;
            t2 += c[k] * y;
            t3 += d[k] * y;
        }
        sum[0] = s0;
        sum[SMG_RUN] = s1;
        sum[2 * SMG_RUN] = s2;
        sum[3 * SMG_RUN] = s3;
        if (rows > 1) {
            sum[1] = t0;
            sum[SMG_RUN + 1] = t1;
            sum[2 * SMG_RUN + 1] = t2;
            sum[3 * SMG_RUN + 1] = t3;
        }
    }
}
#endif

/* y[p * step + o] for `pixels` columns and O outputs, of which the first is number `from` of the layer. */
static void outputs(int8_t *y, ptrdiff_t step, const int16_t *columns, int pixels, const QWeights *w, ptrdiff_t from,
                    const int32_t *b, const int32_t *m, int32_t O, int32_t K, const Requantize *r) {
    int32_t sum[SMG_RUN * PIXELS];
    const int32_t most = w->learned ? QROWS : SMG_RUN;
    for (int32_t o = 0, rows; o < O; o += rows) {
        rows = O - o < SMG_RUN ? O - o : SMG_RUN;
        for (int32_t i = 0, few; i < rows; i += few) {
            few = rows - i < most ? rows - i : most;
            dots(sum + i, columns, qweights_rows(w, from + o + i, few, K), (int)few, K);
        }
        for (int p = 0; p < pixels; p++) {
            smg_requantize_run(y + p * step + o, sum + p * SMG_RUN, b + o, m + o, (int)rows, *r);
        }
    }
}

static void column_widen(int16_t *columns, int p, int32_t k, int32_t K, const int8_t *restrict from, int32_t count,
                         int32_t zero) {
    int16_t *restrict to = columns + (ptrdiff_t)p * K + k;
    for (int32_t i = 0; i < count; i++) { to[i] = (int16_t)(from[i] - zero); }
}

static void column_clear(int16_t *columns, int p, int32_t K) {
    memset(columns + (ptrdiff_t)p * K, 0, (size_t)K * sizeof *columns);
}
#endif
#endif
