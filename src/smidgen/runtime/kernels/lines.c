/* Operations along one axis (ops/lines.py): softmax, cumulative sums, the place of the largest, the order of values.
 * Sums in chunks of 512, a chunk in eight lanes (sum.h), whatever the stride. */
#include "../exact_math.h"
#include "params.h"
#include "sum.h"
#include "walk.h"

enum { CHUNK = 512 };

typedef struct {
    Lines lines;
    int32_t reverse;
} Cumsum;
UNPACK(cumsum_of, Cumsum)

/* Elements of all lines, if each has L of them. */
static uint64_t elements(const Lines *v, int32_t L) { return smg_product((const int32_t[]){v->outer, L, v->inner}, 3); }

static int lines_need(const int32_t *p, int operands, uint64_t *need) {
    const Lines v = lines_of(p);
    const uint64_t bytes = smg_mul(elements(&v, v.L), 4);
    if (bytes == SMG_TOO_MUCH) { return -1; }
    for (int i = 0; i < operands; i++) { need[i] = bytes; }
    return 0;
}

/* Offset of the first element of each line. */
#define EACH_LINE(first)                                              \
    const Lines v_ = lines_of(c->p);                                  \
    const int32_t L = v_.L, outer_ = elements(&v_, L) ? v_.outer : 0; \
    const size_t step = (size_t)v_.inner;                             \
    for (int32_t o_ = 0; o_ < outer_; o_++)                           \
        for (size_t first = (size_t)o_ * (size_t)L * step, end_ = first + step; first < end_; first++)

/* BODY for the offset i of each element of a line; contiguous lines get a loop that vectorises. */
#define LINE_MAP(BODY)                                                \
    if (step == 1) {                                                  \
        for (size_t i = 0; i < (size_t)L; i++) { BODY; }              \
    } else {                                                          \
        for (size_t i = 0; i < (size_t)L * step; i += step) { BODY; } \
    }

/* total += TERM for the offset i of each element, element k of a chunk in lane k % 8. */
#define LINE_SUM(total, TERM)                                       \
    for (int32_t k_ = 0; k_ < L;) {                                 \
        const int32_t end_chunk_ = L - k_ < CHUNK ? L : k_ + CHUNK; \
        float acc_[8] = {0, 0, 0, 0, 0, 0, 0, 0};                   \
        if (step == 1) {                                            \
            LINE_LANES(1, TERM)                                     \
        } else {                                                    \
            LINE_LANES(step, TERM)                                  \
        }                                                           \
        (total) += smg_lanes8(acc_);                                \
    }
#define LINE_LANES(each, TERM)                          \
    for (; end_chunk_ - k_ >= 8; k_ += 8) {             \
        for (int l = 0; l < 8; l++) {                   \
            const size_t i = (size_t)(k_ + l) * (each); \
            acc_[l] += TERM;                            \
        }                                               \
    }                                                   \
    for (int l = 0; k_ < end_chunk_; l++, k_++) {       \
        const size_t i = (size_t)k_ * (each);           \
        acc_[l] += TERM;                                \
    }

#define LINES(name, signature, operands_)                   \
    EXTENT(name) { return lines_need(p, operands_, need); } \
    KERNEL(name, signature, PARAMS(Lines))

/* All of these allow the output to be an input: a line is read before it is written. */
LINES(softmax_f32, "oi", 2) {
    EACH_LINE(first) {
        const float *x = IN(1) + first;
        float *y = OUT(0) + first, sum = 0.0f;
        const float top = smg_line_max(x, step, L);
        LINE_MAP(y[i] = smg_expf(x[i] - top))
        LINE_SUM(sum, y[i])
        LINE_MAP(y[i] /= sum)
    }
    return SMG_NO_FAULT;
}

LINES(softmax_dx_f32, "oii", 3) {
    EACH_LINE(first) {
        const float *dy = IN(1) + first, *y = IN(2) + first;
        float *dx = OUT(0) + first, dot = 0.0f;
        LINE_SUM(dot, dy[i] * y[i])
        LINE_MAP(dx[i] = y[i] * (dy[i] - dot))
    }
    return SMG_NO_FAULT;
}

LINES(log_softmax_f32, "oi", 2) {
    EACH_LINE(first) {
        const float *x = IN(1) + first;
        float *y = OUT(0) + first, sum = 0.0f;
        const float top = smg_line_max(x, step, L);
        LINE_SUM(sum, smg_expf(x[i] - top))
        const float log_sum = smg_logf(sum);
        LINE_MAP(y[i] = (x[i] - top) - log_sum)
    }
    return SMG_NO_FAULT;
}

LINES(log_softmax_dx_f32, "oii", 3) {
    EACH_LINE(first) {
        const float *dy = IN(1) + first, *y = IN(2) + first;
        float *dx = OUT(0) + first, sum = 0.0f;
        LINE_SUM(sum, dy[i])
        LINE_MAP(dx[i] = dy[i] - smg_expf(y[i]) * sum)
    }
    return SMG_NO_FAULT;
}

/* Every 64 elements the running sum joins a base, which keeps the error small. */
EXTENT(cumsum_f32) { return lines_need(p, 2, need); }
KERNEL(cumsum_f32, "oi", PARAMS(Cumsum)) {
    const int reverse = cumsum_of(c->p).reverse != 0;
    EACH_LINE(first) {
        float base = 0.0f, sum = 0.0f;
        for (int32_t k = 0; k < L; k++) {
            const size_t i = first + (size_t)(reverse ? L - 1 - k : k) * step;
            sum += IN(1)[i];
            OUT(0)[i] = base + sum;
            if ((k & 63) == 63) {
                base += sum;
                sum = 0.0f;
            }
        }
    }
    return SMG_NO_FAULT;
}

/* First position of the largest element; NaN counts as largest. */
static int32_t line_argmax(const float *x, size_t step, int32_t L) {
    int32_t best = 0;
    float top = x[0];
    for (int32_t k = 1; k < L && top == top; k++) {
        const float v = x[(size_t)k * step];
        if (!(v <= top)) {
            top = v;
            best = k;
        }
    }
    return best;
}

/* Bytes of a tensor of lines, and of one with one element per line. A line has at least one element. */
static int pick_need(const int32_t *p, uint64_t *all, uint64_t *one) {
    const Lines v = lines_of(p);
    if (v.L < 1) { return -1; }
    *all = smg_mul(elements(&v, v.L), 4);
    *one = smg_mul(elements(&v, 1), 4);
    return *all == SMG_TOO_MUCH ? -1 : 0;
}

/* Operands values, index, x. */
EXTENT(max_index_f32) {
    if (pick_need(p, &need[2], &need[0])) { return -1; }
    need[1] = need[0];
    return 0;
}
KERNEL(max_index_f32, "ooi", PARAMS(Lines)) {
    float *value = OUT(0);
    int32_t *index = OUT_AS(int32_t, 1);
    EACH_LINE(first) {
        const float *x = IN(2) + first;
        *index = line_argmax(x, step, L);
        *value++ = x[(size_t)*index++ * step];
    }
    return SMG_NO_FAULT;
}

/* Operands index, x. */
EXTENT(argmax_i32) { return pick_need(p, &need[1], &need[0]); }
KERNEL(argmax_i32, "oi", PARAMS(Lines)) {
    int32_t *index = OUT_AS(int32_t, 0);
    EACH_LINE(first) { *index++ = line_argmax(IN(1) + first, step, L); }
    return SMG_NO_FAULT;
}

/* Lines of L elements of which the first `count` in the order of their values are wanted. */
typedef struct {
    Lines lines;
    int32_t count, descending;
} Argsort;
UNPACK(argsort_of, Argsort)

/* Does a stand behind b? NaN is larger than everything, equal ones are not behind each other. */
static inline int stands_behind(float a, float b, int descending) {
    const int a_nan = a != a, b_nan = b != b;
    if (descending) { return b_nan ? !a_nan : a < b; }
    return a_nan ? !b_nan : a > b;
}

/* Operands index, x. Each element is inserted into the places found so far; what falls off the end is not wanted. */
EXTENT(argsort_i32) {
    const Argsort v = argsort_of(p);
    if (v.count < 1 || v.count > v.lines.L || lines_need(p, 2, need)) { return -1; }
    need[0] = smg_mul(elements(&v.lines, v.count), 4);
    return 0;
}
KERNEL(argsort_i32, "oi", PARAMS(Argsort)) {
    const Argsort v = argsort_of(c->p);
    const int32_t count = v.count;
    int32_t *block = OUT_AS(int32_t, 0);
    size_t column = 0;
    EACH_LINE(first) {
        const float *x = IN(1) + first;
        int32_t *index = block + column;
        for (int32_t k = 0; k < L; k++) {
            const float value = x[(size_t)k * step];
            int32_t at = k < count ? k : count;
            for (; at > 0; at--) {
                const int32_t before = index[(size_t)(at - 1) * step];
                if (!stands_behind(x[(size_t)before * step], value, v.descending)) { break; }
                if (at < count) { index[(size_t)at * step] = before; }
            }
            if (at < count) { index[(size_t)at * step] = k; }
        }
        if (++column == step) {
            column = 0;
            block += (size_t)count * step;
        }
    }
    return SMG_NO_FAULT;
}

/* Operands dx, dy, index. */
EXTENT(max_index_dx_f32) {
    if (pick_need(p, &need[0], &need[1])) { return -1; }
    need[2] = need[1];
    return 0;
}
KERNEL(max_index_dx_f32, "oii", PARAMS(Lines)) {
    const float *dy = IN(1);
    const int32_t *index = IN_AS(int32_t, 2);
    EACH_LINE(first) {
        float *dx = OUT(0) + first;
        const int32_t at = *index++;
        if (at < 0 || at >= L) { return SMG_FAULT_AXIS_INDEX; }
        for (int32_t k = 0; k < L; k++) { dx[(size_t)k * step] = 0.0f; }
        dx[(size_t)at * step] = *dy++;
    }
    return SMG_NO_FAULT;
}
