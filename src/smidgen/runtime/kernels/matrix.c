/* Products of matrices, embeddings, and their gradients. Row-major, weights [O][K].
 * Each output is one sum in an order of its own (sum.h), so neither blocking nor the batch it sits in changes a bit. */
#include "tile.h"
#include "weights.h"

/* All sizes are positive and small enough to be added and stepped without overflow; p[batch] may be zero. */
static int sizes_ok(const int32_t *p, int count, int batch) {
    for (int i = 0; i < count; i++) {
        if (p[i] < (i != batch) || p[i] > 1 << 28) { return 0; }
    }
    return 1;
}
static uint64_t floats(int32_t a, int32_t b, int32_t c) {
    return smg_mul(smg_mul(smg_mul((uint64_t)a, (uint64_t)b), (uint64_t)c), 4);
}

/* y[R][O] = x[R][K] w[O][K]^T + b[O] */
static void dot_rows(float *y, const float *x, const Weights *w, const float *b, int32_t R, int32_t O, int32_t K) {
    for (int32_t o = 0; o < O; o += 4) {
        const int32_t rows = O - o < 4 ? O - o : 4;
        const float *wo = weights_rows(w, o, rows, K);
        for (int32_t r = 0; r < R; r++) {
            const float *xr = x + (ptrdiff_t)r * K;
            float *yr = y + (ptrdiff_t)r * O + o, lanes[32] = {0};
            if (rows == 4) {
                smg_dot_x4(lanes, xr, wo, K, K);
            } else {
                for (int i = 0; i < rows; i++) { smg_dot(lanes + 8 * i, xr, wo + (ptrdiff_t)i * K, K); }
            }
            for (int i = 0; i < rows; i++) {
                yr[i] = b ? smg_lanes8(lanes + 8 * i) + b[o + i] : smg_lanes8(lanes + 8 * i);
            }
        }
    }
}

/* total[l] = sum over t of a[t * a_step] * b[t * b_step + l] */
static void sum_rows(float *total, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                     int32_t T) {
    float part[16] = {0};
    for (int l = 0; l < width; l++) { total[l] = 0.0f; }
    for (int32_t t = 0; t < T; t += SMG_BLOCK) {
        const int32_t count = T - t < SMG_BLOCK ? T - t : SMG_BLOCK;
        smg_rows(part, width, a + t * a_step, a_step, b + t * b_step, b_step, count);
        smg_flush(total, part, width);
    }
}

/* p: R rows, O, K; x[R][K], w[O][K], b[O] */
EXTENT(linear_f32) {
    if (!sizes_ok(p, 3, 0)) { return -1; }
    need[0] = floats(p[0], p[1], 1), need[1] = floats(p[0], p[2], 1), need[2] = floats(p[1], p[2], 1);
    if (operands > 3) { need[3] = floats(p[1], 1, 1); }
    return 0;
}
KERNEL(linear_f32, "oiii?", 3) {
    const Weights w = weights_f32(IN(2));
    dot_rows(OUT(0), IN(1), &w, OPTIONAL_IN(3), P(0), P(1), P(2));
    return NULL;
}

/* The same with weights in int8: x, q[O][K], scale[O], b[O], and room for the f32 weights of four outputs. */
EXTENT(linear_w8_f32) {
    if (!sizes_ok(p, 3, 0)) { return -1; }
    need[0] = floats(p[0], p[1], 1), need[1] = floats(p[0], p[2], 1), need[2] = floats(p[1], p[2], 1) / 4;
    need[3] = need[4] = floats(p[1], 1, 1), need[5] = floats(p[1] < 4 ? p[1] : 4, p[2], 1);
    return 0;
}
KERNEL(linear_w8_f32, "oiiiis", 3) {
    const Weights w = {.q = IN_AS(int8_t, 2), .scale = IN(3), .room = OUT(5), .widen = weights_widen};
    dot_rows(OUT(0), IN(1), &w, IN(4), P(0), P(1), P(2));
    return NULL;
}

/* p: R rows, O, K; dy[R][O], w[O][K] */
EXTENT(linear_dx_f32) {
    if (!sizes_ok(p, 3, 0)) { return -1; }
    need[0] = floats(p[0], p[2], 1), need[1] = floats(p[0], p[1], 1), need[2] = floats(p[1], p[2], 1);
    return 0;
}
KERNEL(linear_dx_f32, "oii", 3) {
    const float *dy = IN(1), *w = IN(2);
    float *dx = OUT(0), total[16];
    const int32_t R = P(0), O = P(1), K = P(2);
    for (int32_t k = 0, width; k < K; k += width) {
        width = smg_wide(&k, K);
        for (int32_t r = 0; r < R; r++) {
            sum_rows(total, width, dy + (ptrdiff_t)r * O, 1, w + k, K, O);
            memcpy(dx + (ptrdiff_t)r * K + k, total, (size_t)width * sizeof(float));
        }
    }
    return NULL;
}

/* y = a b for B pairs. p: B, M, K, N, ta, tb; a[B][M][K], or [B][K][M] if ta; b[B][K][N], or [B][N][K] if tb */
EXTENT(matmul_f32) {
    for (int i = 0; i < 4; i++) {
        if (p[i] < 0 || p[i] > 1 << 28) { return -1; }
    }
    need[0] = floats(p[0], p[1], p[3]), need[1] = floats(p[0], p[1], p[2]), need[2] = floats(p[0], p[2], p[3]);
    return 0;
}
KERNEL(matmul_f32, "oii", 6) {
    const int32_t B = P(0), M = P(1), K = P(2), N = P(3), ta = P(4), tb = P(5);
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
    return NULL;
}

/* Where the rows of a sample are: p[0] outer axes, p[1] samples, p[2] rows of one sample under one outer index. */
static ptrdiff_t first_row(const int32_t *p, int32_t outer, int32_t sample) {
    return ((ptrdiff_t)outer * p[1] + sample) * p[2];
}
static uint64_t all_rows(const int32_t *p) { return floats(p[0], p[1], p[2]) / 4; }

/* dw[O][K] = sum over rows of dy[row][O] x[row][K]. p: outer, samples, rows, O, K */
static int linear_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    if (!sizes_ok(p, 5, 1)) { return -1; }
    own[0] = smg_mul(all_rows(p), floats(p[3], 1, 1)), own[1] = smg_mul(all_rows(p), floats(p[4], 1, 1));
    *elements = floats(p[3], p[4], 1) / 4;
    return 0;
}
static const char *linear_dw(const SmgCall *c, const Sink *sink) {
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    const int32_t A = P(0), N = P(1), R = P(2), O = P(3), K = P(4);
    Tile t;
    for (int32_t o = 0; o < O; o += t.rows) {
        tile_rows(&t, &o, O);
        for (int32_t k = 0; k < K; k += t.columns) {
            tile_columns(&t, &k, K);
            const size_t at = (size_t)o * (size_t)K + (size_t)k;
            tile_begin(&t, sink, at, (size_t)K);
            if (A == 1 && R == 1) { /* a sample is one row */
                smg_outer(t.tile, t.rows, t.columns, dy + o, O, x + k, K, N);
            }
            for (int32_t n = 0; n < N && (A != 1 || R != 1); n++) {
                tile_sample_begin(&t);
                for (int32_t a = 0; a < A; a++) {
                    for (int32_t r = 0; r < R; r += SMG_BLOCK) {
                        const int32_t count = R - r < SMG_BLOCK ? R - r : SMG_BLOCK;
                        const ptrdiff_t row = first_row(c->p, a, n) + r;
                        smg_outer(t.part, t.rows, t.columns, dy + row * O + o, O, x + row * K + k, K, count);
                        tile_count(&t, count);
                    }
                }
                tile_sample_end(&t);
            }
            tile_end(&t, sink, at, (size_t)K);
        }
    }
    return NULL;
}
SINK_KERNELS(linear_dw, 2, "ii", 5, "")

/* db[C] = sum over rows of dy[row][C]. p: outer, samples, rows, C */
static int bias_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    if (!sizes_ok(p, 4, 1)) { return -1; }
    own[0] = smg_mul(all_rows(p), floats(p[3], 1, 1)), *elements = (uint64_t)p[3];
    return 0;
}
static const char *bias_dw(const SmgCall *c, const Sink *sink) {
    const float *dy = SINK_IN(sink, 0), one = 1.0f;
    const int32_t A = P(0), N = P(1), R = P(2), C = P(3);
    for (int32_t next = 0, at = 0, width; next < C; next = at + width) {
        at = next, width = smg_wide(&at, C);
        const int32_t old = next - at; /* channels that the block before has ended */
        float tile[16] = {0}, sample[16] = {0}, part[16] = {0};
        smg_sink_begin(sink, tile + old, (size_t)next, (size_t)(width - old));
        for (int32_t n = 0; n < N; n++) {
            for (int32_t a = 0; a < A; a++) {
                for (int32_t r = 0; r < R; r += SMG_BLOCK) {
                    const int32_t count = R - r < SMG_BLOCK ? R - r : SMG_BLOCK;
                    smg_rows(part, width, &one, 0, dy + (first_row(c->p, a, n) + r) * C + at, C, count);
                    smg_flush(sample, part, width);
                }
            }
            smg_flush(tile, sample, width);
        }
        smg_sink_end(sink, tile + old, (size_t)next, (size_t)(width - old));
    }
    return NULL;
}
SINK_KERNELS(bias_dw, 1, "i", 4, "")

static const char *const bad_index = "an embedding index is outside the table";

/* p: R indices, V, D; w[V][D], index[R] */
EXTENT(embedding_f32) {
    if (!sizes_ok(p, 3, 0)) { return -1; }
    need[0] = floats(p[0], p[2], 1), need[1] = floats(p[1], p[2], 1), need[2] = floats(p[0], 1, 1);
    return 0;
}
KERNEL(embedding_f32, "oii", 3) {
    float *y = OUT(0);
    const float *w = IN(1);
    const int32_t *index = IN_AS(int32_t, 2), R = P(0), V = P(1), D = P(2);
    for (int32_t r = 0; r < R; r++) {
        if (index[r] < 0 || index[r] >= V) { return bad_index; }
        memcpy(y + (ptrdiff_t)r * D, w + (ptrdiff_t)index[r] * D, (size_t)D * sizeof(float));
    }
    return NULL;
}

/* dw[V][D] = sum of the rows of dy whose index is v. p: outer, samples, rows, V, D; dy[…][D], index[…] */
static int embedding_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    if (!sizes_ok(p, 5, 1)) { return -1; }
    own[0] = smg_mul(all_rows(p), floats(p[4], 1, 1)), own[1] = smg_mul(all_rows(p), 4);
    *elements = floats(p[3], p[4], 1) / 4;
    return 0;
}
static const char *embedding_dw(const SmgCall *c, const Sink *sink) {
    const float *dy = SINK_IN(sink, 0);
    const int32_t *index = SINK_IN_AS(int32_t, sink, 1), A = P(0), N = P(1), R = P(2), V = P(3), D = P(4);
    const size_t rows = (size_t)A * (size_t)N * (size_t)R;
    for (size_t i = 0; i < rows; i++) { /* before the first row is updated */
        if (index[i] < 0 || index[i] >= V) { return bad_index; }
    }
    float tile[32], sample[32] = {0};
    for (int32_t v = 0; v < V; v++) {
        int hits = 0; /* most rows of a large table do not occur */
        for (size_t i = 0; i < rows; i++) { hits |= index[i] == v; }
        for (int32_t d = 0; d < D; d += 32) {
            const int32_t width = D - d < 32 ? D - d : 32;
            const size_t at = (size_t)v * (size_t)D + (size_t)d;
            smg_sink_begin(sink, tile, at, (size_t)width);
            for (int32_t n = 0; n < N && hits; n++) {
                for (int32_t a = 0; a < A; a++) {
                    const ptrdiff_t first = first_row(c->p, a, n);
                    for (int32_t r = 0; r < R; r++) {
                        if (index[first + r] != v) { continue; }
                        const float *row = dy + (first + r) * D + d;
                        for (int l = 0; l < width; l++) { sample[l] += row[l]; }
                    }
                }
                smg_flush(tile, sample, width);
            }
            smg_sink_end(sink, tile, at, (size_t)width);
        }
    }
    return NULL;
}
SINK_KERNELS(embedding_dw, 2, "ii", 5, "")
