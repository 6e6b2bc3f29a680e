/* Copies that change shape or order: one strided walk serves permute, slice, expand, feed and fetch.
 * copy_*: p: rank, src_at, dst_at, src_size, dst_size, dims[rank], src_strides[rank], dst_strides[rank]; in elements.
 *         A size says how large the operand is if the walk stops before its end. */
#include "walk.h"

enum { RANK, SRC_AT, DST_AT, SRC_SIZE, DST_SIZE, DIMS };

/* Elements of source and destination. Every destination element is written once, so more steps than elements is nonsense. */
static int copy_spans(const int32_t *p, int params, uint64_t *src, uint64_t *dst) {
    if (params < DIMS || p[RANK] < 0 || p[RANK] > SMG_MAX_RANK || params != DIMS + 3 * p[RANK]) { return -1; }
    if (p[SRC_AT] < 0 || p[DST_AT] < 0 || p[SRC_SIZE] < 0 || p[DST_SIZE] < 0) { return -1; }
    const int32_t rank = p[RANK], *dims = p + DIMS;
    const uint64_t from = smg_span(dims, dims + rank, rank), to = smg_span(dims, dims + 2 * rank, rank);
    if (from == SMG_TOO_MUCH || to == SMG_TOO_MUCH || smg_product(dims, rank) > to) { return -1; }
    *src = smg_add((uint64_t)p[SRC_AT], from);
    *dst = smg_add((uint64_t)p[DST_AT], to);
    return 0;
}

static int copy_need(const int32_t *p, int params, uint64_t *need, unsigned width) {
    uint64_t src, dst;
    if (copy_spans(p, params, &src, &dst)) { return -1; }
    const uint64_t src_size = (uint64_t)p[SRC_SIZE], dst_size = (uint64_t)p[DST_SIZE];
    need[1] = smg_mul(src > src_size ? src : src_size, width);
    need[0] = smg_mul(dst > dst_size ? dst : dst_size, width);
    return 0;
}

/* The last two axes are plain loops, the longer or the contiguous one innermost; the others an odometer. */
#define STRIDED_COPY(name, type)                                                                       \
    static void name(const int32_t *p, type *dst, const type *src) {                                   \
        const int32_t rank = p[RANK], *dims = p + DIMS, *ss = dims + rank, *ds = ss + rank;            \
        if (smg_product(dims, rank) == 0) return;                                                      \
        int32_t len = rank ? dims[rank - 1] : 1, rows = rank > 1 ? dims[rank - 2] : 1;                 \
        size_t s = rank ? (size_t)ss[rank - 1] : 1, d = rank ? (size_t)ds[rank - 1] : 1;               \
        size_t srow = rank > 1 ? (size_t)ss[rank - 2] : 0, drow = rank > 1 ? (size_t)ds[rank - 2] : 0; \
        if (rows > len && (len < 8 || s != 1 || d != 1)) {                                             \
            const int32_t l = len;                                                                     \
            const size_t s0 = s, d0 = d;                                                               \
            len = rows, rows = l, s = srow, srow = s0, d = drow, drow = d0;                            \
        }                                                                                              \
        int32_t at[SMG_MAX_RANK] = {0};                                                                \
        size_t off[2] = {(size_t)p[SRC_AT], (size_t)p[DST_AT]};                                        \
        do {                                                                                           \
            for (int32_t r = 0; r < rows; r++) {                                                       \
                const type *from = src + off[0] + (size_t)r * srow;                                    \
                type *to = dst + off[1] + (size_t)r * drow;                                            \
                if (s == 1 && d == 1) {                                                                \
                    memcpy(to, from, (size_t)len * sizeof(type));                                      \
                } else if (s == 0) {                                                                   \
                    const type same = *from;                                                           \
                    for (int32_t i = 0; i < len; i++) to[(size_t)i * d] = same;                        \
                } else {                                                                               \
                    for (int32_t i = 0; i < len; i++) to[(size_t)i * d] = from[(size_t)i * s];         \
                }                                                                                      \
            }                                                                                          \
        } while (smg_walk_next(at, dims, rank - 2, ss, rank, off, 2));                                 \
    }
STRIDED_COPY(strided_b4, uint32_t)
STRIDED_COPY(strided_b1, uint8_t)

/* strided_b4 with what the call has. */
#ifdef SMG_ISA /* fast: threads share the first axis */
#include "../fast/pool.h"
typedef struct {
    const int32_t *p;
    uint32_t *dst;
    const uint32_t *src;
    ptrdiff_t parts;
} CopyJob;
static void copy_part(void *arg, ptrdiff_t i, int thread) {
    const CopyJob *job = (const CopyJob *)arg;
    int32_t p[DIMS + 3 * SMG_MAX_RANK];
    const int32_t rank = job->p[RANK], *dims = job->p + DIMS;
    const int64_t from = dims[0] * (int64_t)i / job->parts, to = dims[0] * (int64_t)(i + 1) / job->parts;
    (void)thread;
    memcpy(p, job->p, (size_t)(DIMS + 3 * rank) * sizeof *p);
    p[DIMS] = (int32_t)(to - from);
    strided_b4(p, job->dst + (size_t)from * (size_t)dims[2 * rank], job->src + (size_t)from * (size_t)dims[rank]);
}
static void copy_all(const SmgCall *c, const int32_t *p, uint32_t *dst, const uint32_t *src) {
    CopyJob job = {p, dst, src, c->work ? c->work->threads : 1};
    if (job.parts > 1 && dst != src && p[RANK] > 0 && p[DIMS] >= job.parts &&
        smg_product(p + DIMS, p[RANK]) >= 1 << 15) {
        smg_parallel(c->work, copy_part, &job, job.parts);
    } else {
        strided_b4(p, dst, src);
    }
}
#else
static void copy_all(const SmgCall *c, const int32_t *p, uint32_t *dst, const uint32_t *src) {
    (void)c;
    strided_b4(p, dst, src);
}
#endif

EXTENT(copy_b4) { return copy_need(p, params, need, 4); }
KERNEL(copy_b4, "oi", -1) {
    copy_all(c, c->p, OUT_AS(uint32_t, 0), IN_AS(uint32_t, 1));
    return NULL;
}

EXTENT(copy_b1) { return copy_need(p, params, need, 1); }
KERNEL(copy_b1, "oi", -1) {
    strided_b1(c->p, OUT_AS(uint8_t, 0), IN_AS(uint8_t, 1));
    return NULL;
}

/* p: value, more_at, then as copy_* with dst_size. The copy starts at dst_at + more_at; the rest becomes value. */
static int pad_need(const int32_t *p, int params, uint64_t *need, unsigned width) {
    uint64_t src, dst;
    if (params < 2 || p[1] < 0 || copy_spans(p + 2, params - 2, &src, &dst)) { return -1; }
    const uint64_t dst_size = (uint64_t)p[2 + DST_SIZE];
    if (smg_add(dst, (uint64_t)p[1]) > dst_size || p[2 + SRC_SIZE] != 0) { return -1; }
    need[1] = smg_mul(src, width);
    need[0] = smg_mul(dst_size, width);
    return 0;
}

EXTENT(pad_b4) { return pad_need(p, params, need, 4); }
KERNEL(pad_b4, "oi", -1) {
    uint32_t *y = OUT_AS(uint32_t, 0);
    for (int32_t i = 0; i < P(2 + DST_SIZE); i++) { y[i] = (uint32_t)P(0); }
    copy_all(c, c->p + 2, y + P(1), IN_AS(uint32_t, 1));
    return NULL;
}

EXTENT(pad_b1) { return pad_need(p, params, need, 1); }
KERNEL(pad_b1, "oi", -1) {
    uint8_t *y = OUT_AS(uint8_t, 0);
    memset(y, P(0) & 255, (size_t)P(2 + DST_SIZE));
    strided_b1(c->p + 2, y + P(1), IN_AS(uint8_t, 1));
    return NULL;
}

/* p: outer, then for each input the elements it adds to one outer step. */
static int concat_need(const int32_t *p, int params, int operands, uint64_t *need, unsigned width) {
    if (operands < 2 || params != operands || p[0] < 0) { return -1; }
    for (int k = 1; k < operands; k++) {
        if (p[k] < 0) { return -1; }
        need[k] = smg_mul(smg_mul((uint64_t)p[0], (uint64_t)p[k]), width);
    }
    need[0] = 0;
    for (int k = 1; k < operands; k++) { need[0] = smg_add(need[0], need[k]); }
    return 0;
}
static const char *concat(const SmgCall *c, size_t width) {
    unsigned char *y = OUT_AS(unsigned char, 0);
    for (int k = 1; k < c->params; k++) {
        size_t run = (size_t)P(k) * width, all = 0;
        if (run == 0) { continue; }
        for (int j = 1; j < c->params; j++) { all += (size_t)P(j) * width; }
        for (int32_t o = 0; o < P(0); o++) {
            memcpy(y + (size_t)o * all, IN_AS(unsigned char, k) + (size_t)o * run, run);
        }
        y += run;
    }
    return NULL;
}

EXTENT(concat_b4) { return concat_need(p, params, operands, need, 4); }
KERNEL(concat_b4, "oi+", -1) { return concat(c, 4); }

EXTENT(concat_b1) { return concat_need(p, params, operands, need, 1); }
KERNEL(concat_b1, "oi+", -1) { return concat(c, 1); }

/* p: N, kind of x: 0 f32, 1 i32, 2 u8. */
static int cast_need(const int32_t *p, uint64_t *need, unsigned width) {
    if (p[0] < 0 || p[1] < 0 || p[1] > 2) { return -1; }
    need[0] = smg_mul((uint64_t)p[0], width);
    need[1] = smg_mul((uint64_t)p[0], p[1] == 2 ? 1 : 4);
    return 0;
}

/* Toward zero; saturates, and NaN is 0, where a plain conversion would be undefined. */
static inline int32_t to_i32(float x) {
    if (x >= 2147483648.0f) { return INT32_MAX; }
    if (x < -2147483648.0f) { return INT32_MIN; }
    return x != x ? 0 : (int32_t)x;
}

#define CAST(name, type, width, from_float, from_int)                   \
    EXTENT(name) { return cast_need(p, need, width); }                  \
    KERNEL(name, "oi", 2) {                                             \
        type *y = OUT_AS(type, 0);                                      \
        const float *f = IN(1);                                         \
        const int32_t *w = IN_AS(int32_t, 1);                           \
        const uint8_t *b = IN_AS(uint8_t, 1);                           \
        if (P(1) == 0)                                                  \
            for (int32_t i = 0; i < P(0); i++) y[i] = from_float(f[i]); \
        else if (P(1) == 1)                                             \
            for (int32_t i = 0; i < P(0); i++) y[i] = from_int(w[i]);   \
        else                                                            \
            for (int32_t i = 0; i < P(0); i++) y[i] = from_int(b[i]);   \
        return NULL;                                                    \
    }
#define NONZERO(x) ((x) != 0)
CAST(cast_f32, float, 4, (float), (float))
CAST(cast_i32, int32_t, 4, to_i32, (int32_t))
CAST(cast_u8, uint8_t, 1, NONZERO, NONZERO)

/* p: N, value. */
EXTENT(fill_f32) {
    if (p[0] < 0) { return -1; }
    need[0] = smg_mul((uint64_t)p[0], 4);
    return 0;
}
KERNEL(fill_f32, "o", 2) {
    for (int32_t i = 0; i < P(0); i++) { OUT(0)[i] = PF(1); }
    return NULL;
}
