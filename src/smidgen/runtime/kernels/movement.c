/* Copies that change shape or order: one strided walk serves permute, slice, expand, feed and fetch.
 * p: rank, src_at, dst_at, dims[rank], src_strides[rank], dst_strides[rank]; all in elements. */
#include "../kernel.h"

static int copy_need(const int32_t *p, int params, uint64_t *need, unsigned width) {
    if (params < 3 || p[0] < 0 || p[0] > SMG_MAX_RANK || params != 3 + 3 * p[0] || p[1] < 0 || p[2] < 0) return -1;
    const int32_t rank = p[0], *dims = p + 3;
    need[1] = smg_mul(smg_add((uint64_t)p[1], smg_span(dims, dims + rank, rank)), width);
    need[0] = smg_mul(smg_add((uint64_t)p[2], smg_span(dims, dims + 2 * rank, rank)), width);
    return 0;
}

/* Walks all axes but the last; COPY moves one run of the last axis. */
#define STRIDED_COPY(type)                                                                              \
    const int32_t rank = P(0), *dims = c->p + 3, *ss = dims + rank, *ds = dims + 2 * rank;              \
    const type *src = (const type *)c->op[1] + P(1);                                                    \
    type *dst = (type *)c->op[0] + P(2);                                                                \
    int32_t at[SMG_MAX_RANK] = {0};                                                                     \
    for (int i = 0; i < rank; i++)                                                                      \
        if (dims[i] == 0) return NULL;                                                                  \
    const int32_t len = rank ? dims[rank - 1] : 1;                                                      \
    const ptrdiff_t sstep = rank ? ss[rank - 1] : 1, dstep = rank ? ds[rank - 1] : 1;                   \
    for (;;) {                                                                                          \
        if (sstep == 1 && dstep == 1)                                                                   \
            memcpy(dst, src, (size_t)len * sizeof(type));                                               \
        else                                                                                            \
            for (int32_t i = 0; i < len; i++) dst[i * dstep] = src[i * sstep];                          \
        int a = rank - 2;                                                                               \
        for (; a >= 0; a--) {                                                                           \
            src += ss[a], dst += ds[a];                                                                 \
            if (++at[a] < dims[a]) break;                                                               \
            src -= (ptrdiff_t)ss[a] * dims[a], dst -= (ptrdiff_t)ds[a] * dims[a], at[a] = 0;            \
        }                                                                                               \
        if (a < 0) return NULL;                                                                         \
    }

EXTENT(copy_b4) {
    EXTENT_UNUSED;
    return copy_need(p, params, need, 4);
}
KERNEL(copy_b4, "oi", -1) { STRIDED_COPY(uint32_t) }

EXTENT(copy_b1) {
    EXTENT_UNUSED;
    return copy_need(p, params, need, 1);
}
KERNEL(copy_b1, "oi", -1) { STRIDED_COPY(uint8_t) }
