/* Products of matrices, and their gradients. Row-major, weights [O][K].
 * Each output is one sum in an order of its own (sum.h), so neither blocking nor the batch it sits in changes a bit. */
#include "going.h"
#include "params.h"
#include "rounded.h"
#include "samples.h"
#include "source.h"
#include "tile.h"
#include "weight_kernels.h"

/* y[R][O] = x[R][K] w[O][K]^T + b[O] */
static void dot_rows(float *y, const float *x, const Weights *w, const float *b, int32_t R, int32_t O, int32_t K) {
    for (int32_t o = 0; o < O; o += 4) {
        const int32_t rows = O - o < 4 ? O - o : 4;
        const float *wo = weights_rows(w, o, rows, K);
        for (int32_t r = 0; r < R; r++) {
            const float *xr = x + (ptrdiff_t)r * K;
            float *yr = y + (ptrdiff_t)r * O + o;
            smg_dots(yr, rows, xr, wo, K, K);
            for (int i = 0; b && i < rows; i++) { yr[i] += b[o + i]; }
        }
    }
}

/* total[l] += sum over t of a[t * a_step] * b[t * b_step + l], a block at a time: another call with a multiple of
 * SMG_BLOCK before it is one call with all of them. */
static void add_rows(float *total, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                     int32_t T) {
    float part[16] = {0};
    for (int32_t t = 0; t < T; t += SMG_BLOCK) {
        const int32_t count = T - t < SMG_BLOCK ? T - t : SMG_BLOCK;
        smg_rows(part, width, a + t * a_step, a_step, b + t * b_step, b_step, count);
        smg_flush(total, part, width);
    }
}
static void sum_rows(float *total, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                     int32_t T) {
    for (int l = 0; l < width; l++) { total[l] = 0.0f; }
    add_rows(total, width, a, a_step, b, b_step, T);
}

/* Bytes of x, w and y; -1 refuses. */
static int linear_need(const int32_t *p, uint64_t *x, uint64_t *w, uint64_t *y) {
    const Linear v = linear_of(p);
    if (!batch_ok(v.R) || !size_ok(v.O) || !size_ok(v.K)) { return -1; }
    *x = floats(v.R, v.K, 1);
    *w = floats(v.O, v.K, 1);
    *y = floats(v.R, v.O, 1);
    return 0;
}

static ptrdiff_t linear_length(const int32_t *p) { return linear_of(p).K; }

static void linear(const int32_t *p, float *y, const float *x, const Weights *w, const float *b) {
    const Linear v = linear_of(p);
    dot_rows(y, x, w, b, v.R, v.O, v.K);
}
EXTENT(linear_f32) {
    if (linear_need(p, &need[1], &need[2], &need[0])) { return -1; }
    if (operands > 3) { need[3] = floats(linear_of(p).O, 1, 1); }
    return 0;
}
KERNEL(linear_f32, "oiii?", PARAMS(Linear)) {
    const Weights w = weights_f32(IN(2));
    linear(c->p, OUT(0), IN(1), &w, OPTIONAL_IN(3));
    return SMG_NO_FAULT;
}
static int linear_stored_need(const int32_t *p, WeightsNeed *n) {
    const Linear v = linear_of(p);
    if (linear_need(p, &n->x, &n->w, &n->y)) { return -1; }
    n->outputs = v.O;
    n->bias = floats(v.O, 1, 1);
    n->room = weights_rows_room(v.O, (uint64_t)v.K);
    return 0;
}
WEIGHT_KERNELS(linear, linear, PARAMS(Linear), linear_length, "i")

/* dx[R][K] = dy[R][O] w[O][K] */
static void linear_dx(const int32_t *p, float *dx, const float *dy, const Weights *w, SMG_UNUSED const float *b) {
    const Linear v = linear_of(p);
    float total[16];
    Panel panel;
    for (int32_t k = 0, width; k < v.K; k += width) {
        weights_panel(w, &panel, 0, v.O, 1, v.K, &k);
        width = panel.width;
        for (int32_t r = 0; r < v.R; r++) {
            sum_rows(total, width, dy + (ptrdiff_t)r * v.O, 1, panel.w, panel.output, v.O);
            memcpy(dx + (ptrdiff_t)r * v.K + k, total, (size_t)width * sizeof(float));
        }
    }
}
EXTENT(linear_dx_f32) { return linear_need(p, &need[0], &need[2], &need[1]); }
KERNEL(linear_dx_f32, "oii", PARAMS(Linear)) {
    const Weights w = weights_f32(IN(2));
    linear_dx(c->p, OUT(0), IN(1), &w, NULL);
    return SMG_NO_FAULT;
}
static int linear_dx_stored_need(const int32_t *p, WeightsNeed *n) {
    const Linear v = linear_of(p);
    if (linear_need(p, &n->y, &n->w, &n->x)) { return -1; }
    n->outputs = v.O;
    n->room = weights_panel_room(v.K, (uint64_t)v.O);
    return 0;
}
WEIGHT_KERNELS(linear_dx, linear_dx, PARAMS(Linear), linear_length, "")
WEIGHT_KERNEL_INT8(linear_dx, linear_dx, PARAMS(Linear), linear_length, "")

/* A tile of w[of_o][of_k], outputs from at_o and inputs from at_k on: y[R][K] = dy[R][O] w[O][K] or, as if all of it
 * had been one sum, sum[R][K] + dy[R][O] w[O][K]; y may be the sum. */
static void tile_dx(const int32_t *p, float *y, const float *dy, const Weights *w, const float *sum) {
    const LinearDxTile v = linear_dx_tile_of(p);
    const int32_t K = v.own.K, stop = v.at_k + K;
    float total[16];
    Panel panel;
    for (int32_t k = v.at_k, next = k; next < stop; next = k += panel.width) {
        weights_panel(w, &panel, v.at_o, v.own.O, 1, v.of_k, &k);
        const int old = next - k, end = stop - k < panel.width ? stop - k : panel.width; /* columns that are new here */
        for (int32_t r = 0; r < v.own.R; r++) {
            const ptrdiff_t at = (ptrdiff_t)r * K + next - v.at_k;
            memset(total, 0, sizeof total);
            if (sum) { memcpy(total + old, sum + at, (size_t)(end - old) * sizeof(float)); }
            add_rows(total, panel.width, dy + (ptrdiff_t)r * v.own.O, 1, panel.w, panel.output, v.own.O);
            memcpy(y + at, total + old, (size_t)(end - old) * sizeof(float));
        }
    }
}
static ptrdiff_t tile_dx_length(const int32_t *p) { return linear_dx_tile_of(p).of_k; }
static int tile_dx_stored_need(const int32_t *p, WeightsNeed *n) {
    const LinearDxTile v = linear_dx_tile_of(p);
    if (linear_need(p, &n->y, &n->w, &n->x) || !size_ok(v.of_o) || !size_ok(v.of_k)) { return -1; }
    if (v.at_o < 0 || v.at_o > v.of_o - v.own.O || v.at_k < 0 || v.at_k > v.of_k - v.own.K) { return -1; }
    n->w = floats(v.of_o, v.of_k, 1);
    n->outputs = v.of_o;
    n->bias = n->y; /* the sum has its place */
    n->room = weights_panel_room(v.of_k, (uint64_t)v.own.O);
    return 0;
}
static int tile_extent(const int32_t *p, int sum, int operands, uint64_t *need) {
    WeightsNeed n;
    if (tile_dx_stored_need(p, &n)) { return -1; }
    n.room = 0;
    return weights_extent(&n, 0, sum, NULL, operands, need);
}
EXTENT(linear_dx_tile_f32) { return tile_extent(p, 0, operands, need); }
EXTENT(linear_dx_add_f32) { return tile_extent(p, 1, operands, need); }
KERNEL(linear_dx_tile_f32, "oii", PARAMS(LinearDxTile)) {
    const Weights w = weights_f32(IN(2));
    tile_dx(c->p, OUT(0), IN(1), &w, NULL);
    return SMG_NO_FAULT;
}
KERNEL(linear_dx_add_f32, "oiii", PARAMS(LinearDxTile)) {
    const Weights w = weights_f32(IN(2));
    tile_dx(c->p, OUT(0), IN(1), &w, IN(3));
    return SMG_NO_FAULT;
}
WEIGHT_KERNELS(linear_dx_tile, tile_dx, PARAMS(LinearDxTile), tile_dx_length, "")
WEIGHT_KERNEL_INT8(linear_dx_tile, tile_dx, PARAMS(LinearDxTile), tile_dx_length, "")
WEIGHT_KERNELS(linear_dx_add, tile_dx, PARAMS(LinearDxTile), tile_dx_length, "i")
WEIGHT_KERNEL_INT8(linear_dx_add, tile_dx, PARAMS(LinearDxTile), tile_dx_length, "i")

EXTENT(matmul_f32) {
    const Matmul v = matmul_of(p);
    if (!batch_ok(v.B) || !batch_ok(v.M) || !batch_ok(v.K) || !batch_ok(v.N)) { return -1; }
    need[0] = floats(v.B, v.M, v.N);
    need[1] = floats(v.B, v.M, v.K);
    need[2] = floats(v.B, v.K, v.N);
    return 0;
}
KERNEL(matmul_f32, "oii", PARAMS(Matmul)) {
    const Matmul v = matmul_of(c->p);
    const int32_t B = v.B, M = v.M, K = v.K, N = v.N, ta = v.ta, tb = v.tb;
    float total[16];
    for (int32_t i = 0; i < B && M && N; i++) {
        float *y = OUT(0) + (ptrdiff_t)i * M * N;
        const float *a = IN(1) + (ptrdiff_t)i * M * K, *b = IN(2) + (ptrdiff_t)i * K * N;
        if (!ta && tb) {
            const Weights w = weights_f32(b);
            dot_rows(y, a, &w, NULL, M, N, K);
        } else if (!tb) {
            for (int32_t n = 0, width; n < N; n += width) {
                width = smg_wide(&n, N);
                for (int32_t m = 0; m < M; m++) {
                    sum_rows(total, width, ta ? a + m : a + (ptrdiff_t)m * K, ta ? M : 1, b + n, N, K);
                    memcpy(y + (ptrdiff_t)m * N + n, total, (size_t)width * sizeof(float));
                }
            }
        } else { /* lanes run along the columns of a */
            for (int32_t m = 0, width; m < M; m += width) {
                width = smg_wide(&m, M);
                for (int32_t n = 0; n < N; n++) {
                    sum_rows(total, width, b + (ptrdiff_t)n * K, 1, a + m, M, K);
                    for (int l = 0; l < width; l++) { y[(ptrdiff_t)(m + l) * N + n] = total[l]; }
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

static int linear_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const LinearDw v = linear_dw_of(p);
    if (!samples_ok(v.rows) || !size_ok(v.O) || !size_ok(v.K)) { return -1; }
    own[0] = rows_bytes(v.rows, v.O);
    own[1] = rows_bytes(v.rows, v.K);
    *elements = smg_mul((uint64_t)v.O, (uint64_t)v.K);
    return 0;
}
SOURCE_CODE void linear_sums(const LinearDw *v, const Sink *sink, const float *dy, Source x) {
    const int32_t A = v->rows.A, N = v->rows.N, R = v->rows.R, O = v->O, K = v->K;
    Tile t;
    for (int32_t o = 0; o < O; o += t.rows) {
        tile_rows(&t, &o, O);
        for (int32_t k = 0; k < K; k += t.columns) {
            tile_columns(&t, &k, K);
            const size_t at = (size_t)o * (size_t)K + (size_t)k;
            tile_begin(&t, sink, at, (size_t)K);
            if (A == 1 && R == 1) { /* a sample is one row */
                source_outer(t.tile, t.rows, t.columns, dy + o, O, source_at(x, k), K, N);
            }
            for (int32_t n = 0; n < N && (A != 1 || R != 1); n++) {
                tile_sample_begin(&t);
                for (int32_t a = 0; a < A; a++) {
                    for (int32_t r = 0; r < R; r += SMG_BLOCK) {
                        const int32_t count = R - r < SMG_BLOCK ? R - r : SMG_BLOCK;
                        const ptrdiff_t row = first_row(N, R, a, n) + r;
                        source_outer(t.part, t.rows, t.columns, dy + row * O + o, O, source_at(x, row * K + k), K,
                                     count);
                        tile_count(&t, count);
                    }
                }
                tile_sample_end(&t);
            }
            tile_end(&t, sink, at, (size_t)K);
        }
    }
}
static SmgFault linear_dw(const SmgCall *c, const Sink *sink) {
    const LinearDw v = linear_dw_of(c->p);
    linear_sums(&v, sink, SINK_IN(sink, 0), source_f32(SINK_IN(sink, 1)));
    return SMG_NO_FAULT;
}
SINK_KERNELS(linear_dw, 2, "ii", PARAMS(LinearDw), "")

/* The same with x in int8, less its zero point. */
typedef struct {
    LinearDw own;
    int32_t zero;
} QLinearDw;
UNPACK(qlinear_dw_of, QLinearDw)

static int qlinear_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const QLinearDw v = qlinear_dw_of(p);
    if (linear_dw_need(p, own, elements) || v.zero < -128 || v.zero > 127) { return -1; }
    own[1] /= sizeof(float);
    return 0;
}
static SmgFault qlinear_dw(const SmgCall *c, const Sink *sink) {
    const QLinearDw v = qlinear_dw_of(c->p);
    linear_sums(&v.own, sink, SINK_IN(sink, 0), source_int8(SINK_IN_AS(int8_t, sink, 1), v.zero));
    return SMG_NO_FAULT;
}
SINK_KERNEL_(qlinear_dw, _f32, SMG_STORE, "o", 2, "ii", "", PARAMS(QLinearDw), "")
SINK_KERNEL_(qlinear_dw, _acc_f32, SMG_ACC, "u", 2, "ii", "", PARAMS(QLinearDw), "")
ROUNDED_KERNELS(qlinear_dw, 2, "ii", PARAMS(QLinearDw), i8)
/* Some rows; a partial sum is kept from call to call. */
static int positions_ok(int32_t rows, int32_t width, int32_t first, int32_t count) {
    return size_ok(width) && size_ok(rows) && floats(1, rows, width) <= (uint64_t)4 << 28 && first >= 0 && count > 0;
}
EXTENT(linear_dw_rows_f32) {
    const LinearDwRows v = linear_dw_rows_of(p);
    if (!positions_ok(v.rows, v.width, v.first, v.count) || !size_ok(v.O) || !size_ok(v.K)) { return -1; }
    need[0] = need[3] = floats(1, v.O, v.K);
    need[1] = smg_mul(floats(1, v.rows, v.width), (uint64_t)v.O);
    need[2] = smg_mul(floats(1, v.rows, v.width), (uint64_t)v.K);
    return 0;
}
KERNEL(linear_dw_rows_f32, "oiis", PARAMS(LinearDwRows)) {
    const LinearDwRows v = linear_dw_rows_of(c->p);
    const Going going = going_of(OUT(0), OUT(3), v.first, v.rows, v.count);
    const int32_t R = v.rows * v.width, O = v.O, K = v.K;
    Tile t;
    for (int32_t o = 0; o < O; o += t.rows) {
        tile_rows(&t, &o, O);
        for (int32_t k = 0; k < K; k += t.columns) {
            tile_columns(&t, &k, K);
            const size_t at = (size_t)o * (size_t)K + (size_t)k;
            tile_go_on(&t, &going, at, (size_t)K, going_pending(v.first, v.width));
            for (int32_t r = 0, count; r < R; r += count) {
                count = R - r < SMG_BLOCK - t.pending ? R - r : SMG_BLOCK - t.pending;
                const float *dy = IN(1) + (ptrdiff_t)r * O + o, *x = IN(2) + (ptrdiff_t)r * K + k;
                smg_outer(t.part, t.rows, t.columns, dy, O, x, K, count);
                tile_count(&t, count);
            }
            tile_stop(&t, &going, at, (size_t)K);
        }
    }
    return SMG_NO_FAULT;
}

static int bias_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const BiasDw v = bias_dw_of(p);
    if (!samples_ok(v.rows) || !size_ok(v.C)) { return -1; }
    own[0] = rows_bytes(v.rows, v.C);
    *elements = (uint64_t)v.C;
    return 0;
}
static SmgFault bias_dw(const SmgCall *c, const Sink *sink) {
    const float *dy = SINK_IN(sink, 0), one = 1.0f;
    const BiasDw v = bias_dw_of(c->p);
    const int32_t A = v.rows.A, N = v.rows.N, R = v.rows.R, C = v.C;
    for (int32_t next = 0, at = 0, width; next < C; next = at + width) {
        at = next;
        width = smg_wide(&at, C);
        const int32_t old = next - at; /* channels that the block before has ended */
        float tile[16] = {0}, sample[16] = {0}, part[16] = {0};
        smg_sink_begin(sink, tile + old, (size_t)next, (size_t)(width - old));
        for (int32_t n = 0; n < N; n++) {
            for (int32_t a = 0; a < A; a++) {
                for (int32_t r = 0; r < R; r += SMG_BLOCK) {
                    const int32_t count = R - r < SMG_BLOCK ? R - r : SMG_BLOCK;
                    smg_rows(part, width, &one, 0, dy + (first_row(N, R, a, n) + r) * C + at, C, count);
                    smg_flush(sample, part, width);
                }
            }
            smg_flush(tile, sample, width);
        }
        smg_sink_end(sink, tile + old, (size_t)next, (size_t)(width - old));
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(bias_dw, 1, "i", PARAMS(BiasDw), "")
ROUNDED_KERNELS(bias_dw, 1, "i", PARAMS(BiasDw), i32)

EXTENT(bias_dw_rows_f32) {
    const BiasDwRows v = bias_dw_rows_of(p);
    if (!positions_ok(v.rows, v.width, v.first, v.count) || !size_ok(v.C)) { return -1; }
    need[0] = need[2] = floats(1, 1, v.C);
    need[1] = smg_mul(floats(1, v.rows, v.width), (uint64_t)v.C);
    return 0;
}
KERNEL(bias_dw_rows_f32, "ois", PARAMS(BiasDwRows)) {
    const BiasDwRows v = bias_dw_rows_of(c->p);
    const Going going = going_of(OUT(0), OUT(2), v.first, v.rows, v.count);
    const int32_t R = v.rows * v.width, C = v.C;
    const float one = 1.0f;
    for (int32_t next = 0, at = 0, width; next < C; next = at + width) {
        at = next;
        width = smg_wide(&at, C);
        const int32_t old = next - at; /* channels that the block before has ended */
        float sum[16], part[16];
        int32_t pending = going_pending(v.first, v.width);
        going_begin(&going, sum, part, (size_t)at, (size_t)width);
        for (int32_t r = 0, count; r < R; r += count) {
            count = R - r < SMG_BLOCK - pending ? R - r : SMG_BLOCK - pending;
            smg_rows(part, width, &one, 0, IN(1) + (ptrdiff_t)r * C + at, C, count);
            pending = (pending + count) % SMG_BLOCK;
            if (!pending) { smg_flush(sum, part, width); }
        }
        if (going.is_last && pending) { smg_flush(sum, part, width); }
        going_end(&going, sum + old, part + old, (size_t)next, (size_t)(width - old));
    }
    return SMG_NO_FAULT;
}
