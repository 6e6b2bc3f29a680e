/* Elementwise arithmetic of one input. p: N, then the op's constants a, b (map.h). */
#include "map.h"

MAP(neg, 0, -x)
MAP(scale, 1, x *a)
MAP(shift, 1, x + a)
MAP(sign, 0, (float)((x > 0) - (x < 0)))
MAP(abs, 0, smg_absf(x))
static inline float abs_dx(float dy, float v) {
    const float below = v < 0 ? -dy : 0; /* 0 at 0 and at NaN */
    return v > 0 ? dy : below;
}
MAP_DX(abs_dx, 0, abs_dx(dy, v))
MAP(square, 0, x *x)
MAP_DX(square_dx, 0, dy * (2.0f * v))
MAP(reciprocal, 0, 1.0f / x)
MAP_DX(reciprocal_dx, 0, -dy *(v *v))
MAP(sqrt, 0, smg_sqrtf(x))
MAP_DX(sqrt_dx, 0, 0.5f * dy / v)
MAP(rsqrt, 0, 1.0f / smg_sqrtf(x))
MAP_DX(rsqrt_dx, 0, -0.5f * dy * (v * v * v))
MAP(exp, 0, smg_expf(x))
MAP(log, 0, smg_logf(x))
MAP(sin, 0, smg_sinf(x))
MAP_DX(sin_dx, 0, dy *smg_cosf(v))
MAP(cos, 0, smg_cosf(x))
MAP_DX(cos_dx, 0, -dy *smg_sinf(v))
MAP(erf, 0, smg_erff(x))
MAP_DX(erf_dx, 0, dy * (1.12837917f * smg_expf(-(v * v)))) /* 2 / sqrt(pi) */

/* Short cuts for the exponents that networks use; smg_powf gives the exact value of every integer power that is one. */
static inline float power(float x, float e) {
    if (e == 2) { return x * x; }
    if (e == 3) { return x * x * x; }
    if (e == 1) { return x; }
    if (e == -1) { return 1.0f / x; }
    if (e == 0.5f) { return smg_sqrtf(x); }
    return smg_powf(x, e);
}
MAP(pow_scalar, 1, power(x, a))
MAP_DX(pow_scalar_dx, 1, a == 0 ? 0 : dy * (a * power(v, a - 1.0f)))
