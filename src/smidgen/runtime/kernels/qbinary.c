/* Sums and products of two int8 tensors in one scale, with broadcasting. */
#include "broadcast.h"
#include "fixed_point.h"

/* y = clamp((((a - a_zero) * a_m + (b - b_zero) * b_m + 2^(s-1)) >> s) + zero): multipliers of 21 bits, so that 32 are
 * enough for all of it. */
#define MOST_FACTOR (1 << 21)
typedef struct {
    int32_t a_zero, b_zero, a_m, b_m;
    Requantize requantize;
} QAdd;
UNPACK(qadd_of, QAdd)

static int factor_ok(int32_t m) { return m >= -MOST_FACTOR && m <= MOST_FACTOR; }

EXTENT(qadd_i8) {
    if (params < PARAMS(QAdd)) { return -1; }
    const QAdd v = qadd_of(p);
    if (!smg_zero_ok(v.a_zero) || !smg_zero_ok(v.b_zero) || !factor_ok(v.a_m) || !factor_ok(v.b_m)) { return -1; }
    if (!smg_requantize_ok(v.requantize) || v.requantize.shift > 30) { return -1; }
    return broadcast_need(p + PARAMS(QAdd), params - PARAMS(QAdd), 2, (const uint8_t[]){1, 1, 1}, need);
}
static inline int8_t qadd(int32_t a, int32_t b, const QAdd *v, int32_t half) {
    const Requantize r = v->requantize;
    const int32_t sum = (((a - v->a_zero) * v->a_m + (b - v->b_zero) * v->b_m + half) >> r.shift) + r.zero;
    const int32_t low = sum < r.lo ? r.lo : sum;
    return (int8_t)(low > r.hi ? r.hi : low);
}
static void qadd_run(int8_t *y, const int8_t *a, size_t sa, const int8_t *b, size_t sb, int32_t len, const QAdd *v) {
    const int32_t half = (int32_t)1 << (v->requantize.shift - 1);
    if (sa == 1 && sb == 1) {
        for (int32_t i = 0; i < len; i++) { y[i] = qadd(a[i], b[i], v, half); }
    } else {
        for (int32_t i = 0; i < len; i++) { y[i] = qadd(a[(size_t)i * sa], b[(size_t)i * sb], v, half); }
    }
}
static SmgFault qadd_i8_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    const QAdd own = qadd_of(c->p);
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *A = IN_AS(int8_t, 1), *B = IN_AS(int8_t, 2);
    EACH_RUN(c->p + PARAMS(QAdd), 2, qadd_run(y, A + off[0], step[0], B + off[1], step[1], len, &own));
    return SMG_NO_FAULT;
}
BROADCAST_KERNEL(qadd_i8, "oii", PARAMS(QAdd))

/* acc = (a - a_zero) * (b - b_zero), then as everything that changes its scale. */
typedef struct {
    int32_t a_zero, b_zero, m;
    Requantize requantize;
} QMul;
UNPACK(qmul_of, QMul)

EXTENT(qmul_i8) {
    if (params < PARAMS(QMul)) { return -1; }
    const QMul v = qmul_of(p);
    if (!smg_zero_ok(v.a_zero) || !smg_zero_ok(v.b_zero) || !smg_requantize_ok(v.requantize)) { return -1; }
    return broadcast_need(p + PARAMS(QMul), params - PARAMS(QMul), 2, (const uint8_t[]){1, 1, 1}, need);
}
static void qmul_run(int8_t *y, const int8_t *a, size_t sa, const int8_t *b, size_t sb, int32_t len, const QMul *v) {
    for (int32_t i = 0; i < len; i++) {
        const int32_t product = (a[(size_t)i * sa] - v->a_zero) * (b[(size_t)i * sb] - v->b_zero);
        y[i] = smg_requantize(product, v->m, v->requantize);
    }
}
static SmgFault qmul_i8_range(const void *arg, int32_t from, int32_t to) {
    const SmgCall *c = (const SmgCall *)arg;
    const QMul own = qmul_of(c->p);
    int8_t *y = OUT_AS(int8_t, 0);
    const int8_t *A = IN_AS(int8_t, 1), *B = IN_AS(int8_t, 2);
    EACH_RUN(c->p + PARAMS(QMul), 2, qmul_run(y, A + off[0], step[0], B + off[1], step[1], len, &own));
    return SMG_NO_FAULT;
}
BROADCAST_KERNEL(qmul_i8, "oii", PARAMS(QMul))
