/* One bit an element: made from a comparison, and turned back into a gradient. Parameters and operands are those of
 * kernels/activation.c: bits lie in rows of whole bytes, least significant bit first. Eight lanes are one byte. */
#include "../kernels/params.h"
#include "fast.h"
#include "threads.h"
#include "vector.h"

#define SMALL 2048 /* bytes of bits that are not worth waking a thread */

typedef int32_t i8 __attribute__((vector_size(32)));

/* Eight lanes of all ones or all zeros as bits of a byte, lane 0 in bit 0; and back. */
INLINE unsigned byte_of(i8 mask) {
#if defined(__AVX__)
    return (unsigned)__builtin_ia32_movmskps256((v8)mask);
#elif defined(__SSE2__)
    typedef int32_t i4 __attribute__((vector_size(16)));
    const i4 lo = __builtin_shufflevector(mask, mask, 0, 1, 2, 3), hi = __builtin_shufflevector(mask, mask, 4, 5, 6, 7);
    return (unsigned)__builtin_ia32_movmskps((v4)lo) | (unsigned)__builtin_ia32_movmskps((v4)hi) << 4;
#else
    const i8 bits = mask & (i8){1, 2, 4, 8, 16, 32, 64, 128};
    int32_t sum = 0;
    for (int i = 0; i < 8; i++) { sum |= bits[i]; }
    return (unsigned)sum;
#endif
}

INLINE i8 mask_of(unsigned byte) { return (((int32_t)byte - (i8){0}) & (i8){1, 2, 4, 8, 16, 32, 64, 128}) != 0; }

/* bits[rows][(per_row + 7) / 8], floats [rows][per_row]. */
typedef struct {
    uint8_t *bits;
    float *to; /* of the gradient */
    const float *from;
    int32_t rows, per_row, parts, closed;
    float a, b; /* lo and hi, or the factors inside and outside */
} Job;

/* Elements without a gap between them are one row. */
static Job whole(Job job, const SmgWork *work) {
    const int64_t all = (int64_t)job.rows * job.per_row;
    if (job.per_row % 8 == 0 && all <= INT32_MAX) {
        job.per_row = (int32_t)all;
        job.rows = all > 0;
    }
    job.parts = all / 8 < SMALL ? 1 : work->threads;
    return job;
}

/* Part i of a row, in bytes. */
static inline void part_of(const Job *job, ptrdiff_t i, int32_t *first, int32_t *last) {
    const int64_t bytes = ((int64_t)job->per_row + 7) / 8;
    *first = (int32_t)(bytes * i / job->parts);
    *last = (int32_t)(bytes * (i + 1) / job->parts);
}

static inline int within(float x, float lo, float hi, int closed) {
    return closed ? (x >= lo) & (x <= hi) : (x > lo) & (x < hi);
}

INLINE void range_run(uint8_t *bits, const float *x, int32_t bytes, v8 lo, v8 hi, const int closed) {
    for (int32_t k = 0; k < bytes; k++, x += 8) {
        const v8 v = *(const v8_any *)x;
        bits[k] = (uint8_t)byte_of(closed ? (v >= lo) & (v <= hi) : (v > lo) & (v < hi));
    }
}

/* Part i of every row: whole bytes as vectors, and the row's last bits one by one by whoever has its end. */
static void range_part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const v8 lo = job->a - (v8){0}, hi = job->b - (v8){0};
    int32_t first, last;
    (void)thread;
    part_of(job, i, &first, &last);
    for (int32_t r = 0; r < job->rows; r++) {
        uint8_t *bits = job->bits + (size_t)r * (((size_t)job->per_row + 7) / 8);
        const float *x = job->from + (size_t)r * (size_t)job->per_row;
        const int32_t full = last < job->per_row / 8 ? last : job->per_row / 8;
        if (job->closed) {
            range_run(bits + first, x + (size_t)first * 8, full - first, lo, hi, 1);
        } else {
            range_run(bits + first, x + (size_t)first * 8, full - first, lo, hi, 0);
        }
        if (full == last || full < first) { continue; }
        unsigned byte = 0;
        for (int32_t j = 0; j < job->per_row % 8; j++) {
            byte |= (unsigned)within(x[(size_t)full * 8 + (size_t)j], job->a, job->b, job->closed) << j;
        }
        bits[full] = (uint8_t)byte;
    }
}

/* A bit is set where x lies between lo and hi, ends included if `closed`. */
FAST_KERNEL(range_bits_u8) {
    const RangeBits v = range_bits_of(c->p);
    Job job = {.bits = (uint8_t *)c->op[0],
               .from = IN(1),
               .rows = v.shape.rows,
               .per_row = v.shape.per_row,
               .closed = v.closed != 0,
               .a = v.lo,
               .b = v.hi};
    job = whole(job, smg_work(c));
    smg_parallel(smg_work(c), range_part, &job, job.parts);
    return SMG_NO_FAULT;
}

/* dx = dy times the factor inside where the bit is set, outside where not. A factor of 0 gives 0 even if dy is
 * infinite: the product is masked. Factors 1 and 0 (relu) need no product at all. */
static void weigh_part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const v8 inside = job->a - (v8){0}, outside = job->b - (v8){0};
    const i8 keep_inside = (i8){0} - (job->a != 0), keep_outside = (i8){0} - (job->b != 0);
    const int plain = job->a == 1.0f && job->b == 0.0f;
    int32_t first, last;
    (void)thread;
    part_of(job, i, &first, &last);
    for (int32_t r = 0; r < job->rows; r++) {
        const uint8_t *bits = job->bits + (size_t)r * (((size_t)job->per_row + 7) / 8);
        const float *dy = job->from + (size_t)r * (size_t)job->per_row;
        float *dx = job->to + (size_t)r * (size_t)job->per_row;
        const int32_t full = last < job->per_row / 8 ? last : job->per_row / 8;
        if (plain) {
            for (int32_t k = first; k < full; k++) {
                *(v8_any *)(dx + 8 * (size_t)k) = (v8)((i8) * (const v8_any *)(dy + 8 * (size_t)k) & mask_of(bits[k]));
            }
        } else {
            for (int32_t k = first; k < full; k++) {
                const i8 mask = mask_of(bits[k]), keep = (mask & keep_inside) | (~mask & keep_outside);
                const v8 by = (v8)((mask & (i8)inside) | (~mask & (i8)outside));
                *(v8_any *)(dx + 8 * (size_t)k) = (v8)((i8)(*(const v8_any *)(dy + 8 * (size_t)k) * by) & keep);
            }
        }
        if (full == last || full < first) { continue; }
        for (int32_t j = 0; j < job->per_row % 8; j++) {
            const float by = bits[full] >> j & 1 ? job->a : job->b;
            const size_t at = (size_t)full * 8 + (size_t)j;
            dx[at] = by == 0 ? 0 : dy[at] * by;
        }
    }
}

FAST_KERNEL(bits_dx_f32) {
    const BitsDx v = bits_dx_of(c->p);
    Job job = {.bits = (uint8_t *)c->op[2],
               .from = IN(1),
               .to = OUT(0),
               .rows = v.shape.rows,
               .per_row = v.shape.per_row,
               .a = v.inside,
               .b = v.outside};
    job = whole(job, smg_work(c));
    smg_parallel(smg_work(c), weigh_part, &job, job.parts);
    return SMG_NO_FAULT;
}
