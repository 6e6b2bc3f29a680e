/* From f32 to int8 and back, functions of one int8 number as tables, and gradients that read int8. N elements each. */
#include "../exact_math.h"
#include "../split.h"
#include "fixed_point.h"

#define LIMIT 33554432.0f /* 2^25: 512 steps of 2^16 */

typedef struct {
    int32_t N;
    float factor; /* 2^16 / scale */
    int32_t zero;
} Quantize;
UNPACK(quantize_of, Quantize)

EXTENT(quantize_i8) {
    const Quantize v = quantize_of(p);
    if (v.N < 0 || !smg_zero_ok(v.zero)) { return -1; }
    need[0] = (uint64_t)v.N;
    need[1] = smg_mul((uint64_t)v.N, 4);
    return 0;
}
/* One product, and no sum that a compiler could join with it: the same steps with contraction as without. */
static SmgFault quantize_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    const Quantize v = quantize_of(c->p);
    const float *x = IN(1), factor = v.factor;
    int8_t *y = OUT_AS(int8_t, 0);
    const int32_t zero = v.zero;
    for (int32_t i = from; i < to; i++) {
        const float steps = x[i] * factor, above = steps > -LIMIT ? steps : -LIMIT; /* NaN too */
        const int32_t q = (((int32_t)(above < LIMIT ? above : LIMIT) + (1 << 15)) >> 16) + zero;
        const int32_t low = q < -128 ? -128 : q;
        y[i] = (int8_t)(low > 127 ? 127 : low);
    }
    return SMG_NO_FAULT;
}
KERNEL(quantize_i8, "oi", PARAMS(Quantize)) {
    const int32_t N = quantize_of(c->p).N;
    return smg_split(c, quantize_range, c, N, N);
}

typedef struct {
    int32_t N;
    float scale;
    int32_t zero;
} Dequantize;
UNPACK(dequantize_of, Dequantize)

EXTENT(dequantize_f32) {
    const Dequantize v = dequantize_of(p);
    if (v.N < 0 || !smg_zero_ok(v.zero)) { return -1; }
    need[0] = smg_mul((uint64_t)v.N, 4);
    need[1] = (uint64_t)v.N;
    return 0;
}
KERNEL(dequantize_f32, "oi", PARAMS(Dequantize)) {
    const Dequantize v = dequantize_of(c->p);
    float *y = OUT(0);
    const int8_t *x = IN_AS(int8_t, 1);
    for (int32_t i = 0; i < v.N; i++) { y[i] = (float)(x[i] - v.zero) * v.scale; }
    return SMG_NO_FAULT;
}

typedef struct {
    int32_t N;
} Each;
UNPACK(each_of, Each)

EXTENT(qtable_i8) {
    const Each v = each_of(p);
    if (v.N < 0) { return -1; }
    need[0] = need[1] = (uint64_t)v.N;
    need[2] = 256;
    return 0;
}
KERNEL(qtable_i8, "oii", PARAMS(Each)) {
    const Each v = each_of(c->p);
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *x = IN_AS(int8_t, 1), *table = IN_AS(int8_t, 2);
    for (int32_t i = 0; i < v.N; i++) { y[i] = table[x[i] + 128]; }
    return SMG_NO_FAULT;
}

EXTENT(qtable_dx_f32) {
    const Each v = each_of(p);
    if (v.N < 0) { return -1; }
    need[0] = need[1] = smg_mul((uint64_t)v.N, 4);
    need[2] = (uint64_t)v.N;
    need[3] = 256 * sizeof(float);
    return 0;
}
KERNEL(qtable_dx_f32, "oiii", PARAMS(Each)) {
    const Each v = each_of(c->p);
    float *dx = OUT(0);
    const float *dy = IN(1), *slopes = IN(3);
    const int8_t *x = IN_AS(int8_t, 2);
    for (int32_t i = 0; i < v.N; i++) { dx[i] = dy[i] * slopes[x[i] + 128]; }
    return SMG_NO_FAULT;
}
