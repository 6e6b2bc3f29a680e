/* Kernels that compute each element from the elements at the same place. One line defines extent and kernel:
 *
 *   MAP(scale, 1, x * a)               y[i] from x = x[i] and up to two constants a, b; 1: it has one constant
 *   MAP_DX(tanh_dx, 0, dy * (1 - v*v)) dx[i] from dy = dy[i] and v = what the gradient reads, x[i] or y[i]
 *
 * All operands have N elements; the output may lie on top of an input. */
#ifndef SMG_MAP_H
#define SMG_MAP_H
#include "../exact_math.h"
#include "../split.h"
#include "params.h"

/* Operands of N floats each. */
static inline int smg_map_need(int32_t N, int operands, uint64_t *need) {
    if (N < 0) { return -1; }
    for (int i = 0; i < operands; i++) { need[i] = smg_mul((uint64_t)N, 4); }
    return 0;
}

#define SMG_EACH(body) \
    for (int32_t i = from; i < to; i++) { body; }
#define SMG_MAP(name, signature, inputs, constants, loop)                     \
    EXTENT(name) { return smg_map_need(map_of(p).N, 1 + (inputs), need); }    \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) { \
        const SmgCall *c = (const SmgCall *)arg;                              \
        SMG_UNUSED const float a = (constants) > 0 ? map_a_of(c->p).a : 0;    \
        SMG_UNUSED const float b = (constants) > 1 ? map_ab_of(c->p).b : 0;   \
        const float *first = IN(1);                                           \
        SMG_UNUSED const float *second = IN(inputs);                          \
        float *out = OUT(0);                                                  \
        loop return SMG_NO_FAULT;                                             \
    }                                                                         \
    KERNEL(name, signature, 1 + (constants)) {                                \
        const int32_t N = map_of(c->p).N;                                     \
        return smg_split(c, name##_range, c, N, N);                           \
    }
#define SMG_EACH_X(value)              SMG_EACH(const float x = first[i]; out[i] = value)
#define SMG_EACH_DX(value)             SMG_EACH(const float dy = first[i]; const float v = second[i]; out[i] = value)
#define MAP(name, constants, value)    SMG_MAP(name##_f32, "oi", 1, constants, SMG_EACH_X(value))
#define MAP_DX(name, constants, value) SMG_MAP(name##_f32, "oii", 2, constants, SMG_EACH_DX(value))
/* One of two forms, picked by the constant a: a loop each, or both would be computed for every element. */
#define SMG_EITHER(one, other) \
    if (a != 0) {              \
        one                    \
    } else {                   \
        other                  \
    }
#define MAP_EITHER(name, one, other) SMG_MAP(name##_f32, "oi", 1, 1, SMG_EITHER(SMG_EACH_X(one), SMG_EACH_X(other)))
#define MAP_DX_EITHER(name, one, other) \
    SMG_MAP(name##_f32, "oii", 2, 1, SMG_EITHER(SMG_EACH_DX(one), SMG_EACH_DX(other)))
#endif
