/* Batch normalisation: each channel, the last axis, over all rows; with given statistics or with those of x itself. */
#include "going.h"
#include "rows.h"
#include "sink.h"

/* ---- Given statistics: y[R][C], x[R][C], gamma[C], beta[C], mean[C], var[C] ---- */

EXTENT(batch_norm_f32) {
    if (affine_need(p, &need[0], &need[2])) { return -1; }
    need[1] = need[0];
    need[3] = need[4] = need[5] = need[2];
    return 0;
}
KERNEL(batch_norm_f32, "oiiiii", PARAMS(Affine)) {
    const Affine v = affine_of(c->p);
    const int32_t R = v.matrix.R, C = v.matrix.C;
    const float *gamma = IN(2), *beta = IN(3), *mean = IN(4), *var = IN(5);
    float scale[4 * LANES];
    for (int32_t c0 = 0; c0 < C; c0 += 4 * LANES) {
        const int32_t count = C - c0 < 4 * LANES ? C - c0 : 4 * LANES;
        const float *m = mean + c0, *shift = beta + c0;
        for (int32_t l = 0; l < count; l++) { scale[l] = gamma[c0 + l] / smg_sqrtf(var[c0 + l] + v.eps); }
        for (int32_t i = 0; i < R; i++) {
            float *y = OUT(0) + (size_t)i * (size_t)C + c0;
            const float *x = IN(1) + (size_t)i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) { y[l] = (x[l] - m[l]) * scale[l] + shift[l]; }
        }
    }
    return SMG_NO_FAULT;
}

/* dx[R][C], dy[R][C], gamma[C], var[C] */
EXTENT(batch_norm_dx_f32) {
    if (affine_need(p, &need[0], &need[2])) { return -1; }
    need[1] = need[0];
    need[3] = need[2];
    return 0;
}
KERNEL(batch_norm_dx_f32, "oiii", PARAMS(Affine)) {
    const Affine v = affine_of(c->p);
    const int32_t R = v.matrix.R, C = v.matrix.C;
    const float *gamma = IN(2), *var = IN(3);
    float scale[4 * LANES];
    for (int32_t c0 = 0; c0 < C; c0 += 4 * LANES) {
        const int32_t count = C - c0 < 4 * LANES ? C - c0 : 4 * LANES;
        for (int32_t l = 0; l < count; l++) { scale[l] = gamma[c0 + l] / smg_sqrtf(var[c0 + l] + v.eps); }
        for (int32_t i = 0; i < R; i++) {
            float *dx = OUT(0) + (size_t)i * (size_t)C + c0;
            const float *dy = IN(1) + (size_t)i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) { dx[l] = dy[l] * scale[l]; }
        }
    }
    return SMG_NO_FAULT;
}

/* Inputs dy, x [A][B][P][C], mean[C], var[C] */
static int batch_norm_dgamma_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const Rows g = rows_norm_of(p).rows;
    uint64_t rows, all;
    if (rows_need(g, &rows, &all)) { return -1; }
    own[0] = own[1] = smg_mul(all, 4);
    own[2] = own[3] = smg_mul((uint64_t)g.C, 4);
    *elements = (uint64_t)g.C;
    return 0;
}
static SmgFault batch_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const RowsNorm v = rows_norm_of(c->p);
    const Rows g = v.rows;
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1), *mean = SINK_IN(sink, 2), *var = SINK_IN(sink, 3);
    float tile[LANES], inverse[LANES];
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        for (int32_t l = 0; l < count; l++) { inverse[l] = inverse_root(var[c0 + l], v.eps); }
        smg_sink_begin(sink, tile, (size_t)c0, (size_t)count);
        sum_scaled(tile, x, dy, mean + c0, inverse, g, c0, count);
        smg_sink_end(sink, tile, (size_t)c0, (size_t)count);
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(batch_norm_dgamma, 4, "iiii", PARAMS(RowsNorm), "")

/* Some rows of one sample, `width` positions each; a partial sum is kept from call to call. */
typedef struct {
    int32_t rows, width, C;
    float eps;
    int32_t count, above, first;
} DgammaRows;
UNPACK(dgamma_rows_of, DgammaRows)
EXTENT(batch_norm_dgamma_rows_f32) {
    const DgammaRows v = dgamma_rows_of(p);
    const uint64_t positions = smg_mul((uint64_t)v.rows, (uint64_t)v.width);
    if (v.rows < 1 || v.width < 1 || positions > 1 << 28 || v.C < 1 || v.C > WIDEST) { return -1; }
    if (v.first < 0 || v.count < 1) { return -1; }
    need[0] = need[3] = need[4] = need[5] = smg_mul((uint64_t)v.C, 4);
    need[1] = need[2] = smg_mul(positions, need[0]);
    return 0;
}
KERNEL(batch_norm_dgamma_rows_f32, "oiiiis", PARAMS(DgammaRows)) {
    const DgammaRows v = dgamma_rows_of(c->p);
    const Going going = going_of(OUT(0), OUT(5), v.first, v.rows, v.count);
    const size_t R = (size_t)v.rows * (size_t)v.width, C = (size_t)v.C;
    float sum[LANES], part[LANES], inverse[LANES];
    for (int32_t c0 = 0; c0 < v.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, v.C);
        const float *mean = IN(3) + c0, *var = IN(4) + c0;
        int32_t pending = going_pending(v.first, v.width);
        for (int32_t l = 0; l < count; l++) { inverse[l] = inverse_root(var[l], v.eps); }
        going_begin(&going, sum, part, (size_t)c0, (size_t)count);
        for (size_t r = 0; r < R; r++) {
            const float *d = IN(1) + r * C + c0, *x = IN(2) + r * C + c0;
            for (int32_t l = 0; l < count; l++) { part[l] += d[l] * ((x[l] - mean[l]) * inverse[l]); }
            if (++pending < SMG_BLOCK) { continue; }
            smg_flush(sum, part, count);
            pending = 0;
        }
        if (going.is_last) { smg_flush(sum, part, count); }
        going_end(&going, sum, part, (size_t)c0, (size_t)count);
    }
    return SMG_NO_FAULT;
}

/* ---- The statistics of x itself. Where few values are alike their mean cancels almost everything: all sums and
 * differences are in double, and every kernel takes the statistics anew, so that they are never rounded. ---- */

static inline void stats_lanes(const float *x, size_t R, int32_t C, const int32_t count, double *mean, double *var) {
    for (int32_t l = 0; l < count; l++) {
        mean[l] = 0;
        var[l] = 0;
    }
    for (size_t i = 0; i < R; i++) {
        for (int32_t l = 0; l < count; l++) { mean[l] += (double)x[i * (size_t)C + (size_t)l]; }
    }
    for (int32_t l = 0; l < count; l++) { mean[l] /= (double)R; }
    for (size_t i = 0; i < R; i++) {
        for (int32_t l = 0; l < count; l++) {
            const double d = (double)x[i * (size_t)C + (size_t)l] - mean[l];
            var[l] += d * d;
        }
    }
    for (int32_t l = 0; l < count; l++) { var[l] /= (double)R; }
}
static void own_stats(const float *x, size_t R, int32_t C, int32_t count, double *mean, double *var) {
    if (count == LANES) { /* a constant count keeps the sums in registers */
        stats_lanes(x, R, C, LANES, mean, var);
    } else {
        stats_lanes(x, R, C, count, mean, var);
    }
}

/* mean[C], var[C] (biased), x[R][C] */
EXTENT(batch_stats_f32) {
    if (affine_need(p, &need[2], &need[0])) { return -1; }
    need[1] = need[0];
    return 0;
}
KERNEL_FLAGS(batch_stats_f32, "ooi", PARAMS(Matrix), SMG_STATISTICS) {
    const Matrix v = matrix_of(c->p);
    const int32_t C = v.C;
    const size_t R = (size_t)v.R;
    if (R < 2) { return SMG_FAULT_TOO_FEW; }
    for (int32_t c0 = 0; c0 < C; c0 += LANES) {
        const int32_t count = lanes_at(c0, C);
        double mean[LANES], var[LANES];
        own_stats(IN(2) + c0, R, C, count, mean, var);
        for (int32_t l = 0; l < count; l++) {
            OUT(0)[c0 + l] = smg_to_float(mean[l]);
            OUT(1)[c0 + l] = smg_to_float(var[l]);
        }
    }
    return SMG_NO_FAULT;
}

/* y[R][C], x[R][C], gamma[C], beta[C] */
EXTENT(batch_norm_batch_f32) {
    if (affine_need(p, &need[0], &need[2])) { return -1; }
    need[1] = need[0];
    need[3] = need[2];
    return 0;
}
KERNEL_FLAGS(batch_norm_batch_f32, "oiii", PARAMS(Affine), SMG_STATISTICS) {
    const Affine v = affine_of(c->p);
    const int32_t C = v.matrix.C;
    const size_t R = (size_t)v.matrix.R;
    const float *gamma = IN(2), *beta = IN(3);
    if (R < 2) { return SMG_FAULT_TOO_FEW; }
    for (int32_t c0 = 0; c0 < C; c0 += LANES) {
        const int32_t count = lanes_at(c0, C);
        double mean[LANES], var[LANES];
        float scale[LANES];
        own_stats(IN(1) + c0, R, C, count, mean, var);
        for (int32_t l = 0; l < count; l++) { scale[l] = gamma[c0 + l] * inverse_root(smg_to_float(var[l]), v.eps); }
        for (size_t i = 0; i < R; i++) {
            float *y = OUT(0) + i * (size_t)C + c0;
            const float *x = IN(1) + i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) {
                y[l] = smg_to_float((double)x[l] - mean[l]) * scale[l] + beta[c0 + l];
            }
        }
    }
    return SMG_NO_FAULT;
}

/* dx[R][C], dy[R][C], x[R][C], gamma[C].
 * dx = gamma/s * (dy - mean(dy) - (x-mean)/s * mean(dy*(x-mean)/s)),  s = sqrt(var + eps) */
EXTENT(batch_norm_batch_dx_f32) {
    if (affine_need(p, &need[0], &need[3])) { return -1; }
    need[1] = need[2] = need[0];
    return 0;
}
KERNEL_FLAGS(batch_norm_batch_dx_f32, "oiii", PARAMS(Affine), SMG_STATISTICS) {
    const Affine v = affine_of(c->p);
    const int32_t C = v.matrix.C;
    const size_t R = (size_t)v.matrix.R;
    const float *gamma = IN(3);
    if (R < 2) { return SMG_FAULT_TOO_FEW; }
    for (int32_t c0 = 0; c0 < C; c0 += LANES) {
        const int32_t count = lanes_at(c0, C);
        double mean[LANES], var[LANES], base[LANES] = {0}, slope[LANES] = {0};
        float scale[LANES];
        own_stats(IN(2) + c0, R, C, count, mean, var);
        for (size_t i = 0; i < R; i++) {
            const float *dy = IN(1) + i * (size_t)C + c0, *x = IN(2) + i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) {
                base[l] += (double)dy[l];
                slope[l] += (double)dy[l] * ((double)x[l] - mean[l]);
            }
        }
        for (int32_t l = 0; l < count; l++) {
            base[l] /= (double)R;
            slope[l] /= (double)R * (var[l] + (double)v.eps);
            scale[l] = gamma[c0 + l] * inverse_root(smg_to_float(var[l]), v.eps);
        }
        for (size_t i = 0; i < R; i++) {
            float *dx = OUT(0) + i * (size_t)C + c0;
            const float *dy = IN(1) + i * (size_t)C + c0, *x = IN(2) + i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) {
                dx[l] = scale[l] * smg_to_float((double)dy[l] - base[l] - ((double)x[l] - mean[l]) * slope[l]);
            }
        }
    }
    return SMG_NO_FAULT;
}

/* Inputs dy[R][C], x[R][C] */
static int batch_norm_batch_dgamma_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    uint64_t channels;
    if (affine_need(p, &own[0], &channels)) { return -1; }
    own[1] = own[0];
    *elements = (uint64_t)matrix_of(p).C;
    return 0;
}
static SmgFault batch_norm_batch_dgamma(const SmgCall *c, const Sink *sink) {
    const Affine v = affine_of(c->p);
    const int32_t C = v.matrix.C;
    const size_t R = (size_t)v.matrix.R;
    float tile[LANES];
    if (R < 2) { return SMG_FAULT_TOO_FEW; }
    for (int32_t c0 = 0; c0 < C; c0 += LANES) {
        const int32_t count = lanes_at(c0, C);
        double mean[LANES], var[LANES], sum[LANES] = {0};
        own_stats(SINK_IN(sink, 1) + c0, R, C, count, mean, var);
        for (size_t i = 0; i < R; i++) {
            const float *dy = SINK_IN(sink, 0) + i * (size_t)C + c0, *x = SINK_IN(sink, 1) + i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) { sum[l] += (double)dy[l] * ((double)x[l] - mean[l]); }
        }
        smg_sink_begin(sink, tile, (size_t)c0, (size_t)count);
        for (int32_t l = 0; l < count; l++) {
            tile[l] += smg_to_float(sum[l]) * inverse_root(smg_to_float(var[l]), v.eps);
        }
        smg_sink_end(sink, tile, (size_t)c0, (size_t)count);
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(batch_norm_batch_dgamma, 2, "ii", PARAMS(Affine), "")

/* Running mean[C] and var[C] move by `momentum` towards the mean[C] and var[C] of `count` rows. */
typedef struct {
    int32_t C, count;
    float momentum;
} RunningStats;
UNPACK(running_stats_of, RunningStats)

EXTENT(running_stats_f32) {
    const RunningStats v = running_stats_of(p);
    if (v.C < 1 || v.count < 0) { return -1; }
    need[0] = need[1] = need[2] = need[3] = smg_mul((uint64_t)v.C, 4);
    return 0;
}
KERNEL_FLAGS(running_stats_f32, "uuii", PARAMS(RunningStats), SMG_STATISTICS) {
    const RunningStats v = running_stats_of(c->p);
    const int32_t C = v.C, count = v.count;
    const float take = v.momentum, keep = 1.0f - take;
    float *running_mean = OUT(0), *running_var = OUT(1);
    const float *mean = IN(2), *var = IN(3);
    if (count < 2) { return SMG_FAULT_TOO_FEW; }
    const float unbiased = (float)count / (float)(count - 1);
    for (int32_t l = 0; l < C; l++) {
        running_mean[l] = keep * running_mean[l] + take * mean[l];
        running_var[l] = keep * running_var[l] + take * (var[l] * unbiased);
    }
    return SMG_NO_FAULT;
}
