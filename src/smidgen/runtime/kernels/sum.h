/* Sums in the fixed orders that all exact kernels use. Blocking over outputs never changes a sum, so it is free to choose.
 *
 *   dot products over a contiguous axis   element k goes to lane k % 8, the eight lanes join as a tree
 *   sums of rows scaled by a number       every lane is an output of its own: one after the other, and at most about
 *                                         SMG_BLOCK terms before the partial sum moves on to a total */
#ifndef SMG_SUM_H
#define SMG_SUM_H
#include <stddef.h>
#include <stdint.h>

#define SMG_BLOCK 64
#define SMG_LANES(l) for (int l = 0; l < 8; l++)

/* Eight, but the compiler cannot know: with a constant step gcc vectorises across steps, with shuffles, instead of
 * across lanes, at a fifth of the speed. */
static inline ptrdiff_t smg_eight(void) {
    volatile ptrdiff_t eight = 8;
    return eight;
}

static inline float smg_lanes8(const float *a) {
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* lanes += a[k] * b[k] for K elements. */
static inline void smg_dot(float *lanes, const float *a, const float *b, int32_t K) {
    const ptrdiff_t step = smg_eight();
    ptrdiff_t k = 0;
    float s[8];
    SMG_LANES(l) s[l] = lanes[l];
    for (; K >= 8; K -= 8, k += step) {
        const float *ak = a + k, *bk = b + k;
        SMG_LANES(l) s[l] += ak[l] * bk[l];
    }
    SMG_LANES(l) lanes[l] = s[l];
    for (int l = 0; l < K; l++) lanes[l] += a[k + l] * b[k + l];
}

/* The same for four rows of b at once, `row` elements apart, each with eight lanes: one load of a serves four products. */
static inline void smg_dot_x4(float *lanes, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    const float *b0 = b, *b1 = b0 + row, *b2 = b1 + row, *b3 = b2 + row;
    const ptrdiff_t step = smg_eight();
    ptrdiff_t k = 0;
    float s[8], t[8], u[8], v[8];
    SMG_LANES(l) s[l] = lanes[l], t[l] = lanes[8 + l], u[l] = lanes[16 + l], v[l] = lanes[24 + l];
    for (; K >= 8; K -= 8, k += step) {
        const float *ak = a + k;
        SMG_LANES(l) s[l] += ak[l] * b0[k + l];
        SMG_LANES(l) t[l] += ak[l] * b1[k + l];
        SMG_LANES(l) u[l] += ak[l] * b2[k + l];
        SMG_LANES(l) v[l] += ak[l] * b3[k + l];
    }
    SMG_LANES(l) lanes[l] = s[l], lanes[8 + l] = t[l], lanes[16 + l] = u[l], lanes[24 + l] = v[l];
    for (int l = 0; l < K; l++) {
        const float x = a[k + l];
        lanes[l] += x * b0[k + l];
        lanes[8 + l] += x * b1[k + l];
        lanes[16 + l] += x * b2[k + l];
        lanes[24 + l] += x * b3[k + l];
    }
}

static inline float smg_dot8(const float *a, const float *b, int32_t K) {
    float lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    smg_dot(lanes, a, b, K);
    return smg_lanes8(lanes);
}

static inline float smg_sum8(const float *a, int32_t K) {
    const ptrdiff_t step = smg_eight();
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0}, lanes[8];
    for (; K >= 8; K -= 8, a += step) SMG_LANES(l) s[l] += a[l];
    SMG_LANES(l) lanes[l] = s[l];
    for (int l = 0; l < K; l++) lanes[l] += a[l];
    return smg_lanes8(lanes);
}

/* The next block of an axis of `size`: up to 16 wide. Where fewer than a full block are left it moves *at back, and
 * the caller computes some outputs twice (to the same bits) at full speed. */
static inline int smg_wide(int32_t *at, int32_t size) {
    const int width = size >= 16 ? 16 : size >= 8 ? 8 : (int)size;
    if (*at > size - width) *at = size - width;
    return width;
}

/* sum[l] += a[t * a_step] * b[t * b_step + l] for t = 0..T in order; width is 16, or 8, or anything less, slowly. */
static inline void smg_rows(float *sum, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                            int32_t T) {
    if (width == 16) {
        float s[8], t[8];
        SMG_LANES(l) s[l] = sum[l], t[l] = sum[8 + l];
        for (; T > 0; T--, a += a_step, b += b_step) {
            const float x = *a;
            SMG_LANES(l) s[l] += x * b[l];
            SMG_LANES(l) t[l] += x * b[8 + l];
        }
        SMG_LANES(l) sum[l] = s[l], sum[8 + l] = t[l];
    } else if (width == 8) {
        float s[8];
        SMG_LANES(l) s[l] = sum[l];
        for (; T > 0; T--, a += a_step, b += b_step) {
            const float x = *a;
            SMG_LANES(l) s[l] += x * b[l];
        }
        SMG_LANES(l) sum[l] = s[l];
    } else {
        for (; T > 0; T--, a += a_step, b += b_step)
            for (int l = 0; l < width; l++) sum[l] += *a * b[l];
    }
}

/* total += part, part = 0 */
static inline void smg_flush(float *total, float *part, int count) {
    for (int i = 0; i < count; i++) total[i] += part[i], part[i] = 0.0f;
}
#endif
