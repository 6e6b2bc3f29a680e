/* Softmax and layer normalisation, row by row, and gelu. Parameters and operands are those of kernels/lines.c, norm.c
 * and activation.c. A row is one thread's work, so that no sum depends on their number. */
#include "../kernels/gelu.h"
#include "../kernels/params.h"
#include "fast.h"
#include "threads.h"
#include "vector.h"

#define ENOUGH (1 << 13) /* elements a thread */
#define TERMS  8192 /* elements whose sum is added to the total at once, which keeps the error of long sums small */

typedef int32_t vi __attribute__((vector_size(4 * VL)));

/* One row function over all rows of `length` elements. */
typedef struct RowJob RowJob;
struct RowJob {
    float *out;
    const float *a, *b, *gamma, *beta;
    void (*row)(const RowJob *job, size_t at);
    ptrdiff_t rows, length, parts;
    size_t step; /* between neighbours of a row */
    float eps;
    int tanh_form;
};

/* Where row i begins: rows whose elements are `step` apart lie in each other. */
static void rows_part(void *arg, ptrdiff_t part, int thread) {
    const RowJob *job = (const RowJob *)arg;
    const ptrdiff_t step = (ptrdiff_t)job->step;
    (void)thread;
    for (ptrdiff_t i = job->rows * part / job->parts; i < job->rows * (part + 1) / job->parts; i++) {
        job->row(job, (size_t)(i / step * job->length * step + i % step));
    }
}
static void run_rows(const SmgCall *c, RowJob *job) {
    const SmgWork *work = smg_work(c);
    if (job->rows < 1 || job->length < 1) { return; }
    job->parts = job->rows * job->length < 2 * ENOUGH ? 1 : work->threads;
    smg_parallel(work, rows_part, job, job->parts);
}

/* total = the sum of TERM for vectors v.. at i, and of LAST for the elements that are left. */
#define ROW_SUM(total, n, TERM, LAST)                                    \
    for (ptrdiff_t from_ = 0; from_ < (n); from_ += TERMS) {             \
        const ptrdiff_t to_ = (n) - from_ < TERMS ? (n) : from_ + TERMS; \
        vf even_ = vzero(), odd_ = vzero();                              \
        ptrdiff_t i = from_;                                             \
        float sum_ = 0.0f;                                               \
        for (; i + 2 * VL <= to_; i += VL) {                             \
            even_ += TERM;                                               \
            i += VL;                                                     \
            odd_ += TERM;                                                \
        }                                                                \
        for (; i < to_; i++) { sum_ += LAST; }                           \
        (total) += vsum(even_ + odd_) + sum_;                            \
    }

/* NaN may be missed: it comes back in the sum. */
static float largest(const float *x, ptrdiff_t n) {
    float top = x[0];
    ptrdiff_t i = 0;
    if (n >= VL) {
        vf best = vload(x);
        for (i = VL; i + VL <= n; i += VL) {
            const vf v = vload(x + i);
            const vi more = v > best;
            best = (vf)((more & (vi)v) | (~more & (vi)best));
        }
        for (int l = 0; l < VL; l++) { top = best[l] > top ? best[l] : top; }
    }
    for (; i < n; i++) { top = x[i] > top ? x[i] : top; }
    return top;
}

/* y = exp(x - max) / sum; with neighbours far apart element by element, else in vectors */
static void softmax_row(const RowJob *job, size_t at) {
    const float *x = job->a + at;
    const ptrdiff_t n = job->length;
    const size_t step = job->step;
    float *y = job->out + at, sum = 0.0f;
    if (step == 1) {
        const float top = largest(x, n);
        for (ptrdiff_t i = 0; i < n; i++) { y[i] = smg_expf(x[i] - top); }
        ROW_SUM(sum, n, vload(y + i), y[i])
        const float scale = 1.0f / sum;
        for (ptrdiff_t i = 0; i < n; i++) { y[i] *= scale; }
        return;
    }
    float top = x[0];
    for (size_t i = 0; i < (size_t)n; i++) { top = x[i * step] > top ? x[i * step] : top; }
    for (size_t i = 0; i < (size_t)n; i++) { sum += y[i * step] = smg_expf(x[i * step] - top); }
    for (size_t i = 0; i < (size_t)n; i++) { y[i * step] /= sum; }
}

/* dx = y * (dy - sum of dy * y) */
static void softmax_dx_row(const RowJob *job, size_t at) {
    const float *dy = job->a + at, *y = job->b + at;
    const ptrdiff_t n = job->length;
    const size_t step = job->step;
    float *dx = job->out + at, dot = 0.0f;
    if (step == 1) {
        ROW_SUM(dot, n, vload(dy + i) * vload(y + i), dy[i] * y[i])
        for (ptrdiff_t i = 0; i < n; i++) { dx[i] = y[i] * (dy[i] - dot); }
        return;
    }
    for (size_t i = 0; i < (size_t)n; i++) { dot += dy[i * step] * y[i * step]; }
    for (size_t i = 0; i < (size_t)n; i++) { dx[i * step] = y[i * step] * (dy[i * step] - dot); }
}

static SmgFault softmax_rows(const SmgCall *c, RowJob job) {
    const Lines v = lines_of(c->p);
    job.rows = (ptrdiff_t)v.outer * v.inner;
    job.length = v.L;
    job.step = (size_t)v.inner;
    run_rows(c, &job);
    return SMG_NO_FAULT;
}
FAST_KERNEL(softmax_f32) { return softmax_rows(c, (RowJob){.row = softmax_row, .out = OUT(0), .a = IN(1)}); }
FAST_KERNEL(softmax_dx_f32) {
    return softmax_rows(c, (RowJob){.row = softmax_dx_row, .out = OUT(0), .a = IN(1), .b = IN(2)});
}

/* The mean and the inverse root of the variance. */
static void stats(const float *x, ptrdiff_t n, float eps, float *mean, float *inverse) {
    float sum = 0.0f, squares = 0.0f;
    ROW_SUM(sum, n, vload(x + i), x[i])
    const float m = sum / (float)n;
    ROW_SUM(squares, n, (vload(x + i) - m) * (vload(x + i) - m), (x[i] - m) * (x[i] - m))
    *mean = m;
    *inverse = 1.0f / __builtin_sqrtf(squares / (float)n + eps);
}

/* y = (x - mean) / sqrt(var + eps) * gamma + beta */
static void layer_norm_row(const RowJob *job, size_t at) {
    const float *x = job->a + at, *gamma = job->gamma, *beta = job->beta;
    float *y = job->out + at, mean, inverse;
    stats(x, job->length, job->eps, &mean, &inverse);
    for (ptrdiff_t i = 0; i < job->length; i++) { y[i] = (x[i] - mean) * inverse * gamma[i] + beta[i]; }
}

/* With h = dy * gamma: dx = (h - mean(h) - xhat * mean(h * xhat)) / sqrt(var + eps) */
static void layer_norm_dx_row(const RowJob *job, size_t at) {
    const float *dy = job->a + at, *x = job->b + at, *gamma = job->gamma;
    const ptrdiff_t n = job->length;
    float *dx = job->out + at, mean, inverse, base = 0.0f, slope = 0.0f;
    stats(x, n, job->eps, &mean, &inverse);
    ROW_SUM(base, n, vload(dy + i) * vload(gamma + i), dy[i] * gamma[i])
    ROW_SUM(slope, n, vload(dy + i) * vload(gamma + i) * (vload(x + i) - mean), dy[i] * gamma[i] * (x[i] - mean))
    base = base / (float)n;
    slope = slope / (float)n * inverse * inverse;
    for (ptrdiff_t i = 0; i < n; i++) { dx[i] = inverse * (dy[i] * gamma[i] - base - (x[i] - mean) * slope); }
}

static SmgFault layer_norm_rows(const SmgCall *c, RowJob job) {
    const Affine v = affine_of(c->p);
    job.rows = v.matrix.R;
    job.length = v.matrix.C;
    job.step = 1;
    job.eps = v.eps;
    run_rows(c, &job);
    return SMG_NO_FAULT;
}
FAST_KERNEL(layer_norm_f32) {
    return layer_norm_rows(c,
                           (RowJob){.row = layer_norm_row, .out = OUT(0), .a = IN(1), .gamma = IN(2), .beta = IN(3)});
}
FAST_KERNEL(layer_norm_dx_f32) {
    return layer_norm_rows(c,
                           (RowJob){.row = layer_norm_dx_row, .out = OUT(0), .a = IN(1), .b = IN(2), .gamma = IN(3)});
}

/* Elements count as rows. */
static void gelu_part(void *arg, ptrdiff_t part, int thread) {
    const RowJob *job = (const RowJob *)arg;
    const ptrdiff_t from = job->rows * part / job->parts, to = job->rows * (part + 1) / job->parts;
    const float *x = job->a;
    float *y = job->out;
    (void)thread;
    if (job->tanh_form) {
        for (ptrdiff_t i = from; i < to; i++) { y[i] = x[i] * gelu_tanh_gate(x[i]); }
    } else {
        for (ptrdiff_t i = from; i < to; i++) { y[i] = x[i] * gelu_gate(x[i]); }
    }
}
static void gelu_dx_part(void *arg, ptrdiff_t part, int thread) {
    const RowJob *job = (const RowJob *)arg;
    const ptrdiff_t from = job->rows * part / job->parts, to = job->rows * (part + 1) / job->parts;
    const float *dy = job->a, *x = job->b;
    float *dx = job->out;
    (void)thread;
    if (job->tanh_form) {
        for (ptrdiff_t i = from; i < to; i++) { dx[i] = dy[i] * gelu_tanh_slope(x[i]); }
    } else {
        for (ptrdiff_t i = from; i < to; i++) { dx[i] = dy[i] * gelu_slope(x[i]); }
    }
}

/* The constant says whether it is the tanh form. */
static SmgFault gelu_elements(const SmgCall *c, RowJob job, SmgTask task) {
    const SmgWork *work = smg_work(c);
    const MapA v = map_a_of(c->p);
    job.rows = v.map.N;
    job.tanh_form = v.a != 0;
    job.parts = job.rows < ENOUGH ? 1 : work->threads;
    smg_parallel(work, task, &job, job.parts);
    return SMG_NO_FAULT;
}
FAST_KERNEL(gelu_f32) { return gelu_elements(c, (RowJob){.out = OUT(0), .a = IN(1)}, gelu_part); }
FAST_KERNEL(gelu_dx_f32) { return gelu_elements(c, (RowJob){.out = OUT(0), .a = IN(1), .b = IN(2)}, gelu_dx_part); }
