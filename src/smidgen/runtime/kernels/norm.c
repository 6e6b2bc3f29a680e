/* Layer normalisation (over trailing axes) and group normalisation (per sample, over groups of channels). */
#include "rows.h"
#include "sink.h"

#define CHUNK (8 * SMG_BLOCK) /* elements of a contiguous sum in eight lanes */

CHANNEL_SUMS(sum_plain, x[l])
CHANNEL_SUMS(sum_square, (x[l] - m[l]) * (x[l] - m[l]))
CHANNEL_SUMS(sum_centred, d[l] * (x[l] - m[l]))
CHANNEL_SUMS(sum_by_row, d[l] * ((x[l] - m[2 * row]) * m[2 * row + 1])) /* m: mean and inverse root of each row */

/* ---- layer_norm: rows of K contiguous elements ---- */

#define EACH_OF_8(l) for (int l = 0; l < 8; l++)
static float long_sum(const float *x, int32_t K) {
    float total = 0;
    for (int32_t k = 0; k < K; k += CHUNK) { total += smg_sum8(x + k, K - k < CHUNK ? K - k : CHUNK); }
    return total;
}

static float long_squares(const float *x, int32_t K, float mean) {
    const ptrdiff_t step = smg_step8();
    float total = 0;
    while (K > 0) {
        float lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int32_t more = K < CHUNK ? K : CHUNK;
        K -= more;
        for (; more >= 8; more -= 8, x += step) {
            EACH_OF_8(l) { lanes[l] += (x[l] - mean) * (x[l] - mean); }
        }
        for (int l = 0; l < more; l++) { lanes[l] += (x[l] - mean) * (x[l] - mean); }
        total += smg_lanes8(lanes);
    }
    return total;
}

static void layer_stats(const float *x, int32_t K, float eps, float *mean, float *inverse) {
    *mean = long_sum(x, K) / (float)K;
    *inverse = inverse_root(long_squares(x, K, *mean) / (float)K, eps);
}

/* y[R][K], x[R][K], gamma[K], beta[K] */
EXTENT(layer_norm_f32) {
    if (affine_need(p, &need[0], &need[2])) { return -1; }
    need[1] = need[0];
    need[3] = need[2];
    return 0;
}
KERNEL(layer_norm_f32, "oiii", PARAMS(Affine)) {
    const Affine v = affine_of(c->p);
    const int32_t R = v.matrix.R, K = v.matrix.C;
    const float *gamma = IN(2), *beta = IN(3);
    for (int32_t i = 0; i < R; i++) {
        float *y = OUT(0) + (size_t)i * (size_t)K, mean, inverse;
        const float *x = IN(1) + (size_t)i * (size_t)K;
        layer_stats(x, K, v.eps, &mean, &inverse);
        for (int32_t k = 0; k < K; k++) { y[k] = (x[k] - mean) * inverse * gamma[k] + beta[k]; }
    }
    return SMG_NO_FAULT;
}

/* dx[R][K], dy[R][K], x[R][K], gamma[K].  g = dy*gamma;  dx = (g - mean(g) - (x-mean)/s * mean(g*(x-mean)/s)) / s */
EXTENT(layer_norm_dx_f32) {
    if (affine_need(p, &need[0], &need[3])) { return -1; }
    need[1] = need[2] = need[0];
    return 0;
}
KERNEL(layer_norm_dx_f32, "oiii", PARAMS(Affine)) {
    const Affine v = affine_of(c->p);
    const int32_t R = v.matrix.R, K = v.matrix.C;
    const float *gamma = IN(3);
    const ptrdiff_t step = smg_step8();
    for (int32_t i = 0; i < R; i++) {
        float *dx = OUT(0) + (size_t)i * (size_t)K, mean, inverse, base = 0, slope = 0;
        const float *dy = IN(1) + (size_t)i * (size_t)K, *x = IN(2) + (size_t)i * (size_t)K;
        layer_stats(x, K, v.eps, &mean, &inverse);
        for (int32_t left = K, at = 0; left > 0;) {
            float b[8] = {0, 0, 0, 0, 0, 0, 0, 0}, s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            int32_t more = left < CHUNK ? left : CHUNK;
            left -= more;
            for (; more >= 8; more -= 8, at += (int32_t)step) {
                const float *d = dy + at, *g = gamma + at, *xa = x + at;
                EACH_OF_8(l) { b[l] += d[l] * g[l]; }
                EACH_OF_8(l) { s[l] += d[l] * g[l] * (xa[l] - mean); }
            }
            for (int l = 0; l < more; l++) {
                b[l] += dy[at + l] * gamma[at + l];
                s[l] += dy[at + l] * gamma[at + l] * (x[at + l] - mean);
            }
            base += smg_lanes8(b);
            slope += smg_lanes8(s);
        }
        base = base / (float)K;
        slope = slope / (float)K * inverse * inverse;
        for (int32_t k = 0; k < K; k++) { dx[k] = inverse * (dy[k] * gamma[k] - base - (x[k] - mean) * slope); }
    }
    return SMG_NO_FAULT;
}

/* Inputs dy, x [A][B][P][K]; scratch: mean and inverse root of every row. */
static int layer_norm_dgamma_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const Rows g = rows_norm_of(p).rows;
    uint64_t rows, all;
    if (rows_need(g, &rows, &all)) { return -1; }
    own[0] = own[1] = smg_mul(all, 4);
    own[2] = smg_mul(rows, 8);
    *elements = (uint64_t)g.C;
    return 0;
}
static SmgFault layer_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const RowsNorm v = rows_norm_of(c->p);
    const Rows g = v.rows;
    const size_t R = (size_t)g.A * (size_t)g.B * (size_t)g.P;
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    float *stats = SINK_SCRATCH(c), tile[LANES];
    for (size_t i = 0; i < R; i++) { layer_stats(x + i * (size_t)g.C, g.C, v.eps, &stats[2 * i], &stats[2 * i + 1]); }
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        smg_sink_begin(sink, tile, (size_t)c0, (size_t)count);
        sum_by_row(tile, x, dy, stats, stats, g, c0, count);
        smg_sink_end(sink, tile, (size_t)c0, (size_t)count);
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(layer_norm_dgamma, 2, "ii", PARAMS(RowsNorm), "s")

/* ---- group_norm: x[N][P][C], statistics per sample and group of C/G channels ---- */

typedef struct {
    int32_t N, P, C, G;
    float eps;
} GroupNorm;
UNPACK(group_norm_of, GroupNorm)

static int group_need(const int32_t *p, uint64_t *elements, uint64_t *channels) {
    const GroupNorm v = group_norm_of(p);
    if (v.N < 0 || v.P < 1 || v.C < 1 || v.C > WIDEST || v.G < 1 || v.C % v.G) { return -1; }
    *channels = smg_mul((uint64_t)v.C, 4);
    *elements = smg_mul(smg_mul((uint64_t)v.N, (uint64_t)v.P), *channels);
    return 0;
}

/* Replaces each channel's value by total/members of its group. */
static void group_mean(float *v, int32_t C, int32_t groups, int32_t P) {
    const int32_t width = C / groups;
    const float members = (float)((int64_t)width * P);
    for (int32_t c0 = 0; c0 < C; c0 += width) {
        const float mean = long_sum(v + c0, width) / members;
        for (int32_t l = 0; l < width; l++) { v[c0 + l] = mean; }
    }
}

/* mean and inverse root of one sample, repeated for each channel of a group. */
static void group_stats(const float *x, int32_t P, int32_t C, int32_t groups, float eps, float *mean, float *inverse) {
    const Rows g = {1, 1, P, C};
    memset(mean, 0, (size_t)C * sizeof(float));
    memset(inverse, 0, (size_t)C * sizeof(float));
    for (int32_t c0 = 0; c0 < C; c0 += LANES) { sum_plain(mean + c0, x, x, x, x, g, c0, lanes_at(c0, C)); }
    group_mean(mean, C, groups, P);
    for (int32_t c0 = 0; c0 < C; c0 += LANES) { sum_square(inverse + c0, x, x, mean + c0, x, g, c0, lanes_at(c0, C)); }
    group_mean(inverse, C, groups, P);
    for (int32_t l = 0; l < C; l++) { inverse[l] = inverse_root(inverse[l], eps); }
}

/* y, x, gamma, beta; scratch 2C floats */
EXTENT(group_norm_f32) {
    if (group_need(p, &need[0], &need[2])) { return -1; }
    need[1] = need[0];
    need[3] = need[2];
    need[4] = smg_mul(need[2], 2);
    return 0;
}
KERNEL(group_norm_f32, "oiiis", PARAMS(GroupNorm)) {
    const GroupNorm v = group_norm_of(c->p);
    const int32_t N = v.N, pixels = v.P, C = v.C;
    const float *x = IN(1), *gamma = IN(2), *beta = IN(3);
    float *y = OUT(0), *mean = OUT(4), *scale = mean + C;
    for (int32_t n = 0; n < N; n++) {
        group_stats(x, pixels, C, v.G, v.eps, mean, scale);
        for (int32_t l = 0; l < C; l++) { scale[l] *= gamma[l]; }
        for (int32_t i = 0; i < pixels; i++, x += C, y += C) {
            for (int32_t l = 0; l < C; l++) { y[l] = (x[l] - mean[l]) * scale[l] + beta[l]; }
        }
    }
    return SMG_NO_FAULT;
}

/* dx, dy, x, gamma; scratch 4C floats. As layer_norm_dx, with sums first by channel and then by group. */
EXTENT(group_norm_dx_f32) {
    if (group_need(p, &need[0], &need[3])) { return -1; }
    need[1] = need[2] = need[0];
    need[4] = smg_mul(need[3], 4);
    return 0;
}
KERNEL(group_norm_dx_f32, "oiiis", PARAMS(GroupNorm)) {
    const GroupNorm v = group_norm_of(c->p);
    const int32_t N = v.N, pixels = v.P, C = v.C;
    const Rows g = {1, 1, pixels, C};
    const float *dy = IN(1), *x = IN(2), *gamma = IN(3);
    float *dx = OUT(0), *mean = OUT(4), *inverse = mean + C, *base = inverse + C, *slope = base + C;
    for (int32_t n = 0; n < N; n++) {
        group_stats(x, pixels, C, v.G, v.eps, mean, inverse);
        memset(base, 0, 2 * (size_t)C * sizeof(float));
        for (int32_t c0 = 0; c0 < C; c0 += LANES) {
            sum_plain(base + c0, dy, dy, mean, mean, g, c0, lanes_at(c0, C));
            sum_centred(slope + c0, x, dy, mean + c0, mean, g, c0, lanes_at(c0, C));
        }
        for (int32_t l = 0; l < C; l++) {
            base[l] *= gamma[l];
            slope[l] *= gamma[l];
        }
        group_mean(base, C, v.G, pixels);
        group_mean(slope, C, v.G, pixels);
        for (int32_t l = 0; l < C; l++) { slope[l] = slope[l] * inverse[l] * inverse[l]; }
        for (int32_t i = 0; i < pixels; i++, x += C, dy += C, dx += C) {
            for (int32_t l = 0; l < C; l++) {
                dx[l] = inverse[l] * (dy[l] * gamma[l] - base[l] - (x[l] - mean[l]) * slope[l]);
            }
        }
    }
    return SMG_NO_FAULT;
}

/* Inputs dy, x; scratch 3C floats: the gradient as one tile, then mean and inverse root of a sample. */
static int group_norm_dgamma_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    uint64_t channels;
    if (group_need(p, &own[0], &channels)) { return -1; }
    own[1] = own[0];
    own[2] = smg_mul(channels, 3);
    *elements = (uint64_t)group_norm_of(p).C;
    return 0;
}
static SmgFault group_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const GroupNorm v = group_norm_of(c->p);
    const int32_t N = v.N, pixels = v.P, C = v.C;
    const Rows g = {1, 1, pixels, C};
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    float *tile = SINK_SCRATCH(c), *mean = tile + C, *inverse = mean + C;
    smg_sink_begin(sink, tile, 0, (size_t)C);
    for (int32_t n = 0; n < N; n++, x += (size_t)pixels * (size_t)C, dy += (size_t)pixels * (size_t)C) {
        group_stats(x, pixels, C, v.G, v.eps, mean, inverse);
        for (int32_t c0 = 0; c0 < C; c0 += LANES) {
            sum_scaled(tile + c0, x, dy, mean + c0, inverse + c0, g, c0, lanes_at(c0, C));
        }
    }
    smg_sink_end(sink, tile, 0, (size_t)C);
    return SMG_NO_FAULT;
}
SINK_KERNELS(group_norm_dgamma, 2, "ii", PARAMS(GroupNorm), "s")
