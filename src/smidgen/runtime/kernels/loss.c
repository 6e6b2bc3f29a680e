/* Losses and their gradients. The output is one number; reduction "mean" divides by what counts at hand times
 * total/n, so that micro-batches add up to the batch. Rows are summed in sample order, in double: one addition a row,
 * or one for 64 elements, costs nothing even where double is software.
 * A label outside the classes is found before anything is indexed with it.
 *
 * `name_running` goes on with the sum of the micro-batches before (running.h): its result after the last of them has
 * the bits of the undivided batch. */
#include "../exact_math.h"
#include "../kernel.h"
#include "running.h"
#include "sum.h"

/* The sum over a batch of which `counted` (elements, rows or their weights) are at hand, as a mean.
 * counted / n is exact for elements and rows, so every micro-batch divides by the same number. */
static double mean_over(double counted, SmgRun run) {
    return run.n > 0 ? counted / (double)run.n * (double)run.total : counted;
}

static float reduced(double sum, double counted, int mean, SmgRun run) {
    if (!mean) { return smg_to_float(sum); }
    return smg_to_float(sum / mean_over(counted, run));
}

static float gradient_scale(float dloss, double counted, int mean, SmgRun run) {
    return mean ? dloss / smg_to_float(mean_over(counted, run)) : dloss;
}

/* Sums the weights of the labels that count; a fault if a label is no class. */
static SmgFault count_labels(const int32_t *target, const float *weight, int32_t rows, int32_t C, int32_t ignore,
                             int in_parts, double *counted) {
    *counted = 0.0;
    for (int32_t r = 0; r < rows; r++) {
        const int32_t t = target[r];
        if (t == ignore && in_parts) { return SMG_FAULT_IGNORED_LABELS; }
        if (t == ignore) { continue; }
        if (t < 0 || t >= C) { return SMG_FAULT_LABEL; }
        *counted += weight ? (double)weight[t] : 1.0;
    }
    return SMG_NO_FAULT;
}

/* cross_entropy, nll_loss: logits or log-probabilities x[rows][C], target[rows], weight[C] or absent. Rows whose
 * target is `ignore` do not count. */
typedef struct {
    int32_t rows, C, ignore, mean;
} Labels;
typedef struct {
    Labels labels;
    float smoothing; /* the share of a label that is spread over all classes */
} CrossEntropy;
UNPACK(labels_of, Labels)
UNPACK(cross_entropy_of, CrossEntropy)

/* `first` is the operand of x. */
static int rows_need(const int32_t *p, int operands, int first, uint64_t *need) {
    const Labels v = labels_of(p);
    if (v.rows < 0 || v.C < 1 || v.C > 1 << 30) { return -1; /* a loop may step past the end without overflow */ }
    need[first + 1] = (uint64_t)v.rows * 4;
    need[first] = smg_mul(need[first + 1], (uint64_t)v.C);
    if (operands > first + 2) { need[first + 2] = (uint64_t)v.C * 4; }
    return 0;
}
/* Of a mean over a batch in micro-batches, none of them knows how many labels the others ignore. */
static int is_micro_batch(const Labels *v, SmgRun run) { return v->mean && run.n < run.total; }

/* The mask of a spare class that is not in use (classes.h): next to it, no score counts. */
#define NOT_IN_USE -1e30f

/* Kernels of a loss of rows, at once and going on. name(c, first, sum, counted) adds the rows to *sum; `first` is the
 * operand of x. */
#define ROW_LOSS(name, Type)                                             \
    EXTENT(name##_f32) {                                                 \
        need[0] = 4;                                                     \
        return rows_need(p, operands, 1, need);                          \
    }                                                                    \
    KERNEL(name##_f32, "oiii?", PARAMS(Type)) {                          \
        double sum = 0.0, counted;                                       \
        const SmgFault wrong = name(c, 1, &sum, &counted);               \
        if (wrong) { return wrong; }                                     \
        OUT(0)[0] = reduced(sum, counted, labels_of(c->p).mean, c->run); \
        return SMG_NO_FAULT;                                             \
    }                                                                    \
    EXTENT(name##_running_f32) {                                         \
        need[0] = 4;                                                     \
        need[1] = CARRIED_ROWS * 4;                                      \
        return rows_need(p, operands, 2, need);                          \
    }                                                                    \
    KERNEL(name##_running_f32, "ouiii?", PARAMS(Type)) {                 \
        double sum = carried(OUT(1)), counted;                           \
        const SmgFault wrong = name(c, 2, &sum, &counted);               \
        if (wrong) { return wrong; }                                     \
        carry(OUT(1), sum);                                              \
        OUT(0)[0] = reduced(sum, counted, labels_of(c->p).mean, c->run); \
        return SMG_NO_FAULT;                                             \
    }

static float row_max(const float *x, int32_t C) {
    float m = x[0];
    for (int32_t k = 1; k < C; k++) { m = x[k] > m ? x[k] : m; }
    return m;
}

/* Sum of exp(x - m), eight lanes. */
static float exp_sum(const float *x, float m, int32_t C) {
    float a[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int32_t k = 0;
#ifndef __OPTIMIZE_SIZE__
    for (; k + 8 <= C; k += 8) {
        for (int l = 0; l < 8; l++) { a[l] += smg_expf(x[k + l] - m); }
    }
#endif
    for (; k < C; k++) { a[k & 7] += smg_expf(x[k] - m); }
    return smg_lanes8(a);
}

/* Sum over classes of weight * -log p, eight lanes; log p = (x - m) - log_sum. */
static float smooth_sum(const float *x, const float *weight, float m, float log_sum, int32_t C) {
    float a[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int32_t k = 0; k < C; k++) {
        const float minus_log_p = log_sum - (x[k] - m);
        a[k % 8] += weight ? weight[k] * minus_log_p : minus_log_p;
    }
    return smg_lanes8(a);
}

static SmgFault cross_entropy(const SmgCall *c, int first, double *sum, double *counted) {
    const CrossEntropy g = cross_entropy_of(c->p);
    const Labels v = g.labels;
    const float *x = IN(first), *weight = OPTIONAL_IN(first + 2);
    const int32_t *target = IN_AS(int32_t, first + 1), rows = v.rows, C = v.C, ignore = v.ignore;
    const float smoothing = g.smoothing, keep = 1.0f - smoothing, spread = smoothing / (float)C;
    const SmgFault wrong = count_labels(target, weight, rows, C, ignore, is_micro_batch(&v, c->run), counted);
    if (wrong) { return wrong; }
    for (int32_t r = 0; r < rows; r++, x += C) {
        const int32_t t = target[r];
        if (t == ignore) { continue; }
        if (x[t] == NOT_IN_USE) { return SMG_FAULT_SPARE_LABEL; }
        const float m = row_max(x, C), log_sum = smg_logf(exp_sum(x, m, C));
        const float nll = log_sum - (x[t] - m);
        float row = keep * (weight ? weight[t] * nll : nll);
        if (smoothing != 0.0f) { row += spread * smooth_sum(x, weight, m, log_sum, C); }
        *sum += (double)row;
    }
    return SMG_NO_FAULT;
}
ROW_LOSS(cross_entropy, CrossEntropy)

/* dx[k] = scale * (p[k] * pull - spread * weight[k] - (k == t) * keep * weight[t]), pull the sum of what is taken off.
 * dx may be the logits' own memory. */
EXTENT(cross_entropy_dx_f32) {
    if (rows_need(p, operands, 2, need)) { return -1; }
    need[0] = need[2];
    need[1] = 4;
    return 0;
}
KERNEL(cross_entropy_dx_f32, "oiiii?", PARAMS(CrossEntropy)) {
    const CrossEntropy g = cross_entropy_of(c->p);
    const Labels v = g.labels;
    float *dx = OUT(0);
    const float *x = IN(2), *weight = OPTIONAL_IN(4);
    const int32_t *target = IN_AS(int32_t, 3), rows = v.rows, C = v.C, ignore = v.ignore;
    const float smoothing = g.smoothing, keep = 1.0f - smoothing, spread = smoothing / (float)C;
    double counted;
    const SmgFault wrong = count_labels(target, weight, rows, C, ignore, is_micro_batch(&v, c->run), &counted);
    if (wrong) { return wrong; }
    const float scale = gradient_scale(IN(1)[0], counted, v.mean, c->run);
    const float all = weight ? smg_sum8(weight, C) : (float)C;
    for (int32_t r = 0; r < rows; r++, x += C, dx += C) {
        const int32_t t = target[r];
        if (t == ignore) {
            for (int32_t k = 0; k < C; k++) { dx[k] = 0.0f; }
            continue;
        }
        const float m = row_max(x, C), sum = exp_sum(x, m, C);
        const float take = keep * (weight ? weight[t] : 1.0f), pull = take + spread * all;
        for (int32_t k = 0; k < C; k++) { dx[k] = smg_expf(x[k] - m) / sum * pull; }
        dx[t] -= take;
        if (smoothing != 0.0f) {
            for (int32_t k = 0; k < C; k++) { dx[k] -= weight ? spread * weight[k] : spread; }
        }
        for (int32_t k = 0; k < C; k++) { dx[k] *= scale; }
    }
    return SMG_NO_FAULT;
}

static SmgFault nll_loss(const SmgCall *c, int first, double *sum, double *counted) {
    const Labels v = labels_of(c->p);
    const float *x = IN(first), *weight = OPTIONAL_IN(first + 2);
    const int32_t *target = IN_AS(int32_t, first + 1), rows = v.rows, C = v.C, ignore = v.ignore;
    const SmgFault wrong = count_labels(target, weight, rows, C, ignore, is_micro_batch(&v, c->run), counted);
    if (wrong) { return wrong; }
    for (int32_t r = 0; r < rows; r++, x += C) {
        if (target[r] != ignore) { *sum -= (double)(weight ? weight[target[r]] * x[target[r]] : x[target[r]]); }
    }
    return SMG_NO_FAULT;
}
ROW_LOSS(nll_loss, Labels)

/* The log-probabilities themselves are not needed: operands are dx, dloss, target, weight. */
EXTENT(nll_loss_dx_f32) {
    const Labels v = labels_of(p);
    if (v.rows < 0 || v.C < 1) { return -1; }
    need[2] = (uint64_t)v.rows * 4;
    need[0] = smg_mul(need[2], (uint64_t)v.C);
    need[1] = 4;
    if (operands > 3) { need[3] = (uint64_t)v.C * 4; }
    return 0;
}
KERNEL(nll_loss_dx_f32, "oiii?", PARAMS(Labels)) {
    const Labels v = labels_of(c->p);
    float *dx = OUT(0);
    const float *weight = OPTIONAL_IN(3);
    const int32_t *target = IN_AS(int32_t, 2), rows = v.rows, C = v.C, ignore = v.ignore;
    double counted;
    const SmgFault wrong = count_labels(target, weight, rows, C, ignore, is_micro_batch(&v, c->run), &counted);
    if (wrong) { return wrong; }
    const float scale = gradient_scale(IN(1)[0], counted, v.mean, c->run);
    for (int32_t r = 0; r < rows; r++, dx += C) {
        for (int32_t k = 0; k < C; k++) { dx[k] = 0.0f; }
        if (target[r] != ignore) { dx[target[r]] = -(weight ? scale * weight[target[r]] : scale); }
    }
    return SMG_NO_FAULT;
}

/* Losses of x[N] against t[N], element by element. */
typedef struct {
    int32_t N, mean;
} Pair;
UNPACK(pair_of, Pair)

/* d = x - t; a is the constant of the loss, which ends the block of those that have one. */
static inline float sign_of(float d) { return (float)((d > 0.0f) - (d < 0.0f)); }

static inline float mse_loss_term(float d, SMG_UNUSED float a) { return d * d; }
static inline float mse_loss_slope(float d, SMG_UNUSED float a) { return 2.0f * d; }
static inline float l1_loss_term(float d, SMG_UNUSED float a) { return smg_absf(d); }
static inline float l1_loss_slope(float d, SMG_UNUSED float a) { return sign_of(d); }
static inline float huber_loss_term(float d, float a) {
    const float z = smg_absf(d);
    return z < a ? 0.5f * z * z : a * (z - 0.5f * a);
}
static inline float huber_loss_slope(float d, float a) {
    const float below = d > a ? a : d;
    return d < -a ? -a : below;
}
static inline float smooth_l1_loss_term(float d, float a) {
    const float z = smg_absf(d);
    return z < a ? 0.5f * z * z / a : z - 0.5f * a;
}
static inline float smooth_l1_loss_slope(float d, float a) { return smg_absf(d) < a ? d / a : sign_of(d); }

/* Of a loss that goes on: the loss, what is carried, x, t. */
static int running_need(const int32_t *p, uint64_t *need) {
    const Pair v = pair_of(p);
    if (v.N < 0) { return -1; }
    need[0] = 4;
    need[1] = CARRIED_TERMS * 4;
    need[2] = need[3] = (uint64_t)v.N * 4;
    return 0;
}

static int pair_need(const int32_t *p, int outs, uint64_t *need) {
    const Pair v = pair_of(p);
    if (v.N < 0) { return -1; }
    need[0] = outs ? (uint64_t)v.N * 4 : 4; /* dx and dloss, or just the loss */
    need[1] = 4;
    need[1 + outs] = need[2 + outs] = (uint64_t)v.N * 4;
    return 0;
}

/* The constant of a block of `constants` more words than a Pair. */
static float pair_constant(const int32_t *p, int constants) { return constants ? smg_f32(p[PARAMS(Pair)]) : 0.0f; }

/* Terms in blocks of SMG_BLOCK, each in eight lanes (sum.h); blocks join in double. */
#define PAIR_LOSS(name, constants)                                                                 \
    EXTENT(name##_f32) { return pair_need(p, 0, need); }                                           \
    KERNEL(name##_f32, "oii", PARAMS(Pair) + (constants)) {                                        \
        const Pair v = pair_of(c->p);                                                              \
        const float *x = IN(1), *t = IN(2), a = pair_constant(c->p, constants);                    \
        const int32_t N = v.N;                                                                     \
        float term[SMG_BLOCK];                                                                     \
        double sum = 0.0;                                                                          \
        for (int32_t at = 0, len; at < N; at += len) {                                             \
            len = N - at < SMG_BLOCK ? N - at : SMG_BLOCK;                                         \
            for (int32_t i = 0; i < len; i++) { term[i] = name##_term(x[at + i] - t[at + i], a); } \
            sum += (double)smg_sum8(term, len);                                                    \
        }                                                                                          \
        OUT(0)[0] = reduced(sum, (double)N, v.mean, c->run);                                       \
        return SMG_NO_FAULT;                                                                       \
    }                                                                                              \
    EXTENT(name##_running_f32) { return running_need(p, need); }                                   \
    KERNEL(name##_running_f32, "ouii", PARAMS(Pair) + (constants)) {                               \
        const Pair v = pair_of(c->p);                                                              \
        const float *x = IN(2), *t = IN(3), a = pair_constant(c->p, constants);                    \
        const int32_t N = v.N;                                                                     \
        Terms terms = terms_of(OUT(1));                                                            \
        for (int32_t i = 0; i < N; i++) { terms_add(&terms, name##_term(x[i] - t[i], a)); }        \
        OUT(0)[0] = reduced(terms_end(&terms, OUT(1)), (double)N, v.mean, c->run);                 \
        return SMG_NO_FAULT;                                                                       \
    }                                                                                              \
    EXTENT(name##_dx_f32) { return pair_need(p, 1, need); }                                        \
    KERNEL(name##_dx_f32, "oiii", PARAMS(Pair) + (constants)) {                                    \
        const Pair v = pair_of(c->p);                                                              \
        float *dx = OUT(0);                                                                        \
        const float *x = IN(2), *t = IN(3), a = pair_constant(c->p, constants);                    \
        const float scale = gradient_scale(IN(1)[0], (double)v.N, v.mean, c->run);                 \
        const int32_t N = v.N;                                                                     \
        for (int32_t i = 0; i < N; i++) { dx[i] = scale * name##_slope(x[i] - t[i], a); }          \
        return SMG_NO_FAULT;                                                                       \
    }

PAIR_LOSS(mse_loss, 0)
PAIR_LOSS(l1_loss, 0)
PAIR_LOSS(huber_loss, 1)     /* a: delta */
PAIR_LOSS(smooth_l1_loss, 1) /* a: beta */

/* bce_with_logits: pos_weight[W] (1 if absent) repeats along x. */
typedef struct {
    Pair pair;
    int32_t W;
} Bce;
UNPACK(bce_of, Bce)

static int bce_need(const int32_t *p, int operands, int outs, uint64_t *need) {
    const Bce v = bce_of(p);
    if (v.W < 1 || pair_need(p, outs, need)) { return -1; }
    if (operands > 3 + outs) { need[3 + outs] = (uint64_t)v.W * 4; }
    return 0;
}

/* (1-t) x + (1 + (w-1) t) (log(1 + exp(-|x|)) + max(-x, 0)) */
static inline float bce_term(float x, float t, float w) {
    const float rest = smg_log1pf(smg_expf(-smg_absf(x))) + (x < 0.0f ? -x : 0.0f);
    return (1.0f - t) * x + (1.0f + (w - 1.0f) * t) * rest;
}

/* (1 + (w-1) t) sigmoid(x) - w t */
static inline float bce_slope(float x, float t, float w) { return (1.0f + (w - 1.0f) * t) * smg_sigmoidf(x) - w * t; }

EXTENT(bce_with_logits_f32) { return bce_need(p, operands, 0, need); }
KERNEL(bce_with_logits_f32, "oiii?", PARAMS(Bce)) {
    const Bce v = bce_of(c->p);
    const float *x = IN(1), *t = IN(2), *weight = OPTIONAL_IN(3);
    const int32_t N = v.pair.N, W = v.W;
    float term[SMG_BLOCK];
    double sum = 0.0;
    for (int32_t at = 0, len; at < N; at += len) {
        len = N - at < SMG_BLOCK ? N - at : SMG_BLOCK;
        for (int32_t i = 0; i < len; i++) {
            term[i] = bce_term(x[at + i], t[at + i], weight ? weight[(at + i) % W] : 1.0f);
        }
        sum += (double)smg_sum8(term, len);
    }
    OUT(0)[0] = reduced(sum, (double)N, v.pair.mean, c->run);
    return SMG_NO_FAULT;
}

EXTENT(bce_with_logits_running_f32) {
    const Bce v = bce_of(p);
    if (v.W < 1 || running_need(p, need)) { return -1; }
    if (operands > 4) { need[4] = (uint64_t)v.W * 4; }
    return 0;
}
KERNEL(bce_with_logits_running_f32, "ouiii?", PARAMS(Bce)) {
    const Bce v = bce_of(c->p);
    const float *x = IN(2), *t = IN(3), *weight = OPTIONAL_IN(4);
    const int32_t N = v.pair.N, W = v.W;
    Terms terms = terms_of(OUT(1));
    for (int32_t i = 0; i < N; i++) { terms_add(&terms, bce_term(x[i], t[i], weight ? weight[i % W] : 1.0f)); }
    OUT(0)[0] = reduced(terms_end(&terms, OUT(1)), (double)N, v.pair.mean, c->run);
    return SMG_NO_FAULT;
}

EXTENT(bce_with_logits_dx_f32) { return bce_need(p, operands, 1, need); }
KERNEL(bce_with_logits_dx_f32, "oiiii?", PARAMS(Bce)) {
    const Bce v = bce_of(c->p);
    float *dx = OUT(0);
    const float *x = IN(2), *t = IN(3), *weight = OPTIONAL_IN(4);
    const float scale = gradient_scale(IN(1)[0], (double)v.pair.N, v.pair.mean, c->run);
    const int32_t N = v.pair.N, W = v.W;
    for (int32_t i = 0; i < N; i++) { dx[i] = scale * bce_slope(x[i], t[i], weight ? weight[i % W] : 1.0f); }
    return SMG_NO_FAULT;
}
