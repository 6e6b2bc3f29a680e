/* Elementwise operations of two or three inputs with broadcasting. The output is dense; an input has stride 0 along
 * axes it is repeated on. */
#include "../exact_math.h"
#include "broadcast.h"

/* One run; the common strides 0 and 1 get loops that vectorise. */
#define RUN_2(type, F)                                                                        \
    const type *a = A + off[0], *b = B + off[1];                                              \
    const size_t sa = step[0], sb = step[1];                                                  \
    if (sa == 1 && sb == 1) {                                                                 \
        for (int32_t i = 0; i < len; i++) { y[i] = F(a[i], b[i]); }                           \
    } else if (sa == 1 && sb == 0) {                                                          \
        const type same = *b;                                                                 \
        for (int32_t i = 0; i < len; i++) { y[i] = F(a[i], same); }                           \
    } else if (sa == 0 && sb == 1) {                                                          \
        const type same = *a;                                                                 \
        for (int32_t i = 0; i < len; i++) { y[i] = F(same, b[i]); }                           \
    } else {                                                                                  \
        for (int32_t i = 0; i < len; i++) { y[i] = F(a[(size_t)i * sa], b[(size_t)i * sb]); } \
    }

#define BINARY(name, F)                                                                     \
    EXTENT(name) { return broadcast_need(p, params, 2, (const uint8_t[]){4, 4, 4}, need); } \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) {               \
        const SmgCall *c = (const SmgCall *)arg;                                            \
        float *y = OUT(0);                                                                  \
        const float *A = IN(1), *B = IN(2);                                                 \
        EACH_RUN(c->p, 2, RUN_2(float, F));                                                 \
        return SMG_NO_FAULT;                                                                \
    }                                                                                       \
    BROADCAST_KERNEL(name, "oii", 0)
#define ADD(a, b)     ((a) + (b))
#define SUB(a, b)     ((a) - (b))
#define MUL(a, b)     ((a) * (b))
#define DIV(a, b)     ((a) / (b))
/* NaN in either input comes through. */
#define MAXIMUM(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MINIMUM(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
BINARY(add_f32, ADD)
BINARY(sub_f32, SUB)
BINARY(mul_f32, MUL)
BINARY(div_f32, DIV)
BINARY(pow_f32, smg_powf)
BINARY(maximum_f32, MAXIMUM)
BINARY(minimum_f32, MINIMUM)

/* p: 1 if the inputs are i32 (else f32), then as above. */
typedef struct {
    int32_t is_i32;
} Compare;
UNPACK(compare_of, Compare)

#define COMPARE(name, OP)                                                                                          \
    EXTENT(name) {                                                                                                 \
        if (params < PARAMS(Compare) || compare_of(p).is_i32 < 0 || compare_of(p).is_i32 > 1) { return -1; }       \
        return broadcast_need(p + PARAMS(Compare), params - PARAMS(Compare), 2, (const uint8_t[]){1, 4, 4}, need); \
    }                                                                                                              \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) {                                      \
        const SmgCall *c = (const SmgCall *)arg;                                                                   \
        uint8_t *y = OUT_AS(uint8_t, 0);                                                                           \
        if (compare_of(c->p).is_i32) {                                                                             \
            const int32_t *A = IN_AS(int32_t, 1), *B = IN_AS(int32_t, 2);                                          \
            EACH_RUN(c->p + PARAMS(Compare), 2, RUN_2(int32_t, OP));                                               \
        } else {                                                                                                   \
            const float *A = IN(1), *B = IN(2);                                                                    \
            EACH_RUN(c->p + PARAMS(Compare), 2, RUN_2(float, OP));                                                 \
        }                                                                                                          \
        return SMG_NO_FAULT;                                                                                       \
    }                                                                                                              \
    BROADCAST_KERNEL(name, "oii", PARAMS(Compare))
#define EQ(a, b) ((a) == (b))
#define NE(a, b) ((a) != (b))
#define LT(a, b) ((a) < (b))
#define LE(a, b) ((a) <= (b))
#define GT(a, b) ((a) > (b))
#define GE(a, b) ((a) >= (b))
COMPARE(eq_u8, EQ)
COMPARE(ne_u8, NE)
COMPARE(lt_u8, LT)
COMPARE(le_u8, LE)
COMPARE(gt_u8, GT)
COMPARE(ge_u8, GE)

#define LOGICAL(name, F)                                                                    \
    EXTENT(name) { return broadcast_need(p, params, 2, (const uint8_t[]){1, 1, 1}, need); } \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) {               \
        const SmgCall *c = (const SmgCall *)arg;                                            \
        uint8_t *y = OUT_AS(uint8_t, 0);                                                    \
        const uint8_t *A = IN_AS(uint8_t, 1), *B = IN_AS(uint8_t, 2);                       \
        EACH_RUN(c->p, 2, RUN_2(uint8_t, F));                                               \
        return SMG_NO_FAULT;                                                                \
    }                                                                                       \
    BROADCAST_KERNEL(name, "oii", 0)
#define AND(a, b) ((a) != 0 && (b) != 0)
#define OR(a, b)  ((a) != 0 || (b) != 0)
LOGICAL(logical_and_u8, AND)
LOGICAL(logical_or_u8, OR)

/* p: N. */
typedef struct {
    int32_t N;
} Not;
UNPACK(not_of, Not)

EXTENT(logical_not_u8) {
    const Not v = not_of(p);
    if (v.N < 0) { return -1; }
    need[0] = need[1] = (uint64_t)v.N;
    return 0;
}
KERNEL(logical_not_u8, "oi", PARAMS(Not)) {
    const Not v = not_of(c->p);
    uint8_t *y = OUT_AS(uint8_t, 0);
    const uint8_t *x = IN_AS(uint8_t, 1);
    for (int32_t i = 0; i < v.N; i++) { y[i] = x[i] == 0; }
    return SMG_NO_FAULT;
}

/* Three inputs, the first of another type than the others for `where`. */
#define TERNARY(name, first, type, first_bytes, bytes, F)                                                            \
    EXTENT(name) { return broadcast_need(p, params, 3, (const uint8_t[]){bytes, first_bytes, bytes, bytes}, need); } \
    static SmgFault name##_range(const void *arg, int32_t from, int32_t to) {                                        \
        const SmgCall *c = (const SmgCall *)arg;                                                                     \
        type *y = OUT_AS(type, 0);                                                                                   \
        const first *X = IN_AS(first, 1);                                                                            \
        const type *A = IN_AS(type, 2), *B = IN_AS(type, 3);                                                         \
        EACH_RUN(c->p, 3, RUN_3(first, type, F));                                                                    \
        return SMG_NO_FAULT;                                                                                         \
    }                                                                                                                \
    BROADCAST_KERNEL_FLAGS(name, "oiii", 0, (bytes) == 1 && (first_bytes) == 1 ? SMG_BYTES : 0)
#define RUN_3(first, type, F)                                                                                    \
    const first *x = X + off[0];                                                                                 \
    const type *a = A + off[1], *b = B + off[2];                                                                 \
    const size_t sx = step[0], sa = step[1], sb = step[2];                                                       \
    if (sx == 1 && sa == 1 && sb == 1) {                                                                         \
        for (int32_t i = 0; i < len; i++) { y[i] = F(x[i], a[i], b[i]); }                                        \
    } else {                                                                                                     \
        for (int32_t i = 0; i < len; i++) { y[i] = F(x[(size_t)i * sx], a[(size_t)i * sa], b[(size_t)i * sb]); } \
    }
#define WHERE(x, a, b) ((x) ? (a) : (b))
TERNARY(where_b4, uint8_t, uint32_t, 1, 4, WHERE)
TERNARY(where_b1, uint8_t, uint8_t, 1, 1, WHERE)

/* Gradients; the definitions are torch's. Equal inputs share the gradient of maximum and minimum. */
static inline float pow_da(float dy, float a, float b) { return b == 0 ? 0 : dy * (b * smg_powf(a, b - 1)); }
static inline float pow_db(float dy, float a, float b) {
    return a == 0 && b >= 0 ? 0 : dy * (smg_powf(a, b) * smg_logf(a));
}
static inline float div_db(float dy, float y, float b) { return -(dy * y) / b; }
static inline float maximum_dx(float dy, float a, float b) {
    const float half = dy * 0.5f, won = a == b ? half : dy;
    return a < b ? 0.0f : won;
}
static inline float minimum_dx(float dy, float a, float b) { return maximum_dx(dy, b, a); }
TERNARY(pow_da_f32, float, float, 4, 4, pow_da)
TERNARY(pow_db_f32, float, float, 4, 4, pow_db)
TERNARY(div_db_f32, float, float, 4, 4, div_db)
TERNARY(maximum_dx_f32, float, float, 4, 4, maximum_dx)
TERNARY(minimum_dx_f32, float, float, 4, 4, minimum_dx)
