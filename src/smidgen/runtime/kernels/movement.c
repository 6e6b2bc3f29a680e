/* Copies that change shape or order: one strided walk serves permute, slice, expand, feed and fetch. */
#include "../split.h"
#include "walk.h"

/* copy_*: p: rank, src_at, dst_at, src_size, dst_size, dims[rank], src_strides[rank], dst_strides[rank]; in elements.
 * */
typedef struct {
    int32_t rank;
    int32_t src_at, dst_at;     /* where the walk starts */
    int32_t src_size, dst_size; /* how large the operands are if the walk stops before their end */
} CopyHead;
typedef struct {
    CopyHead head;
    const int32_t *dims, *src_strides, *dst_strides; /* [rank] each; dst_strides follow src_strides in memory */
} Copy;
UNPACK(copy_head_of, CopyHead)

static inline Copy copy_of(const int32_t *p) {
    const CopyHead head = copy_head_of(p);
    const int32_t *dims = p + PARAMS(CopyHead);
    return (Copy){head, dims, dims + head.rank, dims + 2 * head.rank};
}

static int copy_refused(const int32_t *p, int params) {
    if (params < PARAMS(CopyHead)) { return 1; }
    const CopyHead v = copy_head_of(p);
    if (v.rank < 0 || v.rank > SMG_MAX_RANK || params != PARAMS(CopyHead) + 3 * v.rank) { return 1; }
    return v.src_at < 0 || v.dst_at < 0 || v.src_size < 0 || v.dst_size < 0;
}

/* Elements of source and destination. Every destination element is written once: more steps than elements is
 * nonsense. */
static int copy_spans(const int32_t *p, int params, uint64_t *src, uint64_t *dst) {
    if (copy_refused(p, params)) { return -1; }
    const Copy v = copy_of(p);
    const int rank = v.head.rank;
    const uint64_t from = smg_span(v.dims, v.src_strides, rank), to = smg_span(v.dims, v.dst_strides, rank);
    if (from == SMG_TOO_MUCH || to == SMG_TOO_MUCH || smg_product(v.dims, rank) > to) { return -1; }
    *src = smg_add((uint64_t)v.head.src_at, from);
    *dst = smg_add((uint64_t)v.head.dst_at, to);
    return 0;
}

static int copy_need(const int32_t *p, int params, uint64_t *need, unsigned width) {
    uint64_t src, dst;
    if (copy_spans(p, params, &src, &dst)) { return -1; }
    const CopyHead v = copy_head_of(p);
    const uint64_t src_size = (uint64_t)v.src_size, dst_size = (uint64_t)v.dst_size;
    need[1] = smg_mul(src > src_size ? src : src_size, width);
    need[0] = smg_mul(dst > dst_size ? dst : dst_size, width);
    return 0;
}

/* The last two axes are plain loops, the longer or the contiguous one innermost; the others an odometer. */
#define STRIDED_COPY(name, type)                                                                        \
    static void name(const Copy *v, type *dst, const type *src) {                                       \
        const int32_t rank = v->head.rank, *dims = v->dims, *ss = v->src_strides, *ds = v->dst_strides; \
        if (smg_product(dims, rank) == 0) { return; }                                                   \
        int32_t len = rank ? dims[rank - 1] : 1, rows = rank > 1 ? dims[rank - 2] : 1;                  \
        size_t s = rank ? (size_t)ss[rank - 1] : 1, d = rank ? (size_t)ds[rank - 1] : 1;                \
        size_t srow = rank > 1 ? (size_t)ss[rank - 2] : 0, drow = rank > 1 ? (size_t)ds[rank - 2] : 0;  \
        if (rows > len && (len < 8 || s != 1 || d != 1)) {                                              \
            const int32_t l = len;                                                                      \
            const size_t s0 = s, d0 = d;                                                                \
            len = rows;                                                                                 \
            rows = l;                                                                                   \
            s = srow;                                                                                   \
            srow = s0;                                                                                  \
            d = drow;                                                                                   \
            drow = d0;                                                                                  \
        }                                                                                               \
        int32_t at[SMG_MAX_RANK] = {0};                                                                 \
        size_t off[2] = {(size_t)v->head.src_at, (size_t)v->head.dst_at};                               \
        do {                                                                                            \
            for (int32_t r = 0; r < rows; r++) {                                                        \
                const type *from = src + off[0] + (size_t)r * srow;                                     \
                type *to = dst + off[1] + (size_t)r * drow;                                             \
                if (s == 1 && d == 1) {                                                                 \
                    memcpy(to, from, (size_t)len * sizeof(type));                                       \
                } else if (s == 0) {                                                                    \
                    const type same = *from;                                                            \
                    for (int32_t i = 0; i < len; i++) { to[(size_t)i * d] = same; }                     \
                } else {                                                                                \
                    for (int32_t i = 0; i < len; i++) { to[(size_t)i * d] = from[(size_t)i * s]; }      \
                }                                                                                       \
            }                                                                                           \
        } while (smg_walk_next(at, dims, rank - 2, ss, rank, off, 2));                                  \
    }
STRIDED_COPY(strided_b4, uint32_t)
STRIDED_COPY(strided_b2, uint16_t)
STRIDED_COPY(strided_b1, uint8_t)

/* strided_b4, cut along the first axis into `pieces`; a copy onto its own source is one piece. */
typedef struct {
    Copy copy;
    uint32_t *dst;
    const uint32_t *src;
    int32_t pieces;
} CopyJob;
static SmgFault copy_range(const void *arg, int32_t from, int32_t to) {
    const CopyJob *job = (const CopyJob *)arg;
    if (from == 0 && to == job->pieces) {
        strided_b4(&job->copy, job->dst, job->src);
        return SMG_NO_FAULT;
    }
    Copy part = job->copy;
    int32_t dims[SMG_MAX_RANK];
    memcpy(dims, part.dims, (size_t)part.head.rank * sizeof *dims);
    dims[0] = to - from;
    part.dims = dims;
    strided_b4(&part, job->dst + (size_t)from * (size_t)part.dst_strides[0],
               job->src + (size_t)from * (size_t)part.src_strides[0]);
    return SMG_NO_FAULT;
}
static SmgFault copy_all(const SmgCall *c, const int32_t *p, uint32_t *dst, const uint32_t *src) {
    CopyJob job = {copy_of(p), dst, src, 1};
    if (job.copy.head.rank > 0 && dst != src) { job.pieces = job.copy.dims[0]; }
    const uint64_t elements = smg_product(job.copy.dims, job.copy.head.rank);
    return smg_split(c, copy_range, &job, job.pieces, (int64_t)(elements / 2)); /* half an operation each */
}

EXTENT(copy_b4) { return copy_need(p, params, need, 4); }
KERNEL_FLAGS(copy_b4, "oi", -1, SMG_COPIES) { return copy_all(c, c->p, OUT_AS(uint32_t, 0), IN_AS(uint32_t, 1)); }

EXTENT(copy_b1) { return copy_need(p, params, need, 1); }
KERNEL_FLAGS(copy_b1, "oi", -1, SMG_COPIES | SMG_BYTES) {
    const Copy v = copy_of(c->p);
    strided_b1(&v, OUT_AS(uint8_t, 0), IN_AS(uint8_t, 1));
    return SMG_NO_FAULT;
}

EXTENT(copy_b2) { return copy_need(p, params, need, 2); }
KERNEL(copy_b2, "oi", -1) {
    const Copy v = copy_of(c->p);
    strided_b2(&v, OUT_AS(uint16_t, 0), IN_AS(uint16_t, 1));
    return SMG_NO_FAULT;
}

/* Images of OH rows with a copy of H rows in each, `top` below its first one, and `value` everywhere else. A row is
 * dst_size elements, in which the copy of its own, x_row elements further in x for each, starts at dst_at + more_at. */
typedef struct {
    int32_t value, more_at;
    int32_t A, H, OH, top, x_row; /* images; rows */
} PadHead;
typedef struct {
    PadHead head;
    CopyHead copy;
} Pad;
UNPACK(pad_of, Pad)

static int pad_need(const int32_t *p, int params, uint64_t *need, unsigned width) {
    uint64_t src, dst;
    if (params < PARAMS(Pad) || copy_spans(p + PARAMS(PadHead), params - PARAMS(PadHead), &src, &dst)) { return -1; }
    const PadHead v = pad_of(p).head;
    const CopyHead copy = pad_of(p).copy;
    if (v.more_at < 0 || v.A < 0 || v.H < 0 || v.OH < 0 || v.top < 0 || v.x_row < 0 || copy.src_size) { return -1; }
    if (smg_add(dst, (uint64_t)v.more_at) > (uint64_t)copy.dst_size) { return -1; }
    const uint64_t rows = smg_mul((uint64_t)v.A, (uint64_t)v.H), made = smg_mul((uint64_t)v.A, (uint64_t)v.OH);
    need[1] = rows && src ? smg_mul(smg_add(smg_mul(rows - 1, (uint64_t)v.x_row), src), width) : 0;
    need[0] = smg_mul(smg_mul(made, (uint64_t)copy.dst_size), width);
    return made > INT32_MAX || (made && !copy.dst_size) ? -1 : 0;
}

/* Rows from..to of all images. */
#define PADDED(name, type, strided)                                                                       \
    static void name(const int32_t *p, type *y, const type *x, int32_t from, int32_t to) {                \
        const PadHead v = pad_of(p).head;                                                                 \
        const Copy copy = copy_of(p + PARAMS(PadHead));                                                   \
        const size_t row = (size_t)copy.head.dst_size;                                                    \
        for (int32_t at = from; at < to; at++) {                                                          \
            const int32_t a = at / v.OH, h = at % v.OH - v.top;                                           \
            type *out = y + (size_t)at * row;                                                             \
            const int is_row = h >= 0 && h < v.H;                                                         \
            const int is_full = is_row && smg_product(copy.dims, copy.head.rank) == row;                  \
            for (size_t i = 0; i < row && !is_full; i++) { out[i] = (type)v.value; }                      \
            if (!is_row) { continue; }                                                                    \
            strided(&copy, out + v.more_at, x + ((size_t)a * (size_t)v.H + (size_t)h) * (size_t)v.x_row); \
        }                                                                                                 \
    }
PADDED(pad_words, uint32_t, strided_b4)
PADDED(pad_bytes, uint8_t, strided_b1)

static SmgFault pad_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    pad_words(c->p, OUT_AS(uint32_t, 0), IN_AS(uint32_t, 1), from, to);
    return SMG_NO_FAULT;
}

EXTENT(pad_b4) { return pad_need(p, params, need, 4); }
KERNEL(pad_b4, "oi", -1) {
    const Pad v = pad_of(c->p);
    const int32_t rows = v.head.A * v.head.OH;
    return smg_split(c, pad_range, c, rows, (int64_t)rows * v.copy.dst_size / 2);
}

EXTENT(pad_b1) { return pad_need(p, params, need, 1); }
KERNEL_FLAGS(pad_b1, "oi", -1, SMG_BYTES) {
    const PadHead v = pad_of(c->p).head;
    pad_bytes(c->p, OUT_AS(uint8_t, 0), IN_AS(uint8_t, 1), 0, v.A * v.OH);
    return SMG_NO_FAULT;
}

/* p: outer, then for each input the elements it adds to one outer step. */
typedef struct {
    int32_t outer;
    const int32_t *run; /* run[k] elements of input k, which is operand k + 1 */
    int inputs;
} Concat;

static Concat concat_of(const int32_t *p, int params) { return (Concat){*p, p + 1, params - 1}; }

static int concat_need(const int32_t *p, int params, int operands, uint64_t *need, unsigned width) {
    if (operands < 2 || params != operands) { return -1; }
    const Concat v = concat_of(p, params);
    if (v.outer < 0) { return -1; }
    need[0] = 0;
    for (int k = 0; k < v.inputs; k++) {
        if (v.run[k] < 0) { return -1; }
        need[k + 1] = smg_mul(smg_mul((uint64_t)v.outer, (uint64_t)v.run[k]), width);
        need[0] = smg_add(need[0], need[k + 1]);
    }
    return 0;
}
static SmgFault concat(const SmgCall *c, size_t width) {
    const Concat v = concat_of(c->p, c->params);
    unsigned char *y = OUT_AS(unsigned char, 0);
    size_t all = 0; /* bytes of one outer step */
    for (int k = 0; k < v.inputs; k++) { all += (size_t)v.run[k] * width; }
    for (int k = 0; k < v.inputs; k++) {
        const size_t run = (size_t)v.run[k] * width;
        if (run == 0) { continue; }
        for (int32_t o = 0; o < v.outer; o++) {
            memcpy(y + (size_t)o * all, IN_AS(unsigned char, k + 1) + (size_t)o * run, run);
        }
        y += run;
    }
    return SMG_NO_FAULT;
}

EXTENT(concat_b4) { return concat_need(p, params, operands, need, 4); }
KERNEL(concat_b4, "oi+", -1) { return concat(c, 4); }

EXTENT(concat_b1) { return concat_need(p, params, operands, need, 1); }
KERNEL_FLAGS(concat_b1, "oi+", -1, SMG_BYTES) { return concat(c, 1); }

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

/* p: N, value. */
typedef struct {
    int32_t N;
    float value;
} Fill;
UNPACK(fill_of, Fill)

EXTENT(fill_f32) {
    const Fill v = fill_of(p);
    if (v.N < 0) { return -1; }
    need[0] = smg_mul((uint64_t)v.N, 4);
    return 0;
}
KERNEL(fill_f32, "o", PARAMS(Fill)) {
    const Fill v = fill_of(c->p);
    for (int32_t i = 0; i < v.N; i++) { OUT(0)[i] = v.value; }
    return SMG_NO_FAULT;
}
