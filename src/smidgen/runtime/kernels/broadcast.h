/* Walks over two or three inputs with broadcasting. The output is dense; an input has stride 0 along axes it is
 * repeated on. */
#ifndef SMG_BROADCAST_H
#define SMG_BROADCAST_H
#include "../split.h"
#include "walk.h"

/* p: rank, dims[rank], then strides[rank] of each input, in elements. */
typedef struct {
    int32_t rank;
    const int32_t *dims, *strides; /* the stride of input k along axis a is strides[k * rank + a] */
} Broadcast;

static inline Broadcast broadcast_of(const int32_t *p) {
    const int32_t rank = *p++;
    return (Broadcast){rank, p, p + rank};
}

/* width[k]: bytes per element of operand k. */
static inline int broadcast_need(const int32_t *p, int params, int inputs, const uint8_t *width, uint64_t *need) {
    if (params < 1 || *p < 0 || *p > SMG_MAX_RANK || params != 1 + (1 + inputs) * *p) { return -1; }
    const Broadcast v = broadcast_of(p);
    const uint64_t total = smg_product(v.dims, v.rank);
    if (total == SMG_TOO_MUCH) { return -1; }
    need[0] = smg_mul(total, width[0]);
    for (int k = 0; k < inputs; k++) {
        need[k + 1] = smg_mul(smg_span(v.dims, v.strides + k * v.rank, v.rank), width[k + 1]);
    }
    return 0;
}

/* A single axis is a range of elements that threads may share; several axes are one piece. */
static inline int32_t broadcast_pieces(const int32_t *p) {
    const Broadcast v = broadcast_of(p);
    return v.rank == 1 ? v.dims[0] : 1;
}

/* Runs BODY once for each run of the last axis: `len` outputs from y on; input k starts at off[k], steps by step[k].
 * Of a single axis, the run is its elements from..to. */
#define EACH_RUN(block, inputs, BODY)                                                                       \
    do {                                                                                                    \
        const Broadcast v = broadcast_of(block);                                                            \
        if (smg_product(v.dims, v.rank) == 0) { break; }                                                    \
        int32_t at[SMG_MAX_RANK] = {0}, len = v.rank ? v.dims[v.rank - 1] : 1;                              \
        size_t off[inputs] = {0}, step[inputs] = {0};                                                       \
        for (int k = 0; k < (inputs) && v.rank; k++) { step[k] = (size_t)v.strides[(k + 1) * v.rank - 1]; } \
        if (v.rank == 1) {                                                                                  \
            for (int k = 0; k < (inputs); k++) { off[k] = (size_t)from * step[k]; }                         \
            y += from;                                                                                      \
            len = to - from;                                                                                \
        }                                                                                                   \
        do {                                                                                                \
            BODY;                                                                                           \
            y += len;                                                                                       \
        } while (smg_walk_next(at, v.dims, v.rank - 1, v.strides, v.rank, off, inputs));                    \
    } while (0)

/* name_range(c, from, to) for all pieces of the block that starts after `head` other parameters. */
#define BROADCAST_KERNEL(name, signature, head) BROADCAST_KERNEL_FLAGS(name, signature, head, 0)
#define BROADCAST_KERNEL_FLAGS(name, signature, head, flags)    \
    KERNEL_FLAGS(name, signature, -1, flags) {                  \
        const int32_t pieces = broadcast_pieces(c->p + (head)); \
        return smg_split(c, name##_range, c, pieces, pieces);   \
    }
#endif
