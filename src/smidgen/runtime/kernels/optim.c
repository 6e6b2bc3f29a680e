/* Updates of weights from a gradient that exists as a whole, and the small steps around them. The formulas are those of
 * sink.h, so an update has the same bits whether or not it is fused with the gradient. p: N elements, then the
 * sink's. */
#include "../kernel.h"
#include "rounded.h"
#include "sum.h"

typedef struct {
    int32_t N;
} Elements;
UNPACK(elements_of, Elements)

/* Operands: what is updated, the gradient, lr, counter. */
static int update_need(const int32_t *p, int mode, uint64_t *need) {
    const int outs = SMG_SINK_OUTS(mode), ins = SMG_SINK_INS(mode);
    const int32_t N = elements_of(p).N;
    if (N < 0) { return -1; }
    for (int i = 0; i <= outs; i++) { need[i] = (uint64_t)N * 4; }
    if (ins > 0) { need[outs + 1] = 4; }
    if (ins > 1) { need[outs + 2] = 8; }
    return 0;
}
#define UPDATE(name, mode, signature)                                               \
    EXTENT(name) { return update_need(p, mode, need); }                             \
    KERNEL(name, signature, PARAMS(Elements) + SMG_SINK_PARAMS(mode)) {             \
        const int g = SMG_SINK_OUTS(mode);                                          \
        const int32_t *counter = (mode) == SMG_ADAM ? IN_AS(int32_t, g + 2) : NULL; \
        SMG_SINK(sink, mode, c->op, IN(g + 1), counter, c->p + PARAMS(Elements));   \
        smg_sink_end(&sink, IN(g), 0, (size_t)elements_of(c->p).N);                 \
        return SMG_NO_FAULT;                                                        \
    }
UPDATE(sgd_f32, SMG_SGD, "uii")
UPDATE(momentum_f32, SMG_MOMENTUM, "uuii")
UPDATE(adam_f32, SMG_ADAM, "uuuiii")

/* The same for weights in integers: the gradient is the only input of its own. */
static int step_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const int32_t N = elements_of(p).N;
    if (N < 1) { return -1; }
    own[0] = (uint64_t)N * 4;
    *elements = (uint64_t)N;
    return 0;
}
static SmgFault step(const SmgCall *c, const Sink *sink) {
    smg_sink_end(sink, SINK_IN(sink, 0), 0, (size_t)elements_of(c->p).N);
    return SMG_NO_FAULT;
}
ROUNDED_KERNELS(step, 1, "i", PARAMS(Elements), i8)
ROUNDED_KERNELS(step, 1, "i", PARAMS(Elements), i32)

EXTENT(accumulate_f32) { return update_need(p, SMG_ACC, need); }
KERNEL(accumulate_f32, "ui", PARAMS(Elements)) {
    const int32_t N = elements_of(c->p).N;
    float *acc = OUT(0);
    const float *g = IN(1);
    for (int32_t i = 0; i < N; i++) { acc[i] += g[i]; }
    return SMG_NO_FAULT;
}

/* The sum of what micro-batches gave so far: y, sums, what this one gives. */
EXTENT(running_sum_f32) {
    const int32_t N = elements_of(p).N;
    if (N < 0) { return -1; }
    need[0] = need[1] = need[2] = (uint64_t)N * 4;
    return 0;
}
KERNEL(running_sum_f32, "oui", PARAMS(Elements)) {
    const int32_t N = elements_of(c->p).N;
    float *sums = OUT(1);
    for (int32_t i = 0; i < N; i++) { sums[i] += IN(2)[i]; }
    memcpy(OUT(0), sums, (size_t)N * sizeof(float));
    return SMG_NO_FAULT;
}

EXTENT(zero_f32) {
    const int32_t N = elements_of(p).N;
    if (N < 0) { return -1; }
    need[0] = (uint64_t)N * 4;
    return 0;
}
KERNEL(zero_f32, "u", PARAMS(Elements)) {
    memset(c->op[0], 0, (size_t)elements_of(c->p).N * sizeof(float));
    return SMG_NO_FAULT;
}

/* (seed, step) -> (seed, step + 1); stays at the largest step. */
EXTENT(count_step_i32) {
    need[0] = 8;
    return 0;
}
KERNEL(count_step_i32, "u", 0) {
    int32_t *counter = OUT_AS(int32_t, 0);
    if (counter[1] < INT32_MAX) { counter[1]++; }
    return SMG_NO_FAULT;
}

/* Blocks of 64 in eight lanes, blocks in double. */
EXTENT(sum_squares_f32) {
    const int32_t N = elements_of(p).N;
    if (N < 0) { return -1; }
    need[0] = 4;
    need[1] = (uint64_t)N * 4;
    return 0;
}
KERNEL(sum_squares_f32, "oi", PARAMS(Elements)) {
    const float *g = IN(1);
    const int32_t N = elements_of(c->p).N;
    double sum = 0.0;
    for (int32_t at = 0, len; at < N; at += len) {
        len = N - at < SMG_BLOCK ? N - at : SMG_BLOCK;
        sum += (double)smg_dot8(g + at, g + at, len);
    }
    OUT(0)[0] = smg_to_float(sum);
    return SMG_NO_FAULT;
}

/* min(1, max_norm / (norm + 1e-6)), norm the root of the sum of all inputs; NaN stays. */
typedef struct {
    float max_norm;
} Clip;
UNPACK(clip_of, Clip)

EXTENT(clip_factor_f32) {
    for (int i = 0; i < operands; i++) { need[i] = 4; }
    return 0;
}
KERNEL(clip_factor_f32, "oi+", PARAMS(Clip)) {
    double sum = 0.0;
    for (int i = 1; i < c->operands; i++) { sum += (double)IN(i)[0]; }
    const float factor = clip_of(c->p).max_norm / (smg_sqrtf(smg_to_float(sum)) + 1e-6f);
    OUT(0)[0] = factor > 1.0f ? 1.0f : factor;
    return SMG_NO_FAULT;
}
