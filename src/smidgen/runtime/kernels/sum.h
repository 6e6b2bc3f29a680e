/* Sums in the fixed orders that all exact kernels use. Blocking over outputs never changes a sum.
 *
 *   dot products over a contiguous axis   element k of a run goes to lane k % 8; the eight lanes join as a tree
 *   sums of rows, each times a number     every lane is an output of its own: one after the other, and at most about
 *                                         SMG_BLOCK terms before the partial sum moves on to a total
 *
 * The loops are functions in sum.c: inlined elsewhere, gcc fails to keep their lanes in vector registers. */
#ifndef SMG_SUM_H
#define SMG_SUM_H
#include "../kernel.h"

#define SMG_BLOCK 64 /* terms of a partial sum */

/* How the loops keep their sums, by what the compiler is asked for and the core has: in vectors; where code should be
 * small, in sixteen scalar registers if the core computes with single precision, else a few at a time. */
#define SMG_SUMS_VECTORS   0
#define SMG_SUMS_REGISTERS 1
#define SMG_SUMS_FEW       2
#ifndef __OPTIMIZE_SIZE__
#define SMG_SUMS SMG_SUMS_VECTORS
#elif defined __ARM_FP
#define SMG_SUMS SMG_SUMS_REGISTERS
#else
#define SMG_SUMS SMG_SUMS_FEW
#endif

/* A loop over eight lanes; unrolled where each should have a register. */
#if SMG_SUMS == SMG_SUMS_REGISTERS
#define SMG_LANES(l) _Pragma("GCC unroll 8") for (int l = 0; l < 8; l++)
#else
#define SMG_LANES(l) for (int l = 0; l < 8; l++)
#endif

/* The tree in which eight lanes join. */
static inline float smg_lanes8(const float *a) {
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* Eight, read from memory at run time. With a step that it knows, gcc vectorises smg_dot_x4 across iterations, with
 * some 500 shuffles, at a fifth of the speed; with one that it does not know it takes the eight lanes as vectors,
 * which is what is meant. (Loading the lanes through local arrays avoids the shuffles too, but spills all sums in
 * every step.) The order of additions is that of the source either way: this changes speed and no bit. */
static inline ptrdiff_t smg_step8(void) {
    volatile ptrdiff_t step = 8;
    return step;
}

/* lanes[8] += the lanes of a run of K products a[k] * b[k]. */
#define smg_dot SMG_EXTERN(dot)
void smg_dot(float *lanes, const float *a, const float *b, int32_t K);

/* The same for four rows of b, `row` floats apart, and eight lanes each: one load of a serves four products. */
#define smg_dot_x4 SMG_EXTERN(dot_x4)
void smg_dot_x4(float *lanes, const float *a, const float *b, ptrdiff_t row, int32_t K);

/* y[4]: dot products of a run with four rows of b. */
#define smg_dot8_x4 SMG_EXTERN(dot8_x4)
void smg_dot8_x4(float *y, const float *a, const float *b, ptrdiff_t row, int32_t K);

/* Dot product, and sum, of one run. */
#define smg_dot8 SMG_EXTERN(dot8)
float smg_dot8(const float *a, const float *b, int32_t K);
#define smg_sum8 SMG_EXTERN(sum8)
float smg_sum8(const float *a, int32_t K);

/* sum[l] += a[t * a_step] * b[t * b_step + l] for t = 0..T in order. Fast for a width of 8 or 16, else below 8. */
#define smg_rows SMG_EXTERN(rows)
void smg_rows(float *sum, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, int32_t T);

/* The same for two rows of a, `row` floats apart, and eight lanes each; and for four rows, and four lanes. */
#define smg_rows_x2 SMG_EXTERN(rows_x2)
void smg_rows_x2(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T);
#define smg_rows_x4 SMG_EXTERN(rows_x4)
void smg_rows_x4(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T);

/* The same as smg_rows for neighbouring columns of a: sum[8 * i + l] += a[t * a_step + i] * b[t * b_step + l]. Fast for
 * 4 by 8. */
#define smg_outer SMG_EXTERN(outer)
void smg_outer(float *sum, int rows, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
               int32_t T);

/* y[i] = the dot product of a run with row i of b, for up to four rows. */
static inline void smg_dots(float *y, int32_t rows, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    if (rows == 4) {
        smg_dot8_x4(y, a, b, row, K);
    } else {
        for (int32_t i = 0; i < rows; i++) { y[i] = smg_dot8(a, b + i * row, K); }
    }
}

/* The next block, up to 16 wide, of an axis of `size`. Where fewer than a full block are left it moves *at back, and
 * the caller computes some outputs twice (to the same bits) at full speed. */
static inline int smg_wide(int32_t *at, int32_t size) {
    const int narrow = size >= 8 ? 8 : (int)size, width = size >= 16 ? 16 : narrow;
    if (*at > size - width) { *at = size - width; }
    return width;
}

/* total += part, part = 0; the second for sixteen. */
#define smg_flush_sixteen SMG_EXTERN(flush_sixteen)
void smg_flush_sixteen(float *total, float *part);
static inline void smg_flush(float *total, float *part, int count) {
    for (int i = 0; i < count; i++) {
        total[i] += part[i];
        part[i] = 0.0f;
    }
}
#endif
