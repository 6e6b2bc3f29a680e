/* Normalisation over the last axis' channels (batch, group) or over trailing axes (layer).
 * Sums over rows run 64 rows at a time, then per sample, then over samples in order, so that micro-batches which
 * continue an accumulator give the same bits as the whole batch. */
#include "../exact_math.h"
#include "../kernel.h"
#include "sink.h"
#include "sum.h"

#define LANES 16             /* channels reduced together, in registers */
#define CHUNK (8 * SMG_BLOCK) /* elements of a contiguous sum in eight lanes */
#define WIDEST (1 << 30)     /* channels: loops may step past the end without overflow */

static const char *const TOO_FEW = "batch statistics need more than one value per channel";

static inline float inverse_root(float var, float eps) { return 1.0f / smg_sqrtf(var + eps); }

/* A tensor [A,B,P,C] whose samples lie along B: row ((a*B + b)*P + p) of C channels belongs to sample b. */
typedef struct {
    int32_t A, B, P, C;
} Rows;

static Rows rows_of(const int32_t *p) {
    const Rows g = {p[0], p[1], p[2], p[3]};
    return g;
}
static inline float row_count(Rows g) { return (float)((int64_t)g.A * g.B * g.P); }

static int rows_need(const int32_t *p, uint64_t *rows, uint64_t *elements) {
    if (p[0] < 1 || p[1] < 0 || p[2] < 1 || p[3] < 1 || p[3] > WIDEST) return -1;
    *rows = smg_mul(smg_mul((uint64_t)p[0], (uint64_t)p[1]), (uint64_t)p[2]);
    *elements = smg_mul(*rows, (uint64_t)p[3]);
    return 0;
}

/* total[l] += sum over all rows of TERM, for `count` channels from c0. TERM sees x[l], d[l] of the row, m, r, row. */
#define CHANNEL_SUMS(name, TERM)                                                                            \
    static inline void name##_lanes(float *total, const float *X, const float *D, const float *m,           \
                                    const float *r, Rows g, int32_t c0, const int32_t count) {              \
        float sample[LANES], run[LANES];                                                                    \
        (void)D, (void)m, (void)r;                                                                          \
        for (int32_t b = 0; b < g.B; b++) {                                                                 \
            int filled = 0;                                                                                 \
            for (int32_t l = 0; l < count; l++) sample[l] = 0, run[l] = 0;                                  \
            for (int32_t a = 0; a < g.A; a++) {                                                             \
                size_t row = ((size_t)a * (size_t)g.B + (size_t)b) * (size_t)g.P;                           \
                for (int32_t p = 0; p < g.P; p++, row++) {                                                  \
                    const float *x = X + row * (size_t)g.C + c0, *d = D + row * (size_t)g.C + c0;           \
                    (void)x, (void)d;                                                                       \
                    for (int32_t l = 0; l < count; l++) run[l] += TERM;                                     \
                    if (++filled < SMG_BLOCK) continue;                                                     \
                    for (int32_t l = 0; l < count; l++) sample[l] += run[l], run[l] = 0;                    \
                    filled = 0;                                                                             \
                }                                                                                           \
            }                                                                                               \
            for (int32_t l = 0; l < count; l++) total[l] += sample[l] + run[l];                             \
        }                                                                                                   \
    }                                                                                                       \
    static void name(float *total, const float *X, const float *D, const float *m, const float *r, Rows g,  \
                     int32_t c0, int32_t count) {                                                           \
        if (count == LANES) /* a constant count keeps the sums in registers */                              \
            name##_lanes(total, X, D, m, r, g, c0, LANES);                                                  \
        else                                                                                                \
            name##_lanes(total, X, D, m, r, g, c0, count);                                                  \
    }

CHANNEL_SUMS(sum_plain, x[l])
CHANNEL_SUMS(sum_square, (x[l] - m[l]) * (x[l] - m[l]))
CHANNEL_SUMS(sum_centred, d[l] * (x[l] - m[l]))
CHANNEL_SUMS(sum_scaled, d[l] * ((x[l] - m[l]) * r[l]))
CHANNEL_SUMS(sum_by_row, d[l] * ((x[l] - m[2 * row]) * m[2 * row + 1])) /* m: mean and inverse root of each row */

static inline int32_t lanes_at(int32_t c0, int32_t C) { return C - c0 < LANES ? C - c0 : LANES; }

/* ---- batch_norm, batch_norm_batch: y, x, gamma, beta, mean, var. p: rows, C, eps ---- */

static int affine_need(const int32_t *p, uint64_t *elements, uint64_t *channels) {
    if (p[0] < 0 || p[1] < 1 || p[1] > WIDEST) return -1;
    *channels = smg_mul((uint64_t)p[1], 4);
    *elements = smg_mul((uint64_t)p[0], *channels);
    return 0;
}

EXTENT(batch_norm_f32) {
    EXTENT_UNUSED;
    if (affine_need(p, &need[0], &need[2])) return -1;
    need[1] = need[0], need[3] = need[4] = need[5] = need[2];
    return 0;
}
KERNEL(batch_norm_f32, "oiiiii", 3) {
    const int32_t R = P(0), C = P(1);
    const float *gamma = IN(2), *beta = IN(3), *mean = IN(4), *var = IN(5);
    float scale[4 * LANES];
    for (int32_t c0 = 0; c0 < C; c0 += 4 * LANES) {
        const int32_t count = C - c0 < 4 * LANES ? C - c0 : 4 * LANES;
        const float *m = mean + c0, *shift = beta + c0;
        for (int32_t l = 0; l < count; l++) scale[l] = gamma[c0 + l] / smg_sqrtf(var[c0 + l] + PF(2));
        for (int32_t i = 0; i < R; i++) {
            float *y = OUT(0) + (size_t)i * (size_t)C + c0;
            const float *x = IN(1) + (size_t)i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) y[l] = (x[l] - m[l]) * scale[l] + shift[l];
        }
    }
    return NULL;
}

/* dx, dy, gamma, var. p: rows, C, eps */
EXTENT(batch_norm_dx_f32) {
    EXTENT_UNUSED;
    if (affine_need(p, &need[0], &need[2])) return -1;
    need[1] = need[0], need[3] = need[2];
    return 0;
}
KERNEL(batch_norm_dx_f32, "oiii", 3) {
    const int32_t R = P(0), C = P(1);
    const float *gamma = IN(2), *var = IN(3);
    float scale[4 * LANES];
    for (int32_t c0 = 0; c0 < C; c0 += 4 * LANES) {
        const int32_t count = C - c0 < 4 * LANES ? C - c0 : 4 * LANES;
        for (int32_t l = 0; l < count; l++) scale[l] = gamma[c0 + l] / smg_sqrtf(var[c0 + l] + PF(2));
        for (int32_t i = 0; i < R; i++) {
            float *dx = OUT(0) + (size_t)i * (size_t)C + c0;
            const float *dy = IN(1) + (size_t)i * (size_t)C + c0;
            for (int32_t l = 0; l < count; l++) dx[l] = dy[l] * scale[l];
        }
    }
    return NULL;
}

/* Inputs dy, x, mean, var. p: A,B,P,C, eps */
static int batch_norm_dgamma_need(const int32_t *p, int operands, SmgRun run, uint64_t *own, uint64_t *elements) {
    uint64_t rows, all;
    (void)operands, (void)run;
    if (rows_need(p, &rows, &all)) return -1;
    own[0] = own[1] = smg_mul(all, 4);
    own[2] = own[3] = smg_mul((uint64_t)p[3], 4);
    *elements = (uint64_t)p[3];
    return 0;
}
static const char *batch_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const Rows g = rows_of(c->p);
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1), *mean = SINK_IN(sink, 2), *var = SINK_IN(sink, 3);
    float tile[LANES], inverse[LANES];
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        for (int32_t l = 0; l < count; l++) inverse[l] = inverse_root(var[c0 + l], PF(4));
        smg_sink_begin(sink, tile, (size_t)c0, (size_t)count);
        sum_scaled(tile, x, dy, mean + c0, inverse, g, c0, count);
        smg_sink_end(sink, tile, (size_t)c0, (size_t)count);
    }
    return NULL;
}
SINK_KERNELS(batch_norm_dgamma, 4, "iiii", 5, "")

/* mean, var (biased), x. p: A,B,P,C. Two passes. */
EXTENT(batch_stats_f32) {
    EXTENT_UNUSED;
    uint64_t rows, all;
    if (rows_need(p, &rows, &all)) return -1;
    need[0] = need[1] = smg_mul((uint64_t)p[3], 4);
    need[2] = smg_mul(all, 4);
    return 0;
}
/* Statistics of few values cancel almost everything: sums are in double, as torch's are. */
KERNEL(batch_stats_f32, "ooi", 4) {
    const Rows g = rows_of(c->p);
    const size_t R = (size_t)g.A * (size_t)g.B * (size_t)g.P, C = (size_t)g.C;
    if (R < 2) return TOO_FEW;
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        const float *x = IN(2) + c0;
        double mean[LANES] = {0}, square[LANES] = {0};
        for (size_t i = 0; i < R; i++)
            for (int32_t l = 0; l < count; l++) mean[l] += (double)x[i * C + (size_t)l];
        for (int32_t l = 0; l < count; l++) mean[l] /= (double)R;
        for (size_t i = 0; i < R; i++)
            for (int32_t l = 0; l < count; l++) {
                const double d = (double)x[i * C + (size_t)l] - mean[l];
                square[l] += d * d;
            }
        for (int32_t l = 0; l < count; l++) {
            OUT(0)[c0 + l] = smg_to_float(mean[l]);
            OUT(1)[c0 + l] = smg_to_float(square[l] / (double)R);
        }
    }
    return NULL;
}

/* dx, dy, x, gamma, mean, var. p: A,B,P,C, eps.
 * dx = gamma/s * (dy - mean(dy) - (x-mean)/s * mean(dy*(x-mean)/s)),  s = sqrt(var + eps) */
EXTENT(batch_norm_batch_dx_f32) {
    EXTENT_UNUSED;
    uint64_t rows, all;
    if (rows_need(p, &rows, &all)) return -1;
    need[0] = need[1] = need[2] = smg_mul(all, 4);
    need[3] = need[4] = need[5] = smg_mul((uint64_t)p[3], 4);
    return 0;
}
KERNEL(batch_norm_batch_dx_f32, "oiiiii", 5) {
    const Rows g = rows_of(c->p);
    const size_t R = (size_t)g.A * (size_t)g.B * (size_t)g.P, C = (size_t)g.C;
    const float *gamma = IN(3), *mean = IN(4), *var = IN(5);
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        const float *m = mean + c0, *dy = IN(1) + c0, *x = IN(2) + c0;
        double base[LANES] = {0}, slope[LANES] = {0};
        for (size_t i = 0; i < R; i++)
            for (int32_t l = 0; l < count; l++) {
                const size_t at = i * C + (size_t)l;
                base[l] += (double)dy[at];
                slope[l] += (double)dy[at] * ((double)x[at] - (double)m[l]);
            }
        for (int32_t l = 0; l < count; l++) {
            base[l] /= (double)R;
            slope[l] /= (double)R * ((double)var[c0 + l] + (double)PF(4));
        }
        for (size_t i = 0; i < R; i++)
            for (int32_t l = 0; l < count; l++) {
                const size_t at = i * C + (size_t)l;
                const double left = (double)dy[at] - base[l] - ((double)x[at] - (double)m[l]) * slope[l];
                OUT(0)[c0 + (ptrdiff_t)at] = gamma[c0 + l] * inverse_root(var[c0 + l], PF(4)) * smg_to_float(left);
            }
    }
    return NULL;
}

/* running mean and var are updated from mean and var of `count` rows. p: C, count, momentum */
EXTENT(running_stats_f32) {
    EXTENT_UNUSED;
    if (p[0] < 1 || p[1] < 0) return -1;
    need[0] = need[1] = need[2] = need[3] = smg_mul((uint64_t)p[0], 4);
    return 0;
}
KERNEL(running_stats_f32, "uuii", 3) {
    const int32_t C = P(0), count = P(1);
    const float take = PF(2), keep = 1.0f - take;
    float *running_mean = OUT(0), *running_var = OUT(1);
    const float *mean = IN(2), *var = IN(3);
    if (count < 2) return TOO_FEW;
    const float unbiased = (float)count / (float)(count - 1);
    for (int32_t l = 0; l < C; l++) {
        running_mean[l] = keep * running_mean[l] + take * mean[l];
        running_var[l] = keep * running_var[l] + take * (var[l] * unbiased);
    }
    return NULL;
}

/* ---- layer_norm: rows of K contiguous elements ---- */

#define EACH_OF_8(l) for (int l = 0; l < 8; l++)
/* A step that the compiler cannot know, so that gcc vectorises across lanes: see sum.c. */
static ptrdiff_t eight(void) {
    volatile ptrdiff_t step = 8;
    return step;
}

static float long_sum(const float *x, int32_t K) {
    float total = 0;
    for (int32_t k = 0; k < K; k += CHUNK) total += smg_sum8(x + k, K - k < CHUNK ? K - k : CHUNK);
    return total;
}

static float long_squares(const float *x, int32_t K, float mean) {
    const ptrdiff_t step = eight();
    float total = 0;
    while (K > 0) {
        float lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int32_t more = K < CHUNK ? K : CHUNK;
        K -= more;
        for (; more >= 8; more -= 8, x += step) EACH_OF_8(l) lanes[l] += (x[l] - mean) * (x[l] - mean);
        for (int l = 0; l < more; l++) lanes[l] += (x[l] - mean) * (x[l] - mean);
        total += smg_lanes8(lanes);
    }
    return total;
}

static void layer_stats(const float *x, int32_t K, float eps, float *mean, float *inverse) {
    *mean = long_sum(x, K) / (float)K;
    *inverse = inverse_root(long_squares(x, K, *mean) / (float)K, eps);
}

/* y, x, gamma, beta. p: rows, K, eps */
EXTENT(layer_norm_f32) {
    EXTENT_UNUSED;
    if (affine_need(p, &need[0], &need[2])) return -1;
    need[1] = need[0], need[3] = need[2];
    return 0;
}
KERNEL(layer_norm_f32, "oiii", 3) {
    const int32_t R = P(0), K = P(1);
    const float *gamma = IN(2), *beta = IN(3);
    for (int32_t i = 0; i < R; i++) {
        float *y = OUT(0) + (size_t)i * (size_t)K, mean, inverse;
        const float *x = IN(1) + (size_t)i * (size_t)K;
        layer_stats(x, K, PF(2), &mean, &inverse);
        for (int32_t k = 0; k < K; k++) y[k] = (x[k] - mean) * inverse * gamma[k] + beta[k];
    }
    return NULL;
}

/* dx, dy, x, gamma. p: rows, K, eps.  g = dy*gamma;  dx = (g - mean(g) - (x-mean)/s * mean(g*(x-mean)/s)) / s */
EXTENT(layer_norm_dx_f32) {
    EXTENT_UNUSED;
    if (affine_need(p, &need[0], &need[3])) return -1;
    need[1] = need[2] = need[0];
    return 0;
}
KERNEL(layer_norm_dx_f32, "oiii", 3) {
    const int32_t R = P(0), K = P(1);
    const float *gamma = IN(3);
    const ptrdiff_t step = eight();
    for (int32_t i = 0; i < R; i++) {
        float *dx = OUT(0) + (size_t)i * (size_t)K, mean, inverse, base = 0, slope = 0;
        const float *dy = IN(1) + (size_t)i * (size_t)K, *x = IN(2) + (size_t)i * (size_t)K;
        layer_stats(x, K, PF(2), &mean, &inverse);
        for (int32_t left = K, at = 0; left > 0;) {
            float b[8] = {0, 0, 0, 0, 0, 0, 0, 0}, s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            int32_t more = left < CHUNK ? left : CHUNK;
            left -= more;
            for (; more >= 8; more -= 8, at += (int32_t)step) {
                const float *d = dy + at, *g = gamma + at, *v = x + at;
                EACH_OF_8(l) b[l] += d[l] * g[l];
                EACH_OF_8(l) s[l] += d[l] * g[l] * (v[l] - mean);
            }
            for (int l = 0; l < more; l++) {
                b[l] += dy[at + l] * gamma[at + l];
                s[l] += dy[at + l] * gamma[at + l] * (x[at + l] - mean);
            }
            base += smg_lanes8(b), slope += smg_lanes8(s);
        }
        base = base / (float)K, slope = slope / (float)K * inverse * inverse;
        for (int32_t k = 0; k < K; k++) dx[k] = inverse * (dy[k] * gamma[k] - base - (x[k] - mean) * slope);
    }
    return NULL;
}

/* Inputs dy, x; scratch: mean and inverse root of every row. p: A,B,P,K, eps */
static int layer_norm_dgamma_need(const int32_t *p, int operands, SmgRun run, uint64_t *own, uint64_t *elements) {
    uint64_t rows, all;
    (void)operands, (void)run;
    if (rows_need(p, &rows, &all)) return -1;
    own[0] = own[1] = smg_mul(all, 4);
    own[2] = smg_mul(rows, 8);
    *elements = (uint64_t)p[3];
    return 0;
}
static const char *layer_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const Rows g = rows_of(c->p);
    const size_t R = (size_t)g.A * (size_t)g.B * (size_t)g.P;
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    float *stats = SINK_SCRATCH(c), tile[LANES];
    for (size_t i = 0; i < R; i++) layer_stats(x + i * (size_t)g.C, g.C, PF(4), &stats[2 * i], &stats[2 * i + 1]);
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        smg_sink_begin(sink, tile, (size_t)c0, (size_t)count);
        sum_by_row(tile, x, dy, stats, stats, g, c0, count);
        smg_sink_end(sink, tile, (size_t)c0, (size_t)count);
    }
    return NULL;
}
SINK_KERNELS(layer_norm_dgamma, 2, "ii", 5, "s")

/* ---- group_norm: statistics per sample and group of channels. p: N,P,C,groups, eps ---- */

static int group_need(const int32_t *p, uint64_t *elements, uint64_t *channels) {
    if (p[0] < 0 || p[1] < 1 || p[2] < 1 || p[2] > WIDEST || p[3] < 1 || p[2] % p[3]) return -1;
    *channels = smg_mul((uint64_t)p[2], 4);
    *elements = smg_mul(smg_mul((uint64_t)p[0], (uint64_t)p[1]), *channels);
    return 0;
}

/* Replaces each channel's value by total/members of its group. */
static void group_mean(float *v, int32_t C, int32_t groups, int32_t P) {
    const int32_t width = C / groups;
    const float members = (float)((int64_t)width * P);
    for (int32_t c0 = 0; c0 < C; c0 += width) {
        const float mean = long_sum(v + c0, width) / members;
        for (int32_t l = 0; l < width; l++) v[c0 + l] = mean;
    }
}

/* mean and inverse root of one sample, repeated for each channel of a group. */
static void group_stats(const float *x, int32_t P, int32_t C, int32_t groups, float eps, float *mean, float *inverse) {
    const Rows g = {1, 1, P, C};
    memset(mean, 0, (size_t)C * sizeof(float));
    memset(inverse, 0, (size_t)C * sizeof(float));
    for (int32_t c0 = 0; c0 < C; c0 += LANES) sum_plain(mean + c0, x, x, x, x, g, c0, lanes_at(c0, C));
    group_mean(mean, C, groups, P);
    for (int32_t c0 = 0; c0 < C; c0 += LANES) sum_square(inverse + c0, x, x, mean + c0, x, g, c0, lanes_at(c0, C));
    group_mean(inverse, C, groups, P);
    for (int32_t l = 0; l < C; l++) inverse[l] = inverse_root(inverse[l], eps);
}

/* y, x, gamma, beta; scratch 2C floats */
EXTENT(group_norm_f32) {
    EXTENT_UNUSED;
    if (group_need(p, &need[0], &need[2])) return -1;
    need[1] = need[0], need[3] = need[2], need[4] = smg_mul(need[2], 2);
    return 0;
}
KERNEL(group_norm_f32, "oiiis", 5) {
    const int32_t N = P(0), pixels = P(1), C = P(2);
    const float *x = IN(1), *gamma = IN(2), *beta = IN(3);
    float *y = OUT(0), *mean = OUT(4), *scale = mean + C;
    for (int32_t n = 0; n < N; n++) {
        group_stats(x, pixels, C, P(3), PF(4), mean, scale);
        for (int32_t l = 0; l < C; l++) scale[l] *= gamma[l];
        for (int32_t i = 0; i < pixels; i++, x += C, y += C)
            for (int32_t l = 0; l < C; l++) y[l] = (x[l] - mean[l]) * scale[l] + beta[l];
    }
    return NULL;
}

/* dx, dy, x, gamma; scratch 4C floats. As layer_norm_dx, with sums first by channel and then by group. */
EXTENT(group_norm_dx_f32) {
    EXTENT_UNUSED;
    if (group_need(p, &need[0], &need[3])) return -1;
    need[1] = need[2] = need[0], need[4] = smg_mul(need[3], 4);
    return 0;
}
KERNEL(group_norm_dx_f32, "oiiis", 5) {
    const int32_t N = P(0), pixels = P(1), C = P(2);
    const Rows g = {1, 1, pixels, C};
    const float *dy = IN(1), *x = IN(2), *gamma = IN(3);
    float *dx = OUT(0), *mean = OUT(4), *inverse = mean + C, *base = inverse + C, *slope = base + C;
    for (int32_t n = 0; n < N; n++) {
        group_stats(x, pixels, C, P(3), PF(4), mean, inverse);
        memset(base, 0, 2 * (size_t)C * sizeof(float));
        for (int32_t c0 = 0; c0 < C; c0 += LANES) {
            sum_plain(base + c0, dy, dy, mean, mean, g, c0, lanes_at(c0, C));
            sum_centred(slope + c0, x, dy, mean + c0, mean, g, c0, lanes_at(c0, C));
        }
        for (int32_t l = 0; l < C; l++) base[l] *= gamma[l], slope[l] *= gamma[l];
        group_mean(base, C, P(3), pixels);
        group_mean(slope, C, P(3), pixels);
        for (int32_t l = 0; l < C; l++) slope[l] = slope[l] * inverse[l] * inverse[l];
        for (int32_t i = 0; i < pixels; i++, x += C, dy += C, dx += C)
            for (int32_t l = 0; l < C; l++)
                dx[l] = inverse[l] * (dy[l] * gamma[l] - base[l] - (x[l] - mean[l]) * slope[l]);
    }
    return NULL;
}

/* Inputs dy, x; scratch 3C floats: the gradient as one tile, then mean and inverse root of a sample. */
static int group_norm_dgamma_need(const int32_t *p, int operands, SmgRun run, uint64_t *own, uint64_t *elements) {
    uint64_t channels;
    (void)operands, (void)run;
    if (group_need(p, &own[0], &channels)) return -1;
    own[1] = own[0], own[2] = smg_mul(channels, 3);
    *elements = (uint64_t)p[2];
    return 0;
}
static const char *group_norm_dgamma(const SmgCall *c, const Sink *sink) {
    const int32_t N = P(0), pixels = P(1), C = P(2);
    const Rows g = {1, 1, pixels, C};
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    float *tile = SINK_SCRATCH(c), *mean = tile + C, *inverse = mean + C;
    smg_sink_begin(sink, tile, 0, (size_t)C);
    for (int32_t n = 0; n < N; n++, x += (size_t)pixels * (size_t)C, dy += (size_t)pixels * (size_t)C) {
        group_stats(x, pixels, C, P(3), PF(4), mean, inverse);
        for (int32_t c0 = 0; c0 < C; c0 += LANES)
            sum_scaled(tile + c0, x, dy, mean + c0, inverse + c0, g, c0, lanes_at(c0, C));
    }
    smg_sink_end(sink, tile, 0, (size_t)C);
    return NULL;
}
SINK_KERNELS(group_norm_dgamma, 2, "ii", 5, "s")
