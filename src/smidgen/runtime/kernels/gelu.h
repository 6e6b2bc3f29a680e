/* gelu = x Phi(x); the tanh form is x sigmoid(2u), for (1 + tanh u) / 2 = sigmoid(2u). */
#ifndef SMG_GELU_H
#define SMG_GELU_H
#include "../exact_math.h"

static inline float gelu_gate(float x) { return 0.5f + 0.5f * smg_erff(x * 0.707106781f); }
static inline float gelu_tanh_gate(float x) { return smg_sigmoidf(x * (1.59576912f + 0.0713548163f * (x * x))); }
static inline float gelu_slope(float x) { return gelu_gate(x) + x * (0.398942280f * smg_expf(-0.5f * (x * x))); }
static inline float gelu_tanh_slope(float x) {
    const float s = gelu_tanh_gate(x);
    const float bend = x * (1.59576912f + 0.214064449f * (x * x)) * (s * (1.0f - s));
    return s + (smg_absf(x) > 20.0f ? 0 : bend); /* there s (1 - s) is 0 and x^3 may be infinite */
}
#endif
