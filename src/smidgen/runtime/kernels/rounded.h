/* Weights in int8, and biases in int32, that learn (QAS, Lin et al. 2022): a weight gradient goes into the optimizer of
 * sink.h tile by tile, all in f32 and in the units of the user's model, and only the change is rounded:
 *
 *     g = gain * (factor * sum)    w = scale * q + offset    change = what update.h takes from w for g
 *     q <- clamp(q - floor(change / scale + r))           r: random in [0, 1) (the mean is exact), or 1/2
 *
 * r is a hash of (seed, step, key, number of the weight): the same however a step is split or repeated. The map has
 * gain, scale and offset of each output, in three rows. A channel that is dead has scale 0 and stays as it is.
 *
 * ROUNDED_KERNELS(f, inputs, "ii", own_params, type) makes f_qsgd_type, f_qmomentum_type, f_qadam_type of the function
 * that SINK_KERNELS takes. Operands: (u q, u m, u v) own inputs, i map, i lr, i counter
 *                        + p: RoundedParams, sink's */
#ifndef SMG_ROUNDED_H
#define SMG_ROUNDED_H
#include "../hash.h"
#include "sink.h"

typedef struct {
    int32_t outputs, key, first, nearest; /* number of the first weight, where others come before it */
    float factor;
} RoundedParams;
UNPACK(rounded_params_of, RoundedParams)

/* floor(x + r) as far as it fits; 0 for NaN. */
static inline int32_t smg_floor_random(float x, uint32_t bits, int nearest) {
    const float limit = 1073741824.0f, sum = x + (nearest ? 0.5f : (float)(bits >> 8) * 5.9604644775390625e-8f);
    const float above = sum > -limit ? sum : -limit, t = above < limit ? above : limit;
    const int32_t cut = (int32_t)(sum == sum ? t : 0.0f);
    return cut - ((float)cut > t);
}

/* clamp(q - less), where |less| is at most 2^30: in 32 bits if q is small. */
static inline int32_t smg_less(int32_t q, int32_t less, int32_t limit, int is_small) {
    if (is_small) {
        const int32_t now = q - less, low = now < -limit ? -limit : now;
        return low > limit ? limit : low;
    }
    const int64_t now = (int64_t)q - less, low = now < -limit ? -limit : now;
    return (int32_t)(low > limit ? limit : low);
}

/* One end function for each type and optimizer, so that firmware has those that it uses. */
#define ROUNDED_END(name, type, limit, kind)                                                                      \
    static inline void name(const Sink *s, const float *tile, size_t at, size_t count) {                          \
        const Rounded r = *smg_rounded_of(s); /* copied: int8 may alias all of it */                              \
        type *q = (type *)r.q + at;                                                                               \
        float *m = (kind) >= SMG_MOMENTUM ? r.sink.m + at : NULL, *v = (kind) == SMG_ADAM ? r.sink.v + at : NULL; \
        const float lr = r.sink.lr, decay = r.sink.decay;                                                         \
        for (size_t o = at / r.length, i = 0; i < count; o++) {                                                   \
            const size_t left = (o + 1) * r.length - at, end = left < count ? left : count;                       \
            const float gain = r.gain[o], scale = r.scale[o], offset = r.offset[o];                               \
            for (; i < end; i++) {                                                                                \
                const float w = (float)q[i] * scale + offset;                                                     \
                const float d = smg_decayed(gain * (r.factor * tile[i]), w, decay);                               \
                float by = lr * d;                                                                                \
                if ((kind) == SMG_MOMENTUM) {                                                                     \
                    m[i] = smg_momentum(m[i], d, r.sink.beta1);                                                   \
                    by = smg_momentum_by(m[i], d, lr, r.sink.beta1, r.sink.nesterov);                             \
                }                                                                                                 \
                if ((kind) == SMG_ADAM) {                                                                         \
                    m[i] = smg_adam_mean(m[i], d, r.sink.beta1, r.sink.take1);                                    \
                    v[i] = smg_adam_square(v[i], d, r.sink.beta2, r.sink.take2);                                  \
                    by = smg_adam_by(m[i], smg_sqrtf(v[i]) / r.sink.root2, lr, r.sink.eps) + r.fade * w;          \
                }                                                                                                 \
                const uint32_t bits = smg_random(r.a, r.b, r.first + (uint32_t)(at + i));                         \
                const int32_t less = smg_floor_random(scale != 0 ? by / scale : 0.0f, bits, r.nearest);           \
                q[i] = (type)smg_less(q[i], less, limit, sizeof(type) == 1);                                      \
            }                                                                                                     \
        }                                                                                                         \
    }
#define LIMIT_i8  127
#define LIMIT_i32 (1 << 30)
#define TYPE_i8   int8_t
#define TYPE_i32  int32_t

/* Bytes of map, lr and counter; -1 refuses. */
static inline int smg_rounded_need(const int32_t *p, uint64_t elements, uint64_t *need) {
    const RoundedParams v = rounded_params_of(p);
    if (v.outputs < 1 || v.first < 0 || elements < 1 || elements % (uint64_t)v.outputs) { return -1; }
    need[0] = 3 * sizeof(float) * (uint64_t)v.outputs;
    need[1] = sizeof(float);
    need[2] = 2 * sizeof(int32_t);
    return 0;
}

#ifdef __OPTIMIZE_SIZE__ /* not inlined, so that devices/stack.py knows by its calls what has such weights */
#define ROUNDED_CODE __attribute__((noinline, unused)) static
#else
#define ROUNDED_CODE static inline
#endif
ROUNDED_CODE void smg_rounded_to(Rounded *to, void *q, const float *map, const int32_t *counter, const int32_t *p,
                                 uint64_t elements) {
    const RoundedParams v = rounded_params_of(p);
    const uint32_t seed = (uint32_t)counter[0], step = (uint32_t)counter[1], key = (uint32_t)v.key;
    to->q = q;
    to->gain = map;
    to->scale = map + v.outputs;
    to->offset = map + 2 * (ptrdiff_t)v.outputs;
    to->length = (size_t)(elements / (uint64_t)v.outputs);
    to->a = smg_stream_a(seed, step, key);
    to->b = smg_stream_b(seed, step, key);
    to->first = (uint32_t)v.first;
    to->nearest = v.nearest != 0;
    to->factor = v.factor;
}

/* The sink of a call whose map is operand `at`; p: RoundedParams and the optimizer's. */
#define ROUNDED_SINK(rounded, kind, type, at, p_, elements)                                                          \
    Rounded rounded;                                                                                                 \
    (rounded).sink =                                                                                                 \
        smg_sink_plan(SMG_KIND_##kind, c->op, IN((at) + 1), IN_AS(int32_t, (at) + 2), (p_) + PARAMS(RoundedParams)); \
    (rounded).sink.mode = SMG_KIND_##kind - SMG_SGD + SMG_QSGD;                                                      \
    (rounded).fade = smg_rounded_fade(SMG_KIND_##kind, (p_) + PARAMS(RoundedParams), IN((at) + 1));                  \
    smg_rounded_to(&(rounded), c->op[0], IN(at), IN_AS(int32_t, (at) + 2), p_, elements);                            \
    (rounded).sink.end = smg_rounded_end_##kind##_##type
#define SMG_KIND_qsgd      SMG_SGD
#define SMG_KIND_qmomentum SMG_MOMENTUM
#define SMG_KIND_qadam     SMG_ADAM

/* Of decoupled weight decay, how much of a weight goes in a step. */
static inline float smg_rounded_fade(int kind, const int32_t *p, const float *lr) {
    if (kind != SMG_ADAM) { return 0.0f; }
    const AdamParams v = adam_params_of(p);
    return v.decoupled ? lr[0] * v.decay : 0.0f;
}

#define ROUNDED_ENDS_OF(type)                                                              \
    ROUNDED_END(smg_rounded_end_qsgd_##type, TYPE_##type, LIMIT_##type, SMG_SGD)           \
    ROUNDED_END(smg_rounded_end_qmomentum_##type, TYPE_##type, LIMIT_##type, SMG_MOMENTUM) \
    ROUNDED_END(smg_rounded_end_qadam_##type, TYPE_##type, LIMIT_##type, SMG_ADAM)
ROUNDED_ENDS_OF(i8)
ROUNDED_ENDS_OF(i32)

#define ROUNDED_KERNEL_(f, kind, first, inputs, own_sig, own_params, type)            \
    EXTENT(f##_##kind##_##type) {                                                     \
        enum { outs = SMG_SINK_OUTS(SMG_KIND_##kind) };                               \
        uint64_t own[(inputs) + 1] = {0}, elements = 0;                               \
        if (f##_need(p, own, &elements)) { return -1; }                               \
        need[0] = smg_mul(elements, sizeof(TYPE_##type));                             \
        for (int i = 1; i < outs; i++) { need[i] = smg_mul(elements, 4); }            \
        for (int i = 0; i < (inputs); i++) { need[outs + i] = own[i]; }               \
        return smg_rounded_need(p + (own_params), elements, need + outs + (inputs));  \
    }                                                                                 \
    KERNEL(f##_##kind##_##type, first own_sig "iii",                                  \
           (own_params) + PARAMS(RoundedParams) + SMG_KIND_PARAMS(SMG_KIND_##kind)) { \
        const int at = SMG_SINK_OUTS(SMG_KIND_##kind) + (inputs);                     \
        uint64_t own[(inputs) + 1] = {0}, elements = 0;                               \
        f##_need(c->p, own, &elements);                                               \
        ROUNDED_SINK(rounded, kind, type, at, c->p + (own_params), elements);         \
        return f(c, &rounded.sink);                                                   \
    }
#define ROUNDED_KERNELS(f, inputs, own_sig, own_params, type)              \
    ROUNDED_KERNEL_(f, qsgd, "u", inputs, own_sig, own_params, type)       \
    ROUNDED_KERNEL_(f, qmomentum, "uu", inputs, own_sig, own_params, type) \
    ROUNDED_KERNEL_(f, qadam, "uuu", inputs, own_sig, own_params, type)
#endif
