/* Kernels that compute each element from the elements at the same place. One line defines extent and kernel:
 *
 *   MAP(scale, 1, x * a)               y[i] from x = x[i] and up to two constants a, b; 1: it has one constant
 *   MAP_DX(tanh_dx, 0, dy * (1 - v*v)) dx[i] from dy = dy[i] and v = what the gradient reads, x[i] or y[i]
 *
 * p: N elements, then the constants as f32. The output may lie on top of an input. */
#ifndef SMG_MAP_H
#define SMG_MAP_H
#include "../exact_math.h"
#include "../kernel.h"

static inline int smg_map_need(const int32_t *p, int operands, uint64_t *need) {
    if (p[0] < 0) return -1;
    for (int i = 0; i < operands; i++) need[i] = smg_mul((uint64_t)p[0], 4);
    return 0;
}

#define SMG_MAP(name, signature, inputs, constants, body)                                               \
    EXTENT(name) {                                                                                      \
        EXTENT_UNUSED;                                                                                  \
        return smg_map_need(p, 1 + inputs, need);                                                       \
    }                                                                                                   \
    KERNEL(name, signature, 1 + constants) {                                                            \
        const float a = constants > 0 ? PF(1) : 0, b = constants > 1 ? PF(2) : 0;                       \
        const float *first = IN(1), *second = IN(inputs);                                               \
        float *out = OUT(0);                                                                            \
        const int32_t N = P(0);                                                                         \
        (void)a, (void)b, (void)second;                                                                 \
        for (int32_t i = 0; i < N; i++) {                                                               \
            body;                                                                                       \
        }                                                                                               \
        return NULL;                                                                                    \
    }
#define MAP(name, constants, value)                                                                     \
    SMG_MAP(name##_f32, "oi", 1, constants, const float x = first[i]; out[i] = value)
#define MAP_DX(name, constants, value)                                                                  \
    SMG_MAP(name##_f32, "oii", 2, constants, const float dy = first[i]; const float v = second[i]; out[i] = value)
#endif
