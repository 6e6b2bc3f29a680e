/* Sums of a loss that go on from one micro-batch to the next, so that after the last of them they have the bits of the
 * undivided batch. What is carried, all floats, all zero before the first:
 *
 *   [0..3)  the sum: three floats hold the digits of a double      [3]  not 0: they are scaled by 2^-64
 *   [4..12) the eight lanes of a block of terms that is not full   [12] how many terms are in it: 0 to 63
 *
 * Losses of rows have no blocks, and carry the first four only. */
#ifndef SMG_RUNNING_H
#define SMG_RUNNING_H
#include "../exact_math.h"
#include "sum.h"

enum { CARRIED_ROWS = 4, CARRIED_TERMS = 13 };

static inline double carried(const float *from) {
    const double sum = (double)from[0] + (double)from[1] + (double)from[2];
    return from[3] != 0.0f ? sum * 0x1p64 : sum;
}

static inline void carry(float *to, double sum) {
    const int large = sum > 0x1p127 || sum < -0x1p127;
    double rest = large ? sum * 0x1p-64 : sum;
    for (int i = 0; i < 3; i++) {
        to[i] = smg_to_float(rest);
        rest -= (double)to[i];
        if (!(rest - rest == 0.0)) { rest = 0.0; /* infinite or NaN: there are no further digits */ }
    }
    to[3] = large ? 1.0f : 0.0f;
}

/* Terms of a loss that are summed in blocks, wherever a micro-batch ends. */
typedef struct {
    double sum;
    float lane[8];
    int32_t filled;
} Terms;

static inline Terms terms_of(const float *from) {
    Terms t = {.sum = carried(from)};
    memcpy(t.lane, from + 4, sizeof t.lane);
    t.filled = from[12] > 0.0f && from[12] < (float)SMG_BLOCK ? (int32_t)from[12] : 0;
    return t;
}

static inline void terms_add(Terms *t, float term) {
    t->lane[t->filled & 7] += term;
    if (++t->filled == SMG_BLOCK) {
        t->sum += (double)smg_lanes8(t->lane);
        memset(t->lane, 0, sizeof t->lane);
        t->filled = 0;
    }
}

/* Carries the terms on; returns their sum so far. */
static inline double terms_end(const Terms *t, float *to) {
    carry(to, t->sum);
    memcpy(to + 4, t->lane, sizeof t->lane);
    to[12] = (float)t->filled;
    return t->filled ? t->sum + (double)smg_lanes8(t->lane) : t->sum;
}
#endif
