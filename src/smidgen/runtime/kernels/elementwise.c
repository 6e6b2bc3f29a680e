/* Elementwise operations of one input. p: N elements. */
#include "../kernel.h"

/* Two and three operands of N floats each. */
static int need_n(const int32_t *p, int operands, uint64_t *need) {
    if (p[0] < 0) return -1;
    for (int i = 0; i < operands; i++) need[i] = smg_mul((uint64_t)p[0], 4);
    return 0;
}

EXTENT(relu_f32) {
    EXTENT_UNUSED;
    return need_n(p, 2, need);
}
KERNEL(relu_f32, "oi", 1) {
    float *y = OUT(0);
    const float *x = IN(1);
    for (int32_t i = 0; i < P(0); i++) y[i] = x[i] > 0 ? x[i] : 0;
    return NULL;
}

EXTENT(relu_dx_f32) {
    EXTENT_UNUSED;
    return need_n(p, 3, need);
}
KERNEL(relu_dx_f32, "oii", 1) {
    float *dx = OUT(0);
    const float *dy = IN(1), *y = IN(2);
    for (int32_t i = 0; i < P(0); i++) dx[i] = y[i] > 0 ? dy[i] : 0;
    return NULL;
}
