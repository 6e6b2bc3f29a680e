/* One axis resampled to another length, as torch does it: x is [A][L][B], y is [A][O][B].
 * Weights are computed in double, in a fixed order, and rounded once; a gradient scatters along the same weights. */
#include "../exact_math.h"
#include "../kernel.h"

enum { CUBIC = 0, LINEAR_AA = 1, CUBIC_AA = 2 }; /* AA: antialiased, the filter as wide as an element of y is in x */

typedef struct {
    int32_t A, L, B, O, filter, align_corners, ratio[2];
} Resample;
UNPACK(resample_of, Resample)

static int resample_need(const int32_t *p, uint64_t *x, uint64_t *y) {
    const Resample v = resample_of(p);
    const double ratio = smg_f64(v.ratio);
    const int32_t limit = 1 << 30;
    if (v.A < 0 || v.B < 0 || v.L < 1 || v.L > limit || v.O < 1 || v.O > limit) { return -1; }
    if (v.filter < CUBIC || v.filter > CUBIC_AA || !(ratio >= 0.0 && ratio <= 16777216.0)) { return -1; }
    const uint64_t each = smg_mul(smg_mul((uint64_t)v.A, (uint64_t)v.B), 4);
    *x = smg_mul(each, (uint64_t)v.L);
    *y = smg_mul(each, (uint64_t)v.O);
    return 0;
}

/* Keys' cubic with the parameter a, at distances below 1 and from 1 to 2. */
static double near_cubic(double x, double a) { return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0; }
static double far_cubic(double x, double a) { return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a; }

/* Which elements of x make element o of y: `count` from `first` on, clamped to the axis. */
typedef struct {
    int32_t first, count;
    double tap[4];                   /* CUBIC */
    double centre, wide, total_taps; /* antialiased */
} Taps;

static double smooth_tap(const Resample *v, const Taps *t, int32_t i) {
    double x = ((double)i - t->centre + 0.5) / t->wide;
    if (x < 0.0) { x = -x; }
    if (v->filter == LINEAR_AA) { return x < 1.0 ? 1.0 - x : 0.0; }
    if (x < 1.0) { return near_cubic(x, -0.5); }
    return x < 2.0 ? far_cubic(x, -0.5) : 0.0;
}

/* x as an index from 0 to L, cut off toward zero. */
static int32_t place(double x, int32_t L) {
    if (!(x > 0.0)) { return 0; }
    return x >= (double)L ? L : (int32_t)x;
}

static Taps taps_at(const Resample *v, int32_t o) {
    const double ratio = smg_f64(v->ratio);
    Taps t = {0, 4, {0, 0, 0, 0}, 0, 1, 0};
    if (v->filter == CUBIC) {
        const double at = v->align_corners ? ratio * (double)o : ratio * ((double)o + 0.5) - 0.5;
        int32_t low = at < 0.0 ? -1 : place(at, v->L);
        if (low > v->L - 1) { low = v->L - 1; }
        double part = at - (double)low;
        if (part < 0.0) { part = 0.0; }
        if (part > 1.0) { part = 1.0; }
        t.first = low - 1;
        t.tap[0] = far_cubic(part + 1.0, -0.75);
        t.tap[1] = near_cubic(part, -0.75);
        t.tap[2] = near_cubic(1.0 - part, -0.75);
        t.tap[3] = far_cubic(2.0 - part, -0.75);
        return t;
    }
    t.wide = ratio > 1.0 ? ratio : 1.0;
    t.centre = ratio * ((double)o + 0.5);
    const double support = (v->filter == LINEAR_AA ? 1.0 : 2.0) * t.wide;
    t.first = place(t.centre - support + 0.5, v->L);
    const int32_t end = place(t.centre + support + 0.5, v->L);
    t.count = end > t.first ? end - t.first : 0;
    for (int32_t k = 0; k < t.count; k++) { t.total_taps += smooth_tap(v, &t, t.first + k); }
    return t;
}

/* The weight of tap k, and where it reads. */
static float weight_of(const Resample *v, const Taps *t, int32_t k, size_t *at) {
    int32_t i = t->first + k;
    double weight;
    if (v->filter == CUBIC) {
        weight = t->tap[k];
    } else {
        weight = t->total_taps != 0.0 ? smooth_tap(v, t, i) / t->total_taps : 0.0;
    }
    if (i < 0) { i = 0; }
    if (i > v->L - 1) { i = v->L - 1; }
    *at = (size_t)i;
    return smg_to_float(weight);
}

/* Elements of y in order, and for each its taps in order, whatever the other axes are. */
EXTENT(resample_f32) { return resample_need(p, &need[1], &need[0]); }
KERNEL(resample_f32, "oi", PARAMS(Resample)) {
    const Resample v = resample_of(c->p);
    if (v.A == 0 || v.B == 0) { return SMG_NO_FAULT; /* nothing to do, however long the axis is */ }
    const size_t L = (size_t)v.L, B = (size_t)v.B, O = (size_t)v.O;
    for (int32_t o = 0; o < v.O; o++) {
        const Taps t = taps_at(&v, o);
        for (int32_t a = 0; a < v.A; a++) { memset(OUT(0) + ((size_t)a * O + (size_t)o) * B, 0, B * sizeof(float)); }
        for (int32_t k = 0; k < t.count; k++) {
            size_t at;
            const float weight = weight_of(&v, &t, k, &at);
            for (int32_t a = 0; a < v.A; a++) {
                float *y = OUT(0) + ((size_t)a * O + (size_t)o) * B;
                const float *x = IN(1) + ((size_t)a * L + at) * B;
                for (size_t l = 0; l < B; l++) { y[l] += weight * x[l]; }
            }
        }
    }
    return SMG_NO_FAULT;
}

EXTENT(resample_dx_f32) { return resample_need(p, &need[0], &need[1]); }
KERNEL(resample_dx_f32, "oi", PARAMS(Resample)) {
    const Resample v = resample_of(c->p);
    if (v.A == 0 || v.B == 0) { return SMG_NO_FAULT; /* nothing to do, however long the axis is */ }
    const size_t L = (size_t)v.L, B = (size_t)v.B, O = (size_t)v.O;
    memset(OUT(0), 0, (size_t)v.A * L * B * sizeof(float));
    for (int32_t o = 0; o < v.O; o++) {
        const Taps t = taps_at(&v, o);
        for (int32_t k = 0; k < t.count; k++) {
            size_t at;
            const float weight = weight_of(&v, &t, k, &at);
            for (int32_t a = 0; a < v.A; a++) {
                float *dx = OUT(0) + ((size_t)a * L + at) * B;
                const float *dy = IN(1) + ((size_t)a * O + (size_t)o) * B;
                for (size_t l = 0; l < B; l++) { dx[l] += weight * dy[l]; }
            }
        }
    }
    return SMG_NO_FAULT;
}
