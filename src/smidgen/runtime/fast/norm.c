/* Batch normalisation with given statistics. Parameters and operands are those of kernels/batch_norm.c. Threads take
 * rows, or for the gradient of the scale columns, so that no sum depends on their number. */
#include "../kernels/params.h"
#include "fast.h"
#include "threads.h"
#include "sink.h"
#include "vector.h"

#define MOST   4096      /* channels whose factors are in the thread's memory */
#define TERMS  256       /* rows whose sum is added to the total at once, which keeps the error of long sums small */
#define ENOUGH (1 << 14) /* elements a thread */

/* y[rows][C] = (x - mean[C]) * scale[C] + shift[C], for `count` channels from `from` on. */
typedef struct {
    const SmgWork *work;
    float *y;
    const float *x, *mean, *shift; /* mean NULL: y = x * scale */
    const float *scale;            /* of channels c.., in the caller's memory */
    ptrdiff_t rows, C;
    int32_t from, count; /* channels */
    int parts;
} Scaling;

/* A row's n channels; the factors are loaded again for every row. */
INLINE void affine_row(float *y, const float *x, const float *m, const float *s, const float *t, int32_t n) {
    int32_t l = 0;
    if (m) {
        for (; l + VL <= n; l += VL) { vstore(y + l, (vload(x + l) - vload(m + l)) * vload(s + l) + vload(t + l)); }
        for (; l < n; l++) { y[l] = (x[l] - m[l]) * s[l] + t[l]; }
    } else {
        for (; l + VL <= n; l += VL) { vstore(y + l, vload(x + l) * vload(s + l)); }
        for (; l < n; l++) { y[l] = x[l] * s[l]; }
    }
}

/* One vector of channels, many rows: the factors stay in registers. */
INLINE void affine_lanes(const Scaling *a, ptrdiff_t from, ptrdiff_t to, int32_t l, const int vectors) {
    vf m[4], s[4], t[4];
    UNROLL for (int j = 0; j < vectors; j++) {
        m[j] = a->mean ? vload(a->mean + a->from + l + j * VL) : vzero();
        t[j] = a->mean ? vload(a->shift + a->from + l + j * VL) : vzero();
        s[j] = vload(a->scale + l + j * VL);
    }
    const float *x = a->x + from * a->C + a->from + l;
    float *y = a->y + from * a->C + a->from + l;
    if (a->mean) {
        for (ptrdiff_t r = from; r < to; r++, x += a->C, y += a->C) {
            UNROLL for (int j = 0; j < vectors; j++) { vstore(y + j * VL, (vload(x + j * VL) - m[j]) * s[j] + t[j]); }
        }
    } else {
        for (ptrdiff_t r = from; r < to; r++, x += a->C, y += a->C) {
            UNROLL for (int j = 0; j < vectors; j++) { vstore(y + j * VL, vload(x + j * VL) * s[j]); }
        }
    }
}

static void affine_part(void *arg, ptrdiff_t i, int thread) {
    const Scaling *a = (const Scaling *)arg;
    const ptrdiff_t from = a->rows * i / a->parts, to = a->rows * (i + 1) / a->parts;
    (void)thread;
    if (a->count == a->C && a->C % VL == 0 && a->C <= 4 * VL) { /* short rows */
        if (a->C == VL) {
            affine_lanes(a, from, to, 0, 1);
        } else if (a->C == 2 * VL) {
            affine_lanes(a, from, to, 0, 2);
        } else if (a->C == 3 * VL) {
            affine_lanes(a, from, to, 0, 3);
        } else {
            affine_lanes(a, from, to, 0, 4);
        }
        return;
    }
    for (ptrdiff_t r = from; r < to; r++) {
        const ptrdiff_t at = r * a->C + a->from;
        affine_row(a->y + at, a->x + at, a->mean ? a->mean + a->from : NULL, a->scale,
                   a->mean ? a->shift + a->from : NULL, a->count);
    }
}

/* scale = gamma / sqrt(var + eps), computed once for all rows by the caller's thread and then only read */
static void affine(Scaling *a, const float *gamma, const float *var, float eps) {
    float *scale = (float *)smg_work_of(a->work, 0);
    a->scale = scale;
    a->parts = a->rows * a->C < 2 * ENOUGH ? 1 : a->work->threads;
    for (a->from = 0; a->from < a->C; a->from += MOST) {
        a->count = a->C - a->from < MOST ? (int32_t)(a->C - a->from) : MOST;
        for (int32_t l = 0; l < a->count; l++) {
            scale[l] = gamma[a->from + l] / __builtin_sqrtf(var[a->from + l] + eps);
        }
        smg_parallel(a->work, affine_part, a, a->parts);
    }
}

FAST_KERNEL(batch_norm_f32) {
    const Affine v = affine_of(c->p);
    Scaling a = {.work = smg_work(c),
                 .y = OUT(0),
                 .x = IN(1),
                 .mean = IN(4),
                 .shift = IN(3),
                 .rows = v.matrix.R,
                 .C = v.matrix.C};
    affine(&a, IN(2), IN(5), v.eps);
    return SMG_NO_FAULT;
}

FAST_KERNEL(batch_norm_dx_f32) {
    const Affine v = affine_of(c->p);
    Scaling a = {.work = smg_work(c), .y = OUT(0), .x = IN(1), .rows = v.matrix.R, .C = v.matrix.C};
    affine(&a, IN(2), IN(3), v.eps);
    return SMG_NO_FAULT;
}

/* dgamma[C] = sum over rows of dy[rows][C] * (x[rows][C] - mean[C]) / sqrt(var[C] + eps) */
typedef struct {
    const SmgWork *work;
    const Sink *sink;
    const float *dy, *x, *mean, *var;
    ptrdiff_t rows, C;
    float eps;
    int parts;
} Slope;

/* total[l] = sum over rows of dy * (x - mean), for some vectors of channels. */
INLINE void slope_lanes(const Slope *s, float *total, ptrdiff_t c, const int vectors) {
    const ptrdiff_t C = s->C;
    const float *x = s->x + c, *d = s->dy + c;
    vf m[4], all[4];
    UNROLL for (int j = 0; j < vectors; j++) {
        m[j] = vload(s->mean + c + j * VL);
        all[j] = vzero();
    }
    for (ptrdiff_t r = 0; r < s->rows; r += TERMS) {
        const ptrdiff_t rows = s->rows - r < TERMS ? s->rows - r : TERMS;
        vf even[4], odd[4];
        UNROLL for (int j = 0; j < vectors; j++) { even[j] = odd[j] = vzero(); }
        ptrdiff_t i = 0;
        for (; i + 2 <= rows; i += 2, x += 2 * C, d += 2 * C) {
            UNROLL for (int j = 0; j < vectors; j++) {
                even[j] += vload(d + j * VL) * (vload(x + j * VL) - m[j]);
                odd[j] += vload(d + C + j * VL) * (vload(x + C + j * VL) - m[j]);
            }
        }
        if (i < rows) {
            UNROLL for (int j = 0; j < vectors; j++) { even[j] += vload(d + j * VL) * (vload(x + j * VL) - m[j]); }
            x += C;
            d += C;
        }
        UNROLL for (int j = 0; j < vectors; j++) { all[j] += even[j] + odd[j]; }
    }
    UNROLL for (int j = 0; j < vectors; j++) { vstore(total + j * VL, all[j]); }
}

/* One channel, for those that do not fill a vector: the pieces of the sum are the same. */
static void slope_lane(const Slope *s, float *total, ptrdiff_t c) {
    float all = 0.0f;
    for (ptrdiff_t r = 0; r < s->rows; r += TERMS) {
        const ptrdiff_t last = s->rows - r < TERMS ? s->rows : r + TERMS;
        float sum = 0.0f;
        for (ptrdiff_t i = r; i < last; i++) { sum += s->dy[i * s->C + c] * (s->x[i * s->C + c] - s->mean[c]); }
        all += sum;
    }
    *total = all;
}

/* Whole vectors of channels are a thread's, so that no sum is split. */
static void slope_part(void *arg, ptrdiff_t i, int thread) {
    const Slope *s = (const Slope *)arg;
    float *total = (float *)smg_work_of(s->work, thread);
    const ptrdiff_t unit = VL, units = (s->C + unit - 1) / unit, last = units * (i + 1) / s->parts * unit;
    const ptrdiff_t begin = units * i / s->parts * unit, end = last < s->C ? last : s->C;
    for (ptrdiff_t from = begin; from < end; from += MOST) {
        const ptrdiff_t to = end - from < MOST ? end : from + MOST;
        ptrdiff_t c = from;
        for (; c + 4 * VL <= to; c += 4 * VL) { slope_lanes(s, total + (c - from), c, 4); }
        for (; c + VL <= to; c += VL) { slope_lanes(s, total + (c - from), c, 1); }
        for (; c < to; c++) { slope_lane(s, total + (c - from), c); }
        for (ptrdiff_t l = from; l < to; l++) { total[l - from] *= 1.0f / __builtin_sqrtf(s->var[l] + s->eps); }
        fast_sink(s->sink, total, (size_t)from, (size_t)(to - from));
    }
}

static SmgFault batch_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const RowsNorm v = rows_norm_of(c->p);
    Slope s = {.work = smg_work(c),
               .sink = sink,
               .dy = SINK_IN(sink, 0),
               .x = SINK_IN(sink, 1),
               .mean = SINK_IN(sink, 2),
               .var = SINK_IN(sink, 3),
               .rows = (ptrdiff_t)v.rows.A * v.rows.B * v.rows.P,
               .C = v.rows.C,
               .eps = v.eps,
               .parts = 1};
    if (s.rows * s.C > 2 * ENOUGH) { s.parts = s.work->threads; }
    smg_parallel(s.work, slope_part, &s, s.parts);
    return SMG_NO_FAULT;
}
FAST_SINK_KERNELS(batch_norm_dgamma, 4, 5)
