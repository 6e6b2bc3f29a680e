/* The numbers that bytes stand for. */
#include "../kernel.h"

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
