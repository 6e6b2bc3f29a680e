/* Randomness without state: every element hashes (seed, step, key, its index in the batch), so a recomputed or split
 * dropout draws the same mask.
 * counter: int32[2] = (seed, step). keep if the upper 24 bits of the hash are >= cut, cut = p * 2^24. */
#include "../hash.h"
#include "../kernel.h"

#define BLOCK 64

/* How a kernel draws: the node of origin, the threshold and the gain of what is kept, 1 / (1 - p). Ends each block. */
typedef struct {
    int32_t key, cut;
    float scale;
} Draw;

typedef struct {
    uint32_t a, b, cut;
    float scale;
} Stream;

static Stream stream_of(const int32_t *counter, Draw draw) {
    const uint32_t seed = (uint32_t)counter[0], step = (uint32_t)counter[1], key = (uint32_t)draw.key;
    const Stream s = {smg_stream_a(seed, step, key), smg_stream_b(seed, step, key), (uint32_t)draw.cut, draw.scale};
    return s;
}
static inline float gain(const Stream *s, uint32_t index) {
    return smg_random(s->a, s->b, index) >> 8 >= s->cut ? s->scale : 0.0f;
}

/* Each of N elements has a draw of its own, numbered through the batch. */
typedef struct {
    int32_t N, per_sample;
    Draw draw;
} Dropout;
UNPACK(dropout_of, Dropout)

EXTENT(dropout_f32) {
    const Dropout v = dropout_of(p);
    if (v.N < 0 || v.draw.cut < 0) { return -1; }
    need[0] = need[1] = (uint64_t)v.N * 4;
    need[2] = 8;
    return 0;
}
KERNEL(dropout_f32, "oii", PARAMS(Dropout)) {
    const Dropout v = dropout_of(c->p);
    float *y = OUT(0);
    const float *x = IN(1);
    const Stream s = stream_of(IN_AS(int32_t, 2), v.draw);
    const uint32_t first = (uint32_t)c->run.index * (uint32_t)v.per_sample, N = (uint32_t)v.N;
    for (uint32_t i = 0; i < N; i++) { y[i] = x[i] * gain(&s, first + i); }
    return SMG_NO_FAULT;
}

/* x is [S][M][C]; one draw for each of S*C, the same for all M. A sample has per_sample rows of S. */
typedef struct {
    int32_t S, M, C, per_sample;
    Draw draw;
} FeatureDropout;
UNPACK(feature_dropout_of, FeatureDropout)

EXTENT(feature_dropout_f32) {
    const FeatureDropout v = feature_dropout_of(p);
    if (v.S < 0 || v.M < 0 || v.C < 0 || v.draw.cut < 0) { return -1; }
    need[0] = need[1] = smg_mul(smg_mul((uint64_t)v.S * 4, (uint64_t)v.M), (uint64_t)v.C);
    need[2] = 8;
    return 0;
}
KERNEL(feature_dropout_f32, "oii", PARAMS(FeatureDropout)) {
    const FeatureDropout v = feature_dropout_of(c->p);
    const int32_t S = v.S, M = v.M, C = v.C;
    const Stream s = stream_of(IN_AS(int32_t, 2), v.draw);
    const uint32_t first = (uint32_t)c->run.index * (uint32_t)v.per_sample;
    float gains[BLOCK];
    if (M == 0 || C == 0) { return SMG_NO_FAULT; /* nothing to write, but S * C draws might take forever */ }
    for (int32_t row = 0; row < S; row++) {
        const size_t plane = (size_t)row * (size_t)M * (size_t)C;
        for (int32_t at = 0, len; at < C; at += len) {
            len = C - at < BLOCK ? C - at : BLOCK;
            for (int32_t i = 0; i < len; i++) {
                gains[i] = gain(&s, (first + (uint32_t)row) * (uint32_t)C + (uint32_t)(at + i));
            }
            float *y = OUT(0) + plane + at;
            const float *x = IN(1) + plane + at;
            for (int32_t m = 0; m < M; m++, y += C, x += C) {
                for (int32_t i = 0; i < len; i++) { y[i] = x[i] * gains[i]; }
            }
        }
    }
    return SMG_NO_FAULT;
}
