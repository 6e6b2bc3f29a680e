/* Statistics of a stream (ops/moments.py): moments[5][C] and seen[3]. Rows are entered one after the other, so that a
 * batch gives the bits of its samples one by one. */
#include "../exact_math.h"
#include "params.h"

#define WIDEST (1 << 30) /* channels */

enum { CENTER, MEAN, VAR, SPREAD, RECENT, MOMENTS };
enum { COUNT, LEFT, READY, SEEN };

typedef struct {
    Matrix x;
    int32_t reference; /* with center and spread, not with the running mean and variance */
    float limit, eps;
} Standardise;
UNPACK(standardise_of, Standardise)

/* Bytes of x[R][C], moments and seen. */
static int moments_need(Matrix v, uint64_t *x, uint64_t *moments, uint64_t *seen) {
    if (v.R < 0 || v.C < 1 || v.C > WIDEST) { return -1; }
    *x = smg_mul(smg_mul((uint64_t)v.R, (uint64_t)v.C), 4);
    *moments = smg_mul((uint64_t)v.C, 4 * MOMENTS);
    *seen = 4 * SEEN;
    return 0;
}

static inline float within(float x, float limit) {
    const float low = x < -limit ? -limit : x;
    return low > limit ? limit : low;
}

/* y[R][C], x[R][C], moments, seen */
EXTENT(standardise_f32) {
    if (moments_need(standardise_of(p).x, &need[0], &need[2], &need[3])) { return -1; }
    need[1] = need[0];
    return 0;
}
KERNEL(standardise_f32, "oiii", PARAMS(Standardise)) {
    const Standardise v = standardise_of(c->p);
    const size_t C = (size_t)v.x.C, R = (size_t)v.x.R;
    const float *center = IN(2), *mean = center + MEAN * C, *var = center + (v.reference ? SPREAD : VAR) * C;
    const int ready = IN(3)[READY] != 0;
    for (size_t k = 0; k < C; k++) {
        const float scale = 1.0f / smg_sqrtf(var[k] + v.eps), moved = v.reference ? 0.0f : mean[k];
        for (size_t r = 0; r < R; r++) {
            const float z = ((IN(1)[r * C + k] - center[k]) - moved) * scale;
            OUT(0)[r * C + k] = ready ? within(z, v.limit) : 0.0f;
        }
    }
    return SMG_NO_FAULT;
}

/* dx[R][C], dy[R][C], y[R][C], moments, seen */
EXTENT(standardise_dx_f32) {
    if (moments_need(standardise_of(p).x, &need[0], &need[3], &need[4])) { return -1; }
    need[1] = need[2] = need[0];
    return 0;
}
KERNEL(standardise_dx_f32, "oiiii", PARAMS(Standardise)) {
    const Standardise v = standardise_of(c->p);
    const size_t C = (size_t)v.x.C, R = (size_t)v.x.R;
    const float *var = IN(3) + (v.reference ? SPREAD : VAR) * C;
    const int ready = IN(4)[READY] != 0;
    for (size_t k = 0; k < C; k++) {
        const float scale = 1.0f / smg_sqrtf(var[k] + v.eps);
        for (size_t r = 0; r < R; r++) {
            const float y = IN(2)[r * C + k], dx = IN(1)[r * C + k] * scale;
            OUT(0)[r * C + k] = ready && smg_absf(y) < v.limit ? dx : 0.0f;
        }
    }
    return SMG_NO_FAULT;
}

typedef struct {
    Matrix x;
    float window, rate;
} Track;
UNPACK(track_of, Track)

/* The statistics of now become the reference; all distances are from the new center. */
static void refer(float *m, size_t C) {
    for (size_t k = 0; k < C; k++) {
        const float center = m[k] + m[MEAN * C + k];
        m[MEAN * C + k] -= center - m[k];
        m[k] = center;
        m[SPREAD * C + k] = m[VAR * C + k];
        m[RECENT * C + k] = 0;
    }
}

/* moments, seen, x[R][C] */
EXTENT(track_moments_f32) {
    const Track v = track_of(p);
    if (!(v.window >= 1)) { return -1; }
    return moments_need(v.x, &need[2], &need[0], &need[1]);
}
KERNEL(track_moments_f32, "uui", PARAMS(Track)) {
    const Track v = track_of(c->p);
    const size_t C = (size_t)v.x.C, R = (size_t)v.x.R;
    float *m = OUT(0), *seen = OUT(1);
    for (size_t r = 0; r < R; r++) {
        const float *x = IN(2) + r * C;
        if (seen[COUNT] < 0) {
            seen[COUNT] += 1;
            continue;
        }
        const int first = seen[COUNT] == 0;
        seen[COUNT] = seen[COUNT] + 1 < v.window ? seen[COUNT] + 1 : v.window;
        const float share = 1.0f / seen[COUNT], rate = seen[READY] != 0 ? v.rate : 0.0f;
        for (size_t k = 0; k < C; k++) {
            if (first) {
                m[k] = x[k];
                m[MEAN * C + k] = m[VAR * C + k] = m[RECENT * C + k] = 0;
            }
            float *mean = &m[MEAN * C + k], *var = &m[VAR * C + k], *recent = &m[RECENT * C + k];
            const float away = x[k] - m[k], step = away - *mean;
            *mean += share * step;
            *var += share * (step * (away - *mean) - *var);
            *recent += rate * (away - *recent);
        }
        if (seen[LEFT] > 0) {
            seen[LEFT] -= 1;
            if (!(seen[LEFT] > 0)) {
                seen[LEFT] = 0;
                seen[READY] = 1;
                refer(m, C);
            }
        }
    }
    return SMG_NO_FAULT;
}

typedef struct {
    int32_t skip;
    float rows, usual;
} Restart;
UNPACK(restart_of, Restart)

/* seen, samples[1] */
EXTENT(restart_moments_f32) {
    need[0] = 4 * SEEN;
    need[1] = 4;
    return 0;
}
KERNEL(restart_moments_f32, "ui", PARAMS(Restart)) {
    const Restart v = restart_of(c->p);
    float *seen = OUT(0);
    const int given = IN(1)[0] > 0;
    const float samples = given ? IN(1)[0] : v.usual, rows = samples * v.rows;
    if (v.skip) {
        seen[COUNT] = -samples;
        seen[LEFT] = 0;
        return SMG_NO_FAULT;
    }
    const float part = rows < 1e9f ? (rows + 7.0f) / 8.0f : 1e9f;
    const float some = (float)(int32_t)(part > 0 ? part : 0); /* what is older counts as so many */
    if (given || seen[COUNT] > some) { seen[COUNT] = given ? 0 : some; }
    seen[LEFT] = rows;
    return SMG_NO_FAULT;
}

typedef struct {
    int32_t C;
    float eps;
} Report;
UNPACK(report_of, Report)

/* report[3]: drift, level, deviation; moments, seen */
EXTENT(report_moments_f32) {
    uint64_t x;
    const Matrix v = {0, report_of(p).C};
    need[0] = 12;
    return moments_need(v, &x, &need[1], &need[2]);
}
KERNEL(report_moments_f32, "oii", PARAMS(Report)) {
    const Report v = report_of(c->p);
    const size_t C = (size_t)v.C;
    const float *m = IN(1);
    float drift = 0, level = 0, deviation = 0;
    for (size_t k = 0; k < C; k++) {
        const float spread = m[SPREAD * C + k], var = m[VAR * C + k], recent = m[RECENT * C + k];
        drift += recent * recent / ((spread > var ? spread : var) + v.eps);
        level += m[k] + m[MEAN * C + k];
        deviation += smg_sqrtf(var);
    }
    OUT(0)[0] = IN(2)[READY] != 0 ? drift / (float)C : 0.0f;
    OUT(0)[1] = level / (float)C;
    OUT(0)[2] = IN(2)[COUNT] >= 2 ? deviation / (float)C : 1e30f; /* of one row nothing is known */
    return SMG_NO_FAULT;
}
