/* Sizes of rows that samples have, A * N * R of them, as kernels read them that sum over samples outermost. */
#ifndef SMG_SAMPLES_H
#define SMG_SAMPLES_H
#include "params.h"

/* Sizes end at 2^28, so that they can be added and stepped without overflow. */
static inline int size_ok(int32_t size) { return size >= 1 && size <= 1 << 28; }
static inline int batch_ok(int32_t size) { return size >= 0 && size <= 1 << 28; }
static inline uint64_t floats(int32_t a, int32_t b, int32_t c) {
    return smg_mul(smg_mul(smg_mul((uint64_t)a, (uint64_t)b), (uint64_t)c), 4);
}

static inline ptrdiff_t first_row(int32_t N, int32_t R, int32_t a, int32_t n) { return ((ptrdiff_t)a * N + n) * R; }
static inline int samples_ok(Samples v) { return size_ok(v.A) && batch_ok(v.N) && size_ok(v.R); }
/* Bytes of all rows, with C floats each. */
static inline uint64_t rows_bytes(Samples v, int32_t C) { return smg_mul(floats(v.A, v.N, v.R), (uint64_t)C); }
#endif
