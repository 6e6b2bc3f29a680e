/* kernels/sink.h for whole rows of a gradient: the formulas of kernels/update.h in loops that the compiler turns into
 * vectors. */
#ifndef SMG_FAST_SINK_H
#define SMG_FAST_SINK_H
#include "../kernels/sink.h"
#include "fast.h"

/* The finished gradient g[count] of elements at..at+count of the parameter: stored, added to an accumulator, which
 * continues from what it holds, or used at once to update the weight w and the optimizer's m and v. Each mode is a loop
 * of its own, with all it needs of the sink in locals: only then does the compiler make vectors of it. */
static __attribute__((noinline, unused)) void fast_sink(const Sink *s, const float *restrict g, size_t at,
                                                        size_t count) {
    float *restrict w = s->w + at;
    const float lr = s->lr, decay = s->decay, beta1 = s->beta1;
    if (s->mode == SMG_STORE) {
        memcpy(w, g, count * sizeof(float));
    } else if (s->mode == SMG_ACC) {
        for (size_t i = 0; i < count; i++) { w[i] += g[i]; }
    } else if (s->mode == SMG_SGD) {
        for (size_t i = 0; i < count; i++) { w[i] = smg_sgd(w[i], smg_decayed(g[i], w[i], decay), lr); }
    } else if (s->mode == SMG_MOMENTUM) {
        float *restrict m = s->m + at;
        const int nesterov = s->nesterov;
        for (size_t i = 0; i < count; i++) {
            const float d = smg_decayed(g[i], w[i], decay), speed = smg_momentum(m[i], d, beta1);
            m[i] = speed;
            w[i] = smg_momentum_step(w[i], speed, d, lr, beta1, nesterov);
        }
    } else {
        float *restrict m = s->m + at, *restrict v = s->v + at;
        const float beta2 = s->beta2, take1 = s->take1, take2 = s->take2;
        const float eps = s->eps, scale = 1.0f / s->root2, shrink = s->shrink;
        for (size_t i = 0; i < count; i++) {
            const float d = smg_decayed(g[i], w[i], decay);
            const float mean = smg_adam_mean(m[i], d, beta1, take1), square = smg_adam_square(v[i], d, beta2, take2);
            m[i] = mean;
            v[i] = square;
            w[i] = smg_adam_step(w[i], mean, __builtin_sqrtf(square) * scale, lr, eps, shrink);
        }
    }
}

/* f is static SmgFault f(const SmgCall *c, const Sink *sink), its own operands SINK_IN(sink, i). */
#define FAST_SINK_KERNEL_(f, suffix, mode, inputs, own_params)                             \
    FAST_KERNEL(f##suffix) {                                                               \
        const int at = SMG_SINK_OUTS(mode) + (inputs);                                     \
        SMG_SINK(sink, mode, c->op, (mode) >= SMG_SGD ? IN(at) : NULL,                     \
                 (mode) == SMG_ADAM ? IN_AS(int32_t, at + 1) : NULL, c->p + (own_params)); \
        return f(c, &sink);                                                                \
    }
#define FAST_SINK_KERNELS(f, inputs, own_params)                          \
    FAST_SINK_KERNEL_(f, _f32, SMG_STORE, inputs, own_params)             \
    FAST_SINK_KERNEL_(f, _acc_f32, SMG_ACC, inputs, own_params)           \
    FAST_SINK_KERNEL_(f, _sgd_f32, SMG_SGD, inputs, own_params)           \
    FAST_SINK_KERNEL_(f, _momentum_f32, SMG_MOMENTUM, inputs, own_params) \
    FAST_SINK_KERNEL_(f, _adam_f32, SMG_ADAM, inputs, own_params)
#endif
