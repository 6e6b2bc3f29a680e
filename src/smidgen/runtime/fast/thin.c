/* Products with one to three rows: each weight is read once, so what counts is to read along memory.
 *
 *   thin_dot   b_k = 1: rows of memory are columns of B. Four columns at a time, so that an element of A is used four
 *              times; a dot product is the sum over the lanes of its vector, plus what is left over.
 *   thin_sum   b_n = 1: rows of memory are rows of B. c += a[k] * b[k][..], four rows at a time, over SPAN columns
 *              whose sums stay in the first cache. */
#include "gemm.h"

/* rows (of A) by four columns: out[i * 4 + j] = a[i] . b[j] */
INLINE void dots(int rows, float *out, const float *a, ptrdiff_t a_row, const float *b, ptrdiff_t b_n, int columns,
                 int32_t K) {
    vf acc[2 * 12];
    UNROLL for (int i = 0; i < rows * columns; i++) { acc[i] = vzero(); }
    int32_t k = 0;
    if (rows == 1) { /* two sums for each, or adding would be the bottleneck */
        vf more[4];
        UNROLL for (int j = 0; j < columns; j++) { more[j] = vzero(); }
        for (; k + 2 * VL <= K; k += 2 * VL) {
            const vf x = vload(a + k), y = vload(a + k + VL);
            UNROLL for (int j = 0; j < columns; j++) {
                acc[j] += x * vload(b + j * b_n + k);
                more[j] += y * vload(b + j * b_n + k + VL);
            }
        }
        UNROLL for (int j = 0; j < columns; j++) { acc[j] += more[j]; }
    }
    for (; k + VL <= K; k += VL) {
        vf x[3];
        UNROLL for (int i = 0; i < rows; i++) { x[i] = vload(a + i * a_row + k); }
        UNROLL for (int j = 0; j < columns; j++) {
            const vf y = vload(b + j * b_n + k);
            UNROLL for (int i = 0; i < rows; i++) { acc[i * columns + j] += x[i] * y; }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < columns; j++) {
            float sum = vsum(acc[i * columns + j]);
            for (int32_t l = k; l < K; l++) { sum += a[i * a_row + l] * b[j * b_n + l]; }
            out[i * 4 + j] = sum;
        }
    }
}

/* c[i][n] = a[i] . b[n] + bias[n] for columns from..to */
INLINE void dot_columns(int rows, const Product *p, int32_t from, int32_t to) {
    float out[12];
    for (int32_t n = from; n < to; n += 4) {
        const float *b = p->b + n * p->b_n;
        const int columns = to - n < 4 ? (int)(to - n) : 4;
        if (columns == 4) {
            dots(rows, out, p->a, p->a_row, b, p->b_n, 4, p->depth);
        } else {
            for (int j = 0; j < columns; j++) {
                dots(rows, out + j, p->a, p->a_row, b + j * p->b_n, p->b_n, 1, p->depth);
            }
        }
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < columns; j++) {
                p->c[i * p->c_row + n + j] = out[i * 4 + j] + (p->bias ? p->bias[n + j] : 0.0f);
            }
        }
    }
}

void SMG_LOCAL(thin_dot)(const Product *p, int32_t from, int32_t to) {
    if (p->M == 1) {
        dot_columns(1, p, from, to);
    } else if (p->M == 2) {
        dot_columns(2, p, from, to);
    } else {
        dot_columns(3, p, from, to);
    }
}

/* c += the sum of `rows` rows of b, each times its a */
INLINE void add_rows(int rows, float *c, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_k, int32_t n) {
    float s[4];
    UNROLL for (int i = 0; i < rows; i++) { s[i] = a[i * a_step]; }
    int32_t j = 0;
    for (; j + VL <= n; j += VL) {
        vf sum = vload(c + j);
        UNROLL for (int i = 0; i < rows; i++) { sum += vload(b + i * b_k + j) * s[i]; }
        vstore(c + j, sum);
    }
    for (; j < n; j++) {
        float sum = c[j];
        UNROLL for (int i = 0; i < rows; i++) { sum += b[i * b_k + j] * s[i]; }
        c[j] = sum;
    }
}

#define SPAN 2048 /* columns whose sums stay in the first cache */

void SMG_LOCAL(thin_sum)(const Product *p, int32_t from, int32_t to) {
    for (int32_t n = from; n < to; n += SPAN) {
        const int32_t width = to - n < SPAN ? to - n : SPAN;
        float *c = p->c + n;
        if (p->bias) {
            memcpy(c, p->bias + n, (size_t)width * sizeof(float));
        } else {
            memset(c, 0, (size_t)width * sizeof(float));
        }
        int32_t k = 0;
        for (; k + 4 <= p->depth; k += 4) {
            add_rows(4, c, p->a + k * p->a_step, p->a_step, p->b + k * p->b_k + n, p->b_k, width);
        }
        for (; k < p->depth; k++) {
            add_rows(1, c, p->a + k * p->a_step, p->a_step, p->b + k * p->b_k + n, p->b_k, width);
        }
    }
}
