/* Numbers of one type made from those of another. */
#include "../kernel.h"

/* p: N, kind of x. */
enum { FROM_F32, FROM_I32, FROM_U8 };
typedef struct {
    int32_t N, kind;
} Cast;
UNPACK(cast_of, Cast)

static int cast_need(const int32_t *p, uint64_t *need, unsigned width) {
    const Cast v = cast_of(p);
    if (v.N < 0 || v.kind < FROM_F32 || v.kind > FROM_U8) { return -1; }
    need[0] = smg_mul((uint64_t)v.N, width);
    need[1] = smg_mul((uint64_t)v.N, v.kind == FROM_U8 ? 1 : 4);
    return 0;
}

/* Toward zero; saturates, and NaN is 0, where a plain conversion would be undefined. */
static inline int32_t to_i32(float x) {
    if (x >= 2147483648.0f) { return INT32_MAX; }
    if (x < -2147483648.0f) { return INT32_MIN; }
    return x != x ? 0 : (int32_t)x;
}

#define CAST(name, type, width, from_float, from_int)                      \
    EXTENT(name) { return cast_need(p, need, width); }                     \
    KERNEL(name, "oi", PARAMS(Cast)) {                                     \
        const Cast v = cast_of(c->p);                                      \
        type *y = OUT_AS(type, 0);                                         \
        const float *f = IN(1);                                            \
        const int32_t *w = IN_AS(int32_t, 1);                              \
        const uint8_t *b = IN_AS(uint8_t, 1);                              \
        if (v.kind == FROM_F32) {                                          \
            for (int32_t i = 0; i < v.N; i++) { y[i] = from_float(f[i]); } \
        } else if (v.kind == FROM_I32) {                                   \
            for (int32_t i = 0; i < v.N; i++) { y[i] = from_int(w[i]); }   \
        } else {                                                           \
            for (int32_t i = 0; i < v.N; i++) { y[i] = from_int(b[i]); }   \
        }                                                                  \
        return SMG_NO_FAULT;                                               \
    }
#define NONZERO(x) ((x) != 0)
CAST(cast_f32, float, 4, (float), (float))
CAST(cast_i32, int32_t, 4, to_i32, (int32_t))
CAST(cast_u8, uint8_t, 1, NONZERO, NONZERO)

/* Bytes as [A][C][B], and for each of C, or for all, a scale and an offset behind this. */
typedef struct {
    int32_t A, C, B, own;
} FromBytes;
UNPACK(from_bytes_of, FromBytes)

EXTENT(from_bytes_f32) {
    if (params < PARAMS(FromBytes)) { return -1; }
    const FromBytes v = from_bytes_of(p);
    if (v.A < 0 || v.C < 1 || v.B < 1 || (v.own != 1 && v.own != v.C)) { return -1; }
    if (v.own > SMG_MAX_PARAMS || params != PARAMS(FromBytes) + 2 * v.own) { return -1; }
    need[1] = smg_mul(smg_mul((uint64_t)v.A, (uint64_t)v.C), (uint64_t)v.B);
    need[0] = smg_mul(need[1], 4);
    return 0;
}
KERNEL(from_bytes_f32, "oi", -1) {
    const FromBytes v = from_bytes_of(c->p);
    const int32_t *scale = c->p + PARAMS(FromBytes), *offset = scale + v.own;
    float *y = OUT(0);
    const uint8_t *q = IN_AS(uint8_t, 1);
    for (int32_t a = 0; a < v.A; a++) {
        for (int32_t k = 0; k < v.C; k++, y += v.B, q += v.B) {
            const float s = smg_f32(scale[v.own > 1 ? k : 0]), o = smg_f32(offset[v.own > 1 ? k : 0]);
            for (int32_t i = 0; i < v.B; i++) { y[i] = (float)q[i] * s + o; }
        }
    }
    return SMG_NO_FAULT;
}
