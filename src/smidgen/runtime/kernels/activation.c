/* Activations and their gradients. p: N, then the op's constants a, b (map.h).
 * A gradient reads v, which is the activation's input unless a comment says that it is its output. */
#include "gelu.h"
#include "map.h"

SMG_INLINE float clip(float x, float lo, float hi) { /* NaN stays NaN */
    const float above = x < lo ? lo : x;
    return above > hi ? hi : above;
}

MAP(relu, 0, x < 0 ? 0 : x)
MAP(clamp, 2, clip(x, a, b))              /* a: lo, b: hi */
MAP(leaky_relu, 1, x *(x > 0 ? 1.0f : a)) /* a: slope */
MAP(hardsigmoid, 0, clip(x + 3.0f, 0, 6.0f) * 0.166666667f)
MAP(hardswish, 0, x *(clip(x + 3.0f, 0, 6.0f) * 0.166666667f))
static inline float hardswish_dx(float dy, float v) {
    const float rising = v < 3.0f ? dy * (v * 0.333333333f + 0.5f) : dy;
    return v <= -3.0f ? 0 : rising;
}
MAP_DX(hardswish_dx, 0, hardswish_dx(dy, v))
MAP(sigmoid, 0, smg_sigmoidf(x))
MAP_DX(sigmoid_dx, 0, dy *(v * (1.0f - v))) /* v: output */
MAP(tanh, 0, smg_tanhf(x))
MAP_DX(tanh_dx, 0, dy * (1.0f - v * v))      /* v: output */
MAP(elu, 1, x > 0 ? x : a * smg_expm1f(x))   /* a: alpha */
MAP_DX(elu_dx, 1, v > 0 ? dy : dy * (v + a)) /* v: output */
MAP(softsign, 0, x / (1.0f + smg_absf(x)))
MAP(silu, 0, x *smg_sigmoidf(x))
MAP(log_sigmoid, 0, (x < 0 ? x : 0) - smg_log1pf(smg_expf(-smg_absf(x))))
MAP_DX(log_sigmoid_dx, 0, dy *smg_sigmoidf(-v))

static inline float softsign_slope(float x) {
    const float d = 1.0f + smg_absf(x);
    return 1.0f / (d * d);
}
MAP_DX(softsign_dx, 0, dy *softsign_slope(v))

static inline float silu_slope(float x) {
    const float s = smg_sigmoidf(x);
    return s * (1.0f + x * (1.0f - s));
}
MAP_DX(silu_dx, 0, dy *silu_slope(v))

/* a: beta, b: threshold on beta * x beyond which the function is the identity */
static inline float softplus(float x, float a, float b) {
    const float z = x * a, y = ((z < 0 ? 0 : z) + smg_log1pf(smg_expf(-smg_absf(z)))) / a;
    return z > b ? x : y;
}
MAP(softplus, 2, softplus(x, a, b))
MAP_DX(softplus_dx, 2, v *a > b ? dy : dy * smg_sigmoidf(v * a))

/* a: 1 for the tanh form */
MAP_EITHER(gelu, x *gelu_tanh_gate(x), x *gelu_gate(x))
MAP_DX_EITHER(gelu_dx, dy *gelu_tanh_slope(v), dy *gelu_slope(v))

/* mish = x tanh(log(1 + e^x)) = x w / (w + 2) with w = e^x (e^x + 2); the quotient is 1 from x = 20 on */
static inline float mish(float x) {
    const float e = smg_expf(x > 20.0f ? 20.0f : x), w = e * (e + 2.0f);
    return x * (w / (w + 2.0f));
}
static inline float mish_slope(float x) {
    const float e = smg_expf(x > 20.0f ? 20.0f : x), w = e * (e + 2.0f), d = w + 2.0f;
    const float bend = x * (4.0f * (e * (e + 1.0f)) / (d * d));
    return w / d + (x > 20.0f ? 0 : bend);
}
MAP(mish, 0, mish(x))
MAP_DX(mish_dx, 0, dy *mish_slope(v))

/* Gradients that only ask whether a value was between two bounds: from the value itself, or from one bit of it. */
SMG_INLINE int within(float x, float lo, float hi, int closed) {
    return closed ? (x >= lo) & (x <= hi) : (x > lo) & (x < hi);
}
SMG_INLINE float weigh(float dy, float by) { /* by 0 gives 0 even if dy is infinite */
    return smg_from_bits(smg_bits(dy * by) & (by == 0 ? 0 : 0xffffffffu));
}

/* p: N, the bounds and whether they count, the factors of dy inside and outside of them. */
typedef struct {
    int32_t N;
    float lo, hi;
    int32_t closed;
    float inside, outside;
} RangeDx;
UNPACK(range_dx_of, RangeDx)

EXTENT(range_dx_f32) { return smg_map_need(range_dx_of(p).N, 3, need); }
EXTENT(range_dx_i8) {
    const int32_t N = range_dx_of(p).N;
    if (smg_map_need(N, 2, need)) { return -1; }
    need[2] = (uint64_t)N;
    return 0;
}
/* v in floats, or in integers of 8 bits. A loop each for bounds that count and that do not, or both would be asked for
 * every element. */
#define RANGE_DX(name, type)                                                                   \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) {                  \
        const SmgCall *c = (const SmgCall *)arg;                                               \
        const RangeDx g = range_dx_of(c->p);                                                   \
        float *dx = OUT(0);                                                                    \
        const float *dy = IN(1), lo = g.lo, hi = g.hi, inside = g.inside, outside = g.outside; \
        const type *v = IN_AS(type, 2);                                                        \
        if (g.closed) {                                                                        \
            for (int32_t i = from; i < to; i++) {                                              \
                dx[i] = weigh(dy[i], within((float)v[i], lo, hi, 1) ? inside : outside);       \
            }                                                                                  \
        } else {                                                                               \
            for (int32_t i = from; i < to; i++) {                                              \
                dx[i] = weigh(dy[i], within((float)v[i], lo, hi, 0) ? inside : outside);       \
            }                                                                                  \
        }                                                                                      \
        return SMG_NO_FAULT;                                                                   \
    }                                                                                          \
    KERNEL(name, "oii", PARAMS(RangeDx)) {                                                     \
        const int32_t N = range_dx_of(c->p).N;                                                 \
        return smg_split(c, name##_range, c, N, N);                                            \
    }
RANGE_DX(range_dx_f32, float)
RANGE_DX(range_dx_i8, int8_t)

static int bits_need(BitRows v, uint64_t *bits, uint64_t *floats) {
    if (v.rows < 0 || v.per_row < 1) { return -1; }
    *bits = smg_mul((uint64_t)v.rows, ((uint64_t)v.per_row + 7) / 8);
    *floats = smg_mul(smg_mul((uint64_t)v.rows, (uint64_t)v.per_row), 4);
    return 0;
}

EXTENT(range_bits_u8) { return bits_need(range_bits_of(p).shape, &need[0], &need[1]); }
EXTENT(range_bits_i8) {
    if (bits_need(range_bits_of(p).shape, &need[0], &need[1])) { return -1; }
    need[1] /= sizeof(float);
    return 0;
}
#define RANGE_BITS(name, type, AT)                                                          \
    KERNEL(name, "oi", PARAMS(RangeBits)) {                                                 \
        const RangeBits g = range_bits_of(c->p);                                            \
        uint8_t *bits = OUT_AS(uint8_t, 0);                                                 \
        const type *x = IN_AS(type, 1);                                                     \
        const int32_t rows = g.shape.rows, per_row = g.shape.per_row;                       \
        AT##_BOUNDS for (int32_t r = 0; r < rows; r++) {                                    \
            int32_t left = per_row;                                                         \
            for (; AT##_EIGHT && left >= 8; left -= 8, x += 8) {                            \
                unsigned byte = 0;                                                          \
                AT##_UNROLL for (int j = 0; j < 8; j++) { byte |= AT##_WITHIN(x[j]) << j; } \
                *bits++ = (uint8_t)byte;                                                    \
            }                                                                               \
            for (; left > 0; left -= 8) {                                                   \
                unsigned byte = 0;                                                          \
                for (int j = 0; j < left && j < 8; j++) { byte |= AT##_WITHIN(x[j]) << j; } \
                *bits++ = (uint8_t)byte;                                                    \
                x += left < 8 ? left : 8;                                                   \
            }                                                                               \
        }                                                                                   \
        return SMG_NO_FAULT;                                                                \
    }
#define FLOAT_UNROLL
#define FLOAT_EIGHT 0
#define INT8_UNROLL SMG_UNROLL
#define INT8_EIGHT  1
#define FLOAT_BOUNDS                  \
    const float lo = g.lo, hi = g.hi; \
    const int closed = g.closed != 0;
#define FLOAT_WITHIN(x) (unsigned)within(x, lo, hi, closed)
/* Of integers the bounds are an interval of integers: one comparison, without a sign. */
#define INT8_BOUNDS     const Int8Range in = int8_range(g.lo, g.hi, g.closed != 0);
#define INT8_WITHIN(x)  (unsigned)((unsigned)((x) - in.least) < in.count)
typedef struct {
    int least;
    unsigned count;
} Int8Range;
static Int8Range int8_range(float lo, float hi, int closed) {
    Int8Range found = {0, 0};
    for (int x = -128; x < 128; x++) {
        if (!within((float)x, lo, hi, closed)) { continue; }
        if (!found.count) { found.least = x; }
        found.count++;
    }
    return found;
}
RANGE_BITS(range_bits_u8, float, FLOAT)
RANGE_BITS(range_bits_i8, int8_t, INT8)

EXTENT(bits_dx_f32) {
    if (bits_need(bits_dx_of(p).shape, &need[2], &need[0])) { return -1; }
    need[1] = need[0];
    return 0;
}
KERNEL(bits_dx_f32, "oii", PARAMS(BitsDx)) {
    const BitsDx g = bits_dx_of(c->p);
    float *dx = OUT(0);
    const float *dy = IN(1), inside = g.inside, outside = g.outside;
    const uint8_t *bits = IN_AS(uint8_t, 2);
    const int32_t rows = g.shape.rows, per_row = g.shape.per_row;
    /* as `weigh` does, with what it asks of the factor asked once */
    const float by[2] = {outside, inside};
    const uint32_t keep[2] = {outside == 0 ? 0 : 0xffffffffu, inside == 0 ? 0 : 0xffffffffu};
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t left = per_row; left > 0; left -= 8) {
            unsigned byte = *bits++;
            for (const float *end = dy + (left < 8 ? left : 8); dy < end; byte >>= 1) {
                *dx++ = smg_from_bits(smg_bits(*dy++ * by[byte & 1]) & keep[byte & 1]);
            }
        }
    }
    return SMG_NO_FAULT;
}
