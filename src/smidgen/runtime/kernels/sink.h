/* Where a weight gradient goes, tile by tile: stored, added to an accumulator, or straight into the optimizer,
 * so that the gradient as a whole never exists. update.h has the formulas.
 *
 * A weight-gradient kernel `f` is written once, as
 *     static int f_need(const int32_t *p, uint64_t *own, uint64_t *elements)
 *         own[i]: bytes of its i-th own operand (inputs, then scratch); elements: size of the gradient; -1 refuses
 *     static SmgFault f(const SmgCall *c, const Sink *sink)
 *         own operands are SINK_IN(sink, i), scratch is SINK_SCRATCH(c); its parameters come first in c->p
 * and SINK_KERNELS(f, inputs, "ii", own_params, "s") makes f_f32, f_acc_f32, f_sgd_f32, f_momentum_f32, f_adam_f32.
 *
 * Operands:   f          (o dw)             own inputs                      scratch
 *             f_acc      (u acc)            own inputs                      scratch
 *             f_sgd      (u w)              own inputs, i lr                scratch     + p: SgdParams
 *             f_momentum (u w, u m)         own inputs, i lr                scratch     + p: MomentumParams
 *             f_adam     (u w, u m, u v)    own inputs, i lr, i counter     scratch     + p: AdamParams
 *
 * Weights in integers, f_qsgd_i8 and so on, are in rounded.h. */
#ifndef SMG_SINK_H
#define SMG_SINK_H
#include "../exact_math.h"
#include "../kernel.h"
#include "update.h"

/* What the optimizer adds to a block of parameters. */
typedef struct {
    float decay; /* of weights */
} SgdParams;
typedef struct {
    float momentum, decay;
    int32_t nesterov;
} MomentumParams;
typedef struct {
    int32_t beta1[2], beta2[2]; /* doubles (smg_f64) */
    float eps, decay;
    int32_t decoupled; /* AdamW */
} AdamParams;
UNPACK(sgd_params_of, SgdParams)
UNPACK(momentum_params_of, MomentumParams)
UNPACK(adam_params_of, AdamParams)

/* In order of what they need: outputs w, m, v; inputs lr, counter. The same three for weights in integers. */
enum { SMG_STORE, SMG_ACC, SMG_SGD, SMG_MOMENTUM, SMG_ADAM, SMG_QSGD, SMG_QMOMENTUM, SMG_QADAM };
#define SMG_SINK_KIND(mode) ((mode) >= SMG_QSGD ? (mode) - SMG_QSGD + SMG_SGD : (mode))
#define SMG_SINK_OUTS(mode) (1 + (SMG_SINK_KIND(mode) >= SMG_MOMENTUM) + (SMG_SINK_KIND(mode) >= SMG_ADAM))
#define SMG_SINK_INS(mode)  (((mode) >= SMG_SGD) + ((mode) >= SMG_ADAM))
#define SMG_KIND_PARAMS(kind)                                                                              \
    (((kind) == SMG_SGD ? PARAMS(SgdParams) : 0) + ((kind) == SMG_MOMENTUM ? PARAMS(MomentumParams) : 0) + \
     ((kind) == SMG_ADAM ? PARAMS(AdamParams) : 0))
#define SMG_SINK_PARAMS(mode) SMG_KIND_PARAMS(SMG_SINK_KIND(mode))

typedef struct Sink {
    int mode;
    void (*end)(const struct Sink *s, const float *tile, size_t at, size_t count); /* where size matters; of integers */
    float *w, *m, *v;   /* w is the gradient or the accumulator for SMG_STORE and SMG_ACC */
    float lr, decay;    /* Adam: lr is already divided by the first bias correction */
    float beta1, beta2; /* momentum in beta1 for SMG_MOMENTUM */
    float take1, take2; /* 1 - beta */
    float eps, root2;   /* root2: square root of the second bias correction */
    float shrink;       /* decoupled weight decay: w is multiplied by this first */
    int nesterov;
} Sink;

/* The sink of weights in integers, with what it needs beside the optimizer: rounded.h. */
typedef struct {
    Sink sink;
    void *q;
    const float *gain, *scale, *offset; /* of each output */
    size_t length;                      /* weights of an output */
    uint32_t a, b, first;               /* random numbers: smg_random, of weights from this number on */
    int nearest;
    float factor; /* of the sums */
    float fade;   /* decoupled weight decay: this much of w goes */
} Rounded;
static inline const Rounded *smg_rounded_of(const Sink *s) { return (const Rounded *)s; }

/* x^k by repeated squaring: the same on every target. */
static inline double smg_powi(double x, uint32_t k) {
    double r = 1.0;
    for (; k; k >>= 1, x *= x) {
        if (k & 1) { r *= x; }
    }
    return r;
}

/* Square root of a double in (0, 1], accurate to well below a float's rounding: one float estimate, two Newton steps.
 * */
static inline double smg_sqrt_double(double x) {
    double y = (double)smg_sqrtf(smg_to_float(x));
    if (y == 0.0) { return 0.0; }
    y = 0.5 * (y + x / y);
    return 0.5 * (y + x / y);
}

static inline Sink smg_sink_plain(int mode, void *const *outs, const float *lr, const int32_t *p) {
    Sink s = {.mode = mode, .w = (float *)outs[0], .shrink = 1.0f};
    if (mode == SMG_SGD) {
        s.lr = lr[0];
        s.decay = sgd_params_of(p).decay;
    }
    if (mode == SMG_MOMENTUM) {
        const MomentumParams v = momentum_params_of(p);
        s.m = (float *)outs[1];
        s.lr = lr[0];
        s.beta1 = v.momentum;
        s.decay = v.decay;
        s.nesterov = v.nesterov;
    }
    return s;
}

/* On its own, so that firmware without Adam has no arithmetic in double. */
static inline Sink smg_sink_adam(void *const *outs, const float *lr, const int32_t *counter, const int32_t *p) {
    const AdamParams v = adam_params_of(p);
    const double b1 = smg_f64(v.beta1), b2 = smg_f64(v.beta2);
    const uint32_t step = counter[1] > 0 ? (uint32_t)counter[1] + 1u : 1u; /* counted after the update */
    Sink s = {.mode = SMG_ADAM,
              .w = (float *)outs[0],
              .m = (float *)outs[1],
              .v = (float *)outs[2],
              .beta1 = smg_to_float(b1),
              .take1 = smg_to_float(1.0 - b1),
              .beta2 = smg_to_float(b2),
              .take2 = smg_to_float(1.0 - b2),
              .eps = v.eps,
              .decay = v.decay,
              .shrink = 1.0f};
    if (v.decoupled) {
        s.shrink = smg_to_float(1.0 - (double)lr[0] * (double)v.decay);
        s.decay = 0.0f;
    }
    s.lr = smg_to_float((double)lr[0] / (1.0 - smg_powi(b1, step)));
    s.root2 = smg_to_float(smg_sqrt_double(1.0 - smg_powi(b2, step)));
    return s;
}

/* Start values of elements at..at+count of the gradient: zero, or what earlier micro-batches left. */
static inline void smg_sink_begin(const Sink *s, float *tile, size_t at, size_t count) {
    if (s->mode == SMG_ACC) {
        memcpy(tile, s->w + at, count * sizeof(float));
    } else {
        for (size_t i = 0; i < count; i++) { tile[i] = 0.0f; }
    }
}

/* The finished gradient of elements at..at+count, one function a mode. Fields are copied: the compiler need not fear
 * aliases. */
static inline void smg_sink_end_store(const Sink *s, const float *tile, size_t at, size_t count) {
    memcpy(s->w + at, tile, count * sizeof(float));
}
static inline void smg_sink_end_sgd(const Sink *s, const float *tile, size_t at, size_t count) {
    float *w = s->w + at;
    const float lr = s->lr, decay = s->decay;
    for (size_t i = 0; i < count; i++) { w[i] = smg_sgd(w[i], smg_decayed(tile[i], w[i], decay), lr); }
}
static inline void smg_sink_end_momentum(const Sink *s, const float *tile, size_t at, size_t count) {
    float *w = s->w + at, *m = s->m + at;
    const float lr = s->lr, decay = s->decay, beta1 = s->beta1;
    const int nesterov = s->nesterov;
    for (size_t i = 0; i < count; i++) {
        const float d = smg_decayed(tile[i], w[i], decay);
        m[i] = smg_momentum(m[i], d, beta1);
        w[i] = smg_momentum_step(w[i], m[i], d, lr, beta1, nesterov);
    }
}
static inline void smg_sink_end_adam(const Sink *s, const float *tile, size_t at, size_t count) {
    float *w = s->w + at, *m = s->m + at, *v = s->v + at;
    const float lr = s->lr, decay = s->decay, beta1 = s->beta1;
    const float beta2 = s->beta2, take1 = s->take1, take2 = s->take2;
    const float eps = s->eps, root2 = s->root2, shrink = s->shrink;
    for (size_t i = 0; i < count; i++) {
        const float d = smg_decayed(tile[i], w[i], decay);
        m[i] = smg_adam_mean(m[i], d, beta1, take1);
        v[i] = smg_adam_square(v[i], d, beta2, take2);
        w[i] = smg_adam_step(w[i], m[i], smg_sqrtf(v[i]) / root2, lr, eps, shrink);
    }
}
#ifdef __OPTIMIZE_SIZE__ /* a kernel brings the function of its own mode, and the linker drops the others */
__attribute__((noinline, unused)) static void smg_sink_end(const Sink *s, const float *tile, size_t at, size_t count) {
    s->end(s, tile, at, count);
}
#else
static inline void smg_sink_end(const Sink *s, const float *tile, size_t at, size_t count) {
    if (s->mode >= SMG_QSGD) {
        s->end(s, tile, at, count);
    } else if (s->mode <= SMG_ACC) {
        smg_sink_end_store(s, tile, at, count);
    } else if (s->mode == SMG_SGD) {
        smg_sink_end_sgd(s, tile, at, count);
    } else if (s->mode == SMG_MOMENTUM) {
        smg_sink_end_momentum(s, tile, at, count);
    } else {
        smg_sink_end_adam(s, tile, at, count);
    }
}
#endif

/* `mode` is a constant wherever a kernel is made. */
#define smg_sink_plan(mode, outs, lr, counter, p) \
    ((mode) == SMG_ADAM ? smg_sink_adam(outs, lr, counter, p) : smg_sink_plain(mode, outs, lr, p))
#ifdef __OPTIMIZE_SIZE__
typedef void (*SmgSinkEnd)(const Sink *s, const float *tile, size_t at, size_t count);
__attribute__((always_inline)) static inline SmgSinkEnd smg_sink_end_of(int mode) {
    if (mode <= SMG_ACC) { return smg_sink_end_store; }
    if (mode == SMG_SGD) { return smg_sink_end_sgd; }
    return mode == SMG_MOMENTUM ? smg_sink_end_momentum : smg_sink_end_adam;
}
#define SMG_SINK(name, mode, outs, lr, counter, p)         \
    Sink name = smg_sink_plan(mode, outs, lr, counter, p); \
    name.end = smg_sink_end_of(mode)
#else
#define SMG_SINK(name, mode, outs, lr, counter, p) const Sink name = smg_sink_plan(mode, outs, lr, counter, p)
#endif

#define SINK_IN_AS(type, sink, i) IN_AS(type, SMG_SINK_OUTS((sink)->mode) + (i))
#define SINK_IN(sink, i)          SINK_IN_AS(float, sink, i)
#define SINK_SCRATCH(c)           ((float *)(c)->op[(c)->operands - 1])

#define SINK_KERNEL_(f, suffix, mode, first, inputs, own_sig, last, own_params, scratch_sig)          \
    EXTENT(f##suffix) {                                                                               \
        enum { outs = SMG_SINK_OUTS(mode), ins = SMG_SINK_INS(mode), scr = sizeof(scratch_sig) - 1 }; \
        uint64_t own[(inputs) + 1] = {0}, elements = 0;                                               \
        if (f##_need(p, own, &elements)) { return -1; }                                               \
        for (int i = 0; i < outs; i++) { need[i] = smg_mul(elements, 4); }                            \
        for (int i = 0; i < (inputs); i++) { need[outs + i] = own[i]; }                               \
        if (ins > 0) { need[outs + (inputs)] = sizeof(float); }                                       \
        if (ins > 1) { need[outs + (inputs) + 1] = 2 * sizeof(int32_t); }                             \
        if (scr) { need[outs + (inputs) + ins] = own[(inputs)]; }                                     \
        return 0;                                                                                     \
    }                                                                                                 \
    KERNEL(f##suffix, first own_sig last scratch_sig, (own_params) + SMG_SINK_PARAMS(mode)) {         \
        const int at = SMG_SINK_OUTS(mode) + (inputs);                                                \
        SMG_SINK(sink, mode, c->op, (mode) >= SMG_SGD ? IN(at) : NULL,                                \
                 (mode) == SMG_ADAM ? IN_AS(int32_t, at + 1) : NULL, c->p + (own_params));            \
        return f(c, &sink);                                                                           \
    }
#define SINK_KERNELS(f, inputs, own_sig, own_params, scratch_sig)                                     \
    SINK_KERNEL_(f, _f32, SMG_STORE, "o", inputs, own_sig, "", own_params, scratch_sig)               \
    SINK_KERNEL_(f, _acc_f32, SMG_ACC, "u", inputs, own_sig, "", own_params, scratch_sig)             \
    SINK_KERNEL_(f, _sgd_f32, SMG_SGD, "u", inputs, own_sig, "i", own_params, scratch_sig)            \
    SINK_KERNEL_(f, _momentum_f32, SMG_MOMENTUM, "uu", inputs, own_sig, "i", own_params, scratch_sig) \
    SINK_KERNEL_(f, _adam_f32, SMG_ADAM, "uuu", inputs, own_sig, "ii", own_params, scratch_sig)
#endif
