/* The inner loops of products and sums; sum.h says in which order they add. All versions below give the same bits:
 *
 *   products   k = 0, 1, 2, ...    lane 0 1 2 3 4 5 6 7 | 0 1 2 3 4 5 6 7 | 0 1 2   whole eights, then the rest
 *   rows       t = 0, 1, 2, ...    lane 0 1 2 ... width | 0 1 2 ... width | ...     one output a lane */
#include "vfp.h"

#if SMG_SUMS != SMG_SUMS_VECTORS

void smg_dot(float *lanes, const float *a, const float *b, int32_t K) {
    const int32_t whole = K & ~7;
    for (int32_t l = 0; l < 8; l++) {
        float s = 0;
        int32_t k = l;
        for (; k < whole; k += 8) { s += a[k] * b[k]; }
        lanes[l] += s;
        if (k < K) { lanes[l] += a[k] * b[k]; }
    }
}

float smg_sum8(const float *a, int32_t K) {
    float lanes[8] = {0};
    for (int32_t k = 0; k < K; k++) { lanes[k & 7] += a[k]; }
    return smg_lanes8(lanes);
}

/* Four sums at a time, of one column of a and neighbours in b, or the other way round. */
static void four(float *sum, ptrdiff_t sum_step, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                 int32_t T) {
    float s0 = sum[0], s1 = sum[sum_step], s2 = sum[2 * sum_step], s3 = sum[3 * sum_step];
    for (; T > 0; T--, a += a_step, b += b_step) {
        const float x = *a;
        s0 += x * b[0];
        s1 += x * b[1];
        s2 += x * b[2];
        s3 += x * b[3];
    }
    sum[0] = s0;
    sum[sum_step] = s1;
    sum[2 * sum_step] = s2;
    sum[3 * sum_step] = s3;
}

#if SMG_SUMS == SMG_SUMS_REGISTERS
/* Two rows of b, with sixteen lanes: added to `lanes`, or if there are none, joined into y[2]. */
static void pair(float *lanes, float *y, const float *a, const float *b, const float *c, int32_t K) {
    float s[16] = {0}, *r = s + 8;
    const int32_t eights = K >> 3;
    if (eights > 0) { smg_two_dots(s, a, b, c, eights); }
    a += 8 * eights;
    b += 8 * eights;
    c += 8 * eights;
    K &= 7;
    if (lanes) { smg_add_sixteen(s, lanes); }
    for (int32_t l = 0; l < K; l++) {
        const float x = a[l];
        s[l] += x * b[l];
        r[l] += x * c[l];
    }
    if (lanes) {
        memcpy(lanes, s, sizeof s);
    } else {
        y[0] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); /* smg_lanes8 */
        y[1] = ((r[0] + r[4]) + (r[2] + r[6])) + ((r[1] + r[5]) + (r[3] + r[7]));
    }
}

void smg_dot_x4(float *lanes, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    pair(lanes, NULL, a, b, b + row, K);
    pair(lanes + 16, NULL, a, b + 2 * row, b + 3 * row, K);
}

void smg_dot8_x4(float *y, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    pair(NULL, y, a, b, b + row, K);
    pair(NULL, y + 2, a, b + 2 * row, b + 3 * row, K);
}

/* One column of a, and eight neighbours in b. */
static void eight(float *sum, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, int32_t T) {
    float s[8];
    SMG_LANES(l) { s[l] = sum[l]; }
    for (; T > 0; T--, a += a_step, b += b_step) {
        const float x = *a;
        SMG_LANES(l) { s[l] += x * b[l]; }
    }
    SMG_LANES(l) { sum[l] = s[l]; }
}

void smg_rows(float *sum, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, int32_t T) {
    for (; width >= 8; width -= 8, sum += 8, b += 8) { eight(sum, a, a_step, b, b_step, T); }
    if (width >= 4) {
        four(sum, 1, a, a_step, b, b_step, T);
        width -= 4;
        sum += 4;
        b += 4;
    }
    for (; width > 0; width--, b++) {
        const float *at = a, *bt = b;
        float total = *sum;
        for (int32_t t = T; t > 0; t--, at += a_step, bt += b_step) { total += *at * *bt; }
        *sum++ = total;
    }
}

void smg_outer(float *sum, int rows, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
               int32_t T) {
    for (; width == 8 && rows >= 2 && T > 0; rows -= 2, sum += 16, a += 2) {
        smg_two_rows(sum, a, a + 1, a_step, b, b_step, T);
    }
    for (int i = 0; i < rows; i++) { smg_rows(sum + 8 * i, width, a + i, a_step, b, b_step, T); }
}

void smg_rows_x2(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T) {
    if (T > 0) { smg_two_rows(sum, a, a + row, 1, b, b_step, T); }
}

void smg_rows_x4(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T) {
    if (T > 0) { smg_four_rows(sum, a, row, b, b_step, T); }
}

#else /* a lane at a time: such cores have registers for four of them, not for 32 */

void smg_dot_x4(float *lanes, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    const int32_t whole = K & ~7;
    for (int32_t l = 0; l < 8; l++, lanes++) {
        float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        int32_t k = l;
        for (; k < whole; k += 8) {
            const float x = a[k], *bk = b + k;
            s0 += x * *bk;
            bk += row;
            s1 += x * *bk;
            bk += row;
            s2 += x * *bk;
            bk += row;
            s3 += x * *bk;
        }
        lanes[0] += s0;
        lanes[8] += s1;
        lanes[16] += s2;
        lanes[24] += s3;
        if (k < K) {
            for (int i = 0; i < 4; i++) { lanes[8 * i] += a[k] * b[i * row + k]; }
        }
    }
}

void smg_rows(float *sum, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, int32_t T) {
    for (; width >= 4; width -= 4, sum += 4, b += 4) { four(sum, 1, a, a_step, b, b_step, T); }
    for (; width > 0; width--, b++) {
        const float *at = a, *bt = b;
        float total = *sum;
        for (int32_t t = T; t > 0; t--, at += a_step, bt += b_step) { total += *at * *bt; }
        *sum++ = total;
    }
}

void smg_outer(float *sum, int rows, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
               int32_t T) {
    for (int i = 0; rows < 4 && i < rows; i++) { smg_rows(sum + 8 * i, width, a + i, a_step, b, b_step, T); }
    for (int l = 0; rows == 4 && l < width; l++) { four(sum + l, 8, b + l, b_step, a, a_step, T); }
}
#endif

#else

#define LOAD(s, from) memcpy(s, from, 8 * sizeof(float)) /* as a loop, gcc takes them one by one */
#define STORE(to, s)  memcpy(to, s, 8 * sizeof(float))

void smg_dot(float *lanes, const float *a, const float *b, int32_t K) {
    const ptrdiff_t step = smg_step8();
    ptrdiff_t k = 0;
    float s[8] = {0};
    for (; K >= 8; K -= 8, k += step) {
        const float *ak = a + k, *bk = b + k;
        SMG_LANES(l) { s[l] += ak[l] * bk[l]; }
    }
    SMG_LANES(l) { lanes[l] += s[l]; }
    for (int l = 0; l < K; l++) { lanes[l] += a[k + l] * b[k + l]; }
}

void smg_dot_x4(float *lanes, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    const float *b0 = b, *b1 = b0 + row, *b2 = b1 + row, *b3 = b2 + row;
    const ptrdiff_t step = smg_step8();
    ptrdiff_t k = 0;
    float s0[8] = {0}, s1[8] = {0}, s2[8] = {0}, s3[8] = {0};
    for (; K >= 8; K -= 8, k += step) {
        const float *ak = a + k, *k0 = b0 + k, *k1 = b1 + k, *k2 = b2 + k, *k3 = b3 + k;
        SMG_LANES(l) { s0[l] += ak[l] * k0[l]; }
        SMG_LANES(l) { s1[l] += ak[l] * k1[l]; }
        SMG_LANES(l) { s2[l] += ak[l] * k2[l]; }
        SMG_LANES(l) { s3[l] += ak[l] * k3[l]; }
    }
    SMG_LANES(l) { lanes[l] += s0[l]; }
    SMG_LANES(l) { lanes[8 + l] += s1[l]; }
    SMG_LANES(l) { lanes[16 + l] += s2[l]; }
    SMG_LANES(l) { lanes[24 + l] += s3[l]; }
    for (int l = 0; l < K; l++) {
        const float x = a[k + l];
        lanes[l] += x * b0[k + l];
        lanes[8 + l] += x * b1[k + l];
        lanes[16 + l] += x * b2[k + l];
        lanes[24 + l] += x * b3[k + l];
    }
}

float smg_sum8(const float *a, int32_t K) {
    const ptrdiff_t step = smg_step8();
    float s[8] = {0}, lanes[8];
    for (; K >= 8; K -= 8, a += step) {
        SMG_LANES(l) { s[l] += a[l]; }
    }
    SMG_LANES(l) { lanes[l] = s[l]; }
    for (int l = 0; l < K; l++) { lanes[l] += a[l]; }
    return smg_lanes8(lanes);
}

void smg_rows(float *sum, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, int32_t T) {
    if (width == 16) {
        float s0[8], s1[8];
        LOAD(s0, sum);
        LOAD(s1, sum + 8);
        for (; T > 0; T--, a += a_step, b += b_step) {
            const float x = *a;
            SMG_LANES(l) { s0[l] += x * b[l]; }
            SMG_LANES(l) { s1[l] += x * b[8 + l]; }
        }
        STORE(sum, s0);
        STORE(sum + 8, s1);
    } else if (width == 8) {
        float s[8];
        LOAD(s, sum);
        for (; T > 0; T--, a += a_step, b += b_step) {
            const float x = *a;
            SMG_LANES(l) { s[l] += x * b[l]; }
        }
        STORE(sum, s);
    } else {
        for (int l = 0; l < width; l++) {
            float s = sum[l];
            for (int32_t t = 0; t < T; t++) { s += a[t * a_step] * b[t * b_step + l]; }
            sum[l] = s;
        }
    }
}

void smg_outer(float *sum, int rows, int width, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
               int32_t T) {
    if (rows < 4 || width < 8) {
        for (int i = 0; i < rows; i++) { smg_rows(sum + 8 * i, width, a + i, a_step, b, b_step, T); }
        return;
    }
    float s0[8], s1[8], s2[8], s3[8];
    LOAD(s0, sum);
    LOAD(s1, sum + 8);
    LOAD(s2, sum + 16);
    LOAD(s3, sum + 24);
    for (; T > 0; T--, a += a_step, b += b_step) {
        SMG_LANES(l) { s0[l] += a[0] * b[l]; }
        SMG_LANES(l) { s1[l] += a[1] * b[l]; }
        SMG_LANES(l) { s2[l] += a[2] * b[l]; }
        SMG_LANES(l) { s3[l] += a[3] * b[l]; }
    }
    STORE(sum, s0);
    STORE(sum + 8, s1);
    STORE(sum + 16, s2);
    STORE(sum + 24, s3);
}
#endif

#if SMG_SUMS != SMG_SUMS_REGISTERS
void smg_rows_x2(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T) {
    smg_rows(sum, 8, a, 1, b, b_step, T);
    smg_rows(sum + 8, 8, a + row, 1, b, b_step, T);
}
void smg_rows_x4(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step, int32_t T) {
    for (int i = 0; i < 4; i++) { smg_rows(sum + 4 * i, 4, a + i * row, 1, b, b_step, T); }
}
void smg_dot8_x4(float *y, const float *a, const float *b, ptrdiff_t row, int32_t K) {
    float lanes[32] = {0};
    smg_dot_x4(lanes, a, b, row, K);
    for (int i = 0; i < 4; i++) { y[i] = smg_lanes8(lanes + 8 * i); }
}
#endif

float smg_dot8(const float *a, const float *b, int32_t K) {
    float lanes[8] = {0};
    smg_dot(lanes, a, b, K);
    return smg_lanes8(lanes);
}

void smg_flush_sixteen(float *total, float *part) {
    smg_add_sixteen(total, part);
    memset(part, 0, 16 * sizeof *part);
}
