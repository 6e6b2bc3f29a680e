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
    if (p[0] < 0) { return -1; }
    for (int i = 0; i < operands; i++) { need[i] = smg_mul((uint64_t)p[0], 4); }
    return 0;
}

#ifdef SMG_ISA /* fast: threads share the elements */
#include "../fast/pool.h"
typedef struct {
    const SmgCall *c;
    ptrdiff_t parts;
} SmgMapJob;
#define SMG_MAP_RUN(name)                                                                         \
    static void name##_part(void *job_, ptrdiff_t i, int thread) {                                \
        const SmgMapJob *job = (const SmgMapJob *)job_;                                           \
        const int64_t N = job->c->p[0];                                                           \
        (void)thread;                                                                             \
        name##_range(job->c, (int32_t)(N * i / job->parts), (int32_t)(N * (i + 1) / job->parts)); \
    }                                                                                             \
    static void name##_all(const SmgCall *c) {                                                    \
        SmgMapJob job = {c, P(0) < 1 << 14 || !c->work ? 1 : c->work->threads};                   \
        if (job.parts == 1) name##_range(c, 0, P(0));                                             \
        else smg_parallel(c->work, name##_part, &job, job.parts);                                 \
    }
#else
#define SMG_MAP_RUN(name) \
    static void name##_all(const SmgCall *c) { name##_range(c, 0, P(0)); }
#endif

#define SMG_EACH(body) \
    for (int32_t i = from; i < to; i++) { body; }
#define SMG_MAP(name, signature, inputs, constants, loop)                         \
    EXTENT(name) { return smg_map_need(p, 1 + inputs, need); }                    \
    static inline void name##_range(const SmgCall *c, int32_t from, int32_t to) { \
        const float a = constants > 0 ? PF(1) : 0, b = constants > 1 ? PF(2) : 0; \
        const float *first = IN(1), *second = IN(inputs);                         \
        float *out = OUT(0);                                                      \
        (void)a, (void)b, (void)second;                                           \
        loop                                                                      \
    }                                                                             \
    SMG_MAP_RUN(name)                                                             \
    KERNEL(name, signature, 1 + constants) {                                      \
        name##_all(c);                                                            \
        return NULL;                                                              \
    }
#define SMG_EACH_X(value)              SMG_EACH(const float x = first[i]; out[i] = value)
#define SMG_EACH_DX(value)             SMG_EACH(const float dy = first[i]; const float v = second[i]; out[i] = value)
#define MAP(name, constants, value)    SMG_MAP(name##_f32, "oi", 1, constants, SMG_EACH_X(value))
#define MAP_DX(name, constants, value) SMG_MAP(name##_f32, "oii", 2, constants, SMG_EACH_DX(value))
/* One of two forms, picked by the constant a: a loop each, or both would be computed for every element. */
#define MAP_EITHER(name, one, other)   SMG_MAP(name##_f32, "oi", 1, 1, if (a != 0) SMG_EACH_X(one) else SMG_EACH_X(other))
#define MAP_DX_EITHER(name, one, other) \
    SMG_MAP(name##_f32, "oii", 2, 1, if (a != 0) SMG_EACH_DX(one) else SMG_EACH_DX(other))
#endif
