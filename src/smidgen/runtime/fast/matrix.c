/* Linear layers and products of matrices. Parameters and operands are those of kernels/matrix.c. */
#include "../kernels/params.h"
#include "conv.h"
#include "gemm.h"
#include "threads.h"
#include "sink.h"

static ptrdiff_t linear_length(const int32_t *p) { return linear_of(p).K; }

/* y[R][O] = x[R][K] w[O][K]^T + bias[O] */
static void linear(const SmgWork *work, const int32_t *params, float *y, const float *x, const Weights *w,
                   const float *bias) {
    const Linear v = linear_of(params);
    Product p = {.M = v.R,
                 .N = v.O,
                 .depth = v.K,
                 .a = x,
                 .a_row = v.K,
                 .a_step = 1,
                 .b_k = 1,
                 .b_n = v.K,
                 .c = y,
                 .c_row = v.O,
                 .bias = bias};
    product_weights(&p, w, 0, v.K);
    SMG_LOCAL(product)(work, &p);
}
FAST_KERNEL(linear_f32) {
    const Weights w = weights_f32(IN(2));
    linear(smg_work(c), c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
FAST_WEIGHT_KERNELS(linear, linear, PARAMS(Linear), linear_length, 1)

/* dx[R][K] = dy[R][O] w[O][K] */
static void linear_dx(const SmgWork *work, const int32_t *params, float *dx, const float *dy, const Weights *w,
                      SMG_UNUSED const float *bias) {
    const Linear v = linear_of(params);
    Product p = {.M = v.R,
                 .N = v.K,
                 .depth = v.O,
                 .a = dy,
                 .a_row = v.O,
                 .a_step = 1,
                 .b_k = v.K,
                 .b_n = 1,
                 .c = dx,
                 .c_row = v.K};
    product_weights(&p, w, 0, v.K);
    SMG_LOCAL(product)(work, &p);
}
FAST_KERNEL(linear_dx_f32) {
    const Weights w = weights_f32(IN(2));
    linear_dx(smg_work(c), c->p, OUT(0), IN(1), &w, NULL);
    return SMG_NO_FAULT;
}
FAST_WEIGHT_KERNELS(linear_dx, linear_dx, PARAMS(Linear), linear_length, 0)

static ptrdiff_t rows_of(Samples v) { return (ptrdiff_t)v.A * v.N * v.R; }

/* dw[O][K] = the sum over rows r of dy[r][O] x[r][K] */
static SmgFault linear_dw(const SmgCall *c, const Sink *sink) {
    const LinearDw v = linear_dw_of(c->p);
    const Gradient g = {.M = rows_of(v.rows),
                        .O = v.O,
                        .J = v.K,
                        .dy = SINK_IN(sink, 0),
                        .x = SINK_IN(sink, 1),
                        .dy_row = v.O,
                        .x_row = v.K};
    SMG_LOCAL(gradient)(smg_work(c), &g, sink);
    return SMG_NO_FAULT;
}
FAST_SINK_KERNELS(linear_dw, 2, 5)

FAST_KERNEL(linear_dw_rows_f32) {
    const LinearDwRows v = linear_dw_rows_of(c->p);
    const Sink sink = {.mode = v.first ? SMG_ACC : SMG_STORE, .w = OUT(0)};
    const Gradient g = {
        .M = (ptrdiff_t)v.rows * v.width, .O = v.O, .J = v.K, .dy = IN(1), .x = IN(2), .dy_row = v.O, .x_row = v.K};
    SMG_LOCAL(gradient)(smg_work(c), &g, &sink);
    return SMG_NO_FAULT;
}

#define FAR 192 /* floats between neighbours in a row of a, when it is [K][M]: beyond, packing them repays */

/* A batch of products; p is the first. */
typedef struct {
    const SmgWork *work;
    Product p;
    int turned; /* a's rows are its columns, and far apart: they are packed, as for a weight gradient */
} Products;

/* Product i of the batch: c[M][N] = a[M][K] b[K][N]; a turned product is sum over k of a[k][M] b[k][N], as a gradient
 * is. */
static void one_product(const SmgWork *work, const Products *job, ptrdiff_t i) {
    Product p = job->p;
    const ptrdiff_t K = p.depth;
    p.a += i * p.M * K;
    p.b += i * K * p.N;
    p.c += i * p.M * p.N;
    if (job->turned) {
        const Sink store = {.mode = SMG_STORE, .w = p.c};
        const Gradient g = {.M = K, .O = (int32_t)p.M, .J = p.N, .dy = p.a, .dy_row = p.M, .x = p.b, .x_row = p.N};
        SMG_LOCAL(gradient)(work, &g, &store);
    } else {
        SMG_LOCAL(product)(work, &p);
    }
}

/* A whole product is one thread's work. */
static void product_by_one_thread(void *arg, ptrdiff_t i, int thread) {
    const Products *job = (const Products *)arg;
    const SmgWork own = {
        .memory = smg_work_of(job->work, thread), .each = job->work->each, .bytes = job->work->each, .threads = 1};
    one_product(&own, job, i);
}

/* Many products are shared out whole, which needs no waiting between them; few are each split over the threads. */
FAST_KERNEL(matmul_f32) {
    const Matmul v = matmul_of(c->p);
    const int32_t B = v.B, M = v.M, K = v.K, N = v.N, ta = v.ta, tb = v.tb;
    Products job = {
        .work = smg_work(c),
        .turned = ta && !tb && M > FAR,
        .p = {.M = M,
              .N = N,
              .depth = K,
              .a = IN(1),
              .a_row = ta ? 1 : K,
              .a_step = ta ? M : 1,
              .b = IN(2),
              .b_k = tb ? 1 : N,
              .b_n = tb ? K : 1,
              .c = OUT(0),
              .c_row = N},
    };
    const int threads = job.work->threads;
    if (threads > 1 && (B >= 4 * threads || B % threads == 0) && (int64_t)B * M * N * K >= SMG_ALONE) {
        smg_parallel(job.work, product_by_one_thread, &job, B);
    } else {
        for (int32_t i = 0; i < B; i++) { one_product(job.work, &job, i); }
    }
    return SMG_NO_FAULT;
}

#define LANES 1024 /* columns at a time */
#define TERMS 256  /* rows whose sum is added to the total at once, which keeps the error of long sums small */

typedef struct {
    const SmgWork *work;
    const Sink *sink;
    const float *dy;
    ptrdiff_t rows;
    int32_t columns, threads;
} Sums;

/* sum[l] += rows of `dy`, four at a time */
static void add_rows(float *restrict sum, const float *dy, ptrdiff_t row, ptrdiff_t rows, int32_t width) {
    ptrdiff_t r = 0;
    for (; r + 4 <= rows; r += 4, dy += 4 * row) {
        for (int32_t l = 0; l < width; l++) { sum[l] += (dy[l] + dy[row + l]) + (dy[2 * row + l] + dy[3 * row + l]); }
    }
    for (; r < rows; r++, dy += row) {
        for (int32_t l = 0; l < width; l++) { sum[l] += dy[l]; }
    }
}

/* Sums of columns dy[rows][columns]; a thread takes whole vectors of columns, so no sum is split. */
static void sums(void *arg, ptrdiff_t i, int thread) {
    const Sums *job = (const Sums *)arg;
    float *total = (float *)smg_work_of(job->work, thread), *sum = total + LANES;
    const ptrdiff_t units = (job->columns + NR - 1) / NR;
    const int32_t from = (int32_t)(units * i / job->threads * NR);
    const ptrdiff_t last = units * (i + 1) / job->threads * NR;
    const int32_t to = last < job->columns ? (int32_t)last : job->columns;
    for (int32_t c = from; c < to; c += LANES) {
        const int32_t width = to - c < LANES ? to - c : LANES;
        memset(total, 0, (size_t)width * sizeof(float));
        for (ptrdiff_t r = 0; r < job->rows; r += TERMS) {
            const ptrdiff_t rows = job->rows - r < TERMS ? job->rows - r : TERMS;
            memset(sum, 0, (size_t)width * sizeof(float));
            add_rows(sum, job->dy + r * job->columns + c, job->columns, rows, width);
            for (int32_t l = 0; l < width; l++) { total[l] += sum[l]; }
        }
        fast_sink(job->sink, total, (size_t)c, (size_t)width);
    }
}

static SmgFault bias_dw(const SmgCall *c, const Sink *sink) {
    const BiasDw v = bias_dw_of(c->p);
    Sums job = {smg_work(c), sink, SINK_IN(sink, 0), rows_of(v.rows), v.C, 1};
    if (job.rows * job.columns > 1 << 15) { job.threads = job.work->threads; }
    smg_parallel(job.work, sums, &job, job.threads);
    return SMG_NO_FAULT;
}
FAST_SINK_KERNELS(bias_dw, 1, 4)

FAST_KERNEL(bias_dw_rows_f32) {
    const BiasDwRows v = bias_dw_rows_of(c->p);
    const Sink sink = {.mode = v.first ? SMG_ACC : SMG_STORE, .w = OUT(0)};
    Sums job = {smg_work(c), &sink, IN(1), (ptrdiff_t)v.rows * v.width, v.C, 1};
    if (job.rows * job.columns > 1 << 15) { job.threads = job.work->threads; }
    smg_parallel(job.work, sums, &job, job.threads);
    return SMG_NO_FAULT;
}
