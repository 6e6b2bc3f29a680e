/* Sums in the fixed order that all exact kernels use: element k goes to lane k % 8, lanes join as a tree. */
#ifndef SMG_SUM_H
#define SMG_SUM_H
#include <stdint.h>

static inline float smg_lanes8(const float *a) {
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

static inline float smg_dot8(const float *a, const float *b, int32_t K) {
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int32_t k = 0;
    for (; k + 8 <= K; k += 8)
        for (int l = 0; l < 8; l++) acc[l] += a[k + l] * b[k + l];
    for (int l = 0; k + l < K; l++) acc[l] += a[k + l] * b[k + l];
    return smg_lanes8(acc);
}

static inline float smg_sum8(const float *a, int32_t K) {
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int32_t k = 0;
    for (; k + 8 <= K; k += 8)
        for (int l = 0; l < 8; l++) acc[l] += a[k + l];
    for (int l = 0; k + l < K; l++) acc[l] += a[k + l];
    return smg_lanes8(acc);
}
#endif
