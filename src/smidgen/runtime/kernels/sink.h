/* Where a weight gradient goes, tile by tile: stored, added to an accumulator, or straight into the optimizer,
 * so that the gradient as a whole never exists. Formulas are torch.optim's.
 *
 * A weight-gradient kernel `f` is written once, as
 *     static int f_need(const int32_t *p, uint64_t *own, uint64_t *elements)
 *         own[i]: bytes of its i-th own operand (inputs, then scratch); elements: size of the gradient; -1 refuses
 *     static const char *f(const SmgCall *c, const Sink *sink)
 *         own operands are SINK_IN(sink, i), scratch is SINK_SCRATCH(c); parameters are c->p[0..own)
 * and SINK_KERNELS(f, inputs, "ii", own_params, "s") makes f_f32, f_acc_f32, f_sgd_f32, f_momentum_f32, f_adam_f32.
 *
 * Operands:   f          (o dw)             own inputs                      scratch
 *             f_acc      (u acc)            own inputs                      scratch
 *             f_sgd      (u w)              own inputs, i lr                scratch     + p: weight_decay
 *             f_momentum (u w, u m)         own inputs, i lr                scratch     + p: momentum, weight_decay, nesterov
 *             f_adam     (u w, u m, u v)    own inputs, i lr, i counter     scratch     + p: beta1 (2 words), beta2 (2 words),
 *                                                                                          eps, weight_decay, decoupled */
#ifndef SMG_SINK_H
#define SMG_SINK_H
#include "../exact_math.h"
#include "../kernel.h"

enum { SMG_STORE, SMG_ACC, SMG_SGD, SMG_MOMENTUM, SMG_ADAM };
#define SMG_SINK_OUTS(mode)   ((mode) == SMG_ADAM ? 3 : (mode) == SMG_MOMENTUM ? 2 : 1)
#define SMG_SINK_INS(mode)    ((mode) == SMG_ADAM ? 2 : (mode) >= SMG_SGD ? 1 : 0)
#define SMG_SINK_PARAMS(mode) ((mode) == SMG_ADAM ? 7 : (mode) == SMG_MOMENTUM ? 3 : (mode) == SMG_SGD ? 1 : 0)

typedef struct Sink {
    int mode;
#ifdef __OPTIMIZE_SIZE__
    void (*end)(const struct Sink *s, const float *tile, size_t at, size_t count);
#endif
    float *w, *m, *v;   /* w is the gradient or the accumulator for SMG_STORE and SMG_ACC */
    float lr, decay;    /* Adam: lr is already divided by the first bias correction */
    float beta1, beta2; /* momentum in beta1 for SMG_MOMENTUM */
    float take1, take2; /* 1 - beta */
    float eps, root2;   /* root2: square root of the second bias correction */
    float shrink;       /* decoupled weight decay: w is multiplied by this first */
    int nesterov;
} Sink;

/* A double from two parameters, the low word first whatever the target's byte order. */
static inline double smg_f64(const int32_t *words) {
    const uint64_t bits = (uint64_t)(uint32_t)words[1] << 32 | (uint32_t)words[0];
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

/* x^k by repeated squaring: the same on every target. */
static inline double smg_powi(double x, uint32_t k) {
    double r = 1.0;
    for (; k; k >>= 1, x *= x) {
        if (k & 1) { r *= x; }
    }
    return r;
}

/* Square root of a double in (0, 1], accurate to well below a float's rounding: one float estimate, two Newton steps. */
static inline double smg_sqrt_double(double x) {
    double y = (double)smg_sqrtf(smg_to_float(x));
    if (y == 0.0) { return 0.0; }
    y = 0.5 * (y + x / y);
    return 0.5 * (y + x / y);
}

static inline Sink smg_sink_plain(int mode, void *const *outs, const float *lr, const int32_t *p) {
    Sink s = {.mode = mode, .w = (float *)outs[0], .shrink = 1.0f};
    if (mode == SMG_SGD) { s.lr = lr[0], s.decay = smg_f32(p[0]); }
    if (mode == SMG_MOMENTUM) {
        s.m = (float *)outs[1];
        s.lr = lr[0], s.beta1 = smg_f32(p[0]), s.decay = smg_f32(p[1]), s.nesterov = p[2];
    }
    return s;
}

/* On its own, so that firmware without Adam has no arithmetic in double. */
static inline Sink smg_sink_adam(void *const *outs, const float *lr, const int32_t *counter, const int32_t *p) {
    Sink s = {.mode = SMG_ADAM, .w = (float *)outs[0], .shrink = 1.0f};
    s.m = (float *)outs[1], s.v = (float *)outs[2];
    const double b1 = smg_f64(p), b2 = smg_f64(p + 2);
    const uint32_t step = counter[1] > 0 ? (uint32_t)counter[1] + 1u : 1u; /* counted after the update */
    s.beta1 = smg_to_float(b1), s.take1 = smg_to_float(1.0 - b1);
    s.beta2 = smg_to_float(b2), s.take2 = smg_to_float(1.0 - b2);
    s.eps = smg_f32(p[4]), s.decay = smg_f32(p[5]);
    if (p[6]) { s.shrink = smg_to_float(1.0 - (double)lr[0] * (double)s.decay), s.decay = 0.0f; }
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
    for (size_t i = 0; i < count; i++) { w[i] -= lr * (tile[i] + decay * w[i]); }
}
static inline void smg_sink_end_momentum(const Sink *s, const float *tile, size_t at, size_t count) {
    float *w = s->w + at, *m = s->m + at;
    const float lr = s->lr, decay = s->decay, beta1 = s->beta1;
    const int nesterov = s->nesterov;
    for (size_t i = 0; i < count; i++) {
        const float g = tile[i] + decay * w[i];
        m[i] = beta1 * m[i] + g;
        w[i] -= lr * (nesterov ? g + beta1 * m[i] : m[i]);
    }
}
static inline void smg_sink_end_adam(const Sink *s, const float *tile, size_t at, size_t count) {
    float *w = s->w + at, *m = s->m + at, *v = s->v + at;
    const float lr = s->lr, decay = s->decay, beta1 = s->beta1;
    const float beta2 = s->beta2, take1 = s->take1, take2 = s->take2;
    const float eps = s->eps, root2 = s->root2, shrink = s->shrink;
    for (size_t i = 0; i < count; i++) {
        const float g = tile[i] + decay * w[i];
        m[i] = take1 < 0.5f ? m[i] + take1 * (g - m[i]) : g - beta1 * (g - m[i]); /* torch.lerp */
        v[i] = beta2 * v[i] + take2 * (g * g);
        w[i] = w[i] * shrink - lr * (m[i] / (smg_sqrtf(v[i]) / root2 + eps));
    }
}
#ifdef __OPTIMIZE_SIZE__ /* a kernel brings the function of its own mode, and the linker drops the others */
__attribute__((noinline, unused)) static void smg_sink_end(const Sink *s, const float *tile, size_t at, size_t count) {
    s->end(s, tile, at, count);
}
#else
static inline void smg_sink_end(const Sink *s, const float *tile, size_t at, size_t count) {
    if (s->mode <= SMG_ACC) {
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
#define SMG_SINK_END(mode)                            \
    ((mode) <= SMG_ACC        ? smg_sink_end_store    \
     : (mode) == SMG_SGD      ? smg_sink_end_sgd      \
     : (mode) == SMG_MOMENTUM ? smg_sink_end_momentum \
                              : smg_sink_end_adam)
#define SMG_SINK(name, mode, outs, lr, counter, p)         \
    Sink name = smg_sink_plan(mode, outs, lr, counter, p); \
    name.end = SMG_SINK_END(mode)
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
        if (f##_need(p, own, &elements)) return -1;                                                   \
        for (int i = 0; i < outs; i++) need[i] = smg_mul(elements, 4);                                \
        for (int i = 0; i < (inputs); i++) need[outs + i] = own[i];                                   \
        if (ins > 0) need[outs + (inputs)] = 4;                                                       \
        if (ins > 1) need[outs + (inputs) + 1] = 8;                                                   \
        if (scr) need[outs + (inputs) + ins] = own[(inputs)];                                         \
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
