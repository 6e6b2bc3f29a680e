/* Randomness without state: every element hashes (seed, step, key, its index in the batch), so a recomputed or split
 * dropout draws the same mask. ops/random.py holds the same integer arithmetic; both must change together.
 * counter: int32[2] = (seed, step). keep if the upper 24 bits of the hash are >= cut, cut = p * 2^24. */
#include "../kernel.h"

#define BLOCK 64

static inline uint32_t mix(uint32_t h) {
    h ^= h >> 16, h *= 0x85ebca6bu;
    h ^= h >> 13, h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* Two words from (seed, step, key), mixed in different orders: streams coincide only if both agree. */
typedef struct {
    uint32_t a, b, cut;
    float scale;
} Stream;

static Stream stream_of(const int32_t *counter, int32_t key, int32_t cut, float scale) {
    const uint32_t seed = (uint32_t)counter[0], step = (uint32_t)counter[1], k = (uint32_t)key;
    const Stream s = {mix(mix(mix(seed ^ 0x9e3779b9u) ^ step) ^ k), mix(mix(mix(seed ^ 0x7f4a7c15u) ^ k) ^ step),
                      (uint32_t)cut, scale};
    return s;
}
static inline float gain(const Stream *s, uint32_t index) {
    const uint32_t h = mix((index ^ s->a) * 0x9e3779b1u + s->b);
    return h >> 8 >= s->cut ? s->scale : 0.0f;
}

/* p: N, elements of one sample, key, cut, scale = 1/(1-p). */
EXTENT(dropout_f32) {
    if (p[0] < 0 || p[3] < 0) { return -1; }
    need[0] = need[1] = (uint64_t)p[0] * 4, need[2] = 8;
    return 0;
}
KERNEL(dropout_f32, "oii", 5) {
    float *y = OUT(0);
    const float *x = IN(1);
    const Stream s = stream_of(IN_AS(int32_t, 2), P(2), P(3), PF(4));
    const uint32_t first = (uint32_t)c->run.index * (uint32_t)P(1), N = (uint32_t)P(0);
    for (uint32_t i = 0; i < N; i++) { y[i] = x[i] * gain(&s, first + i); }
    return NULL;
}

/* x is [S, M, C]; one draw for each of S*C, the same for all M. p: S, M, C, rows of S in one sample, key, cut, scale. */
EXTENT(feature_dropout_f32) {
    if (p[0] < 0 || p[1] < 0 || p[2] < 0 || p[5] < 0) { return -1; }
    need[0] = need[1] = smg_mul(smg_mul((uint64_t)p[0] * 4, (uint64_t)p[1]), (uint64_t)p[2]), need[2] = 8;
    return 0;
}
KERNEL(feature_dropout_f32, "oii", 7) {
    const int32_t S = P(0), M = P(1), C = P(2);
    const Stream s = stream_of(IN_AS(int32_t, 2), P(4), P(5), PF(6));
    const uint32_t first = (uint32_t)c->run.index * (uint32_t)P(3);
    float gains[BLOCK];
    if (M == 0 || C == 0) { return NULL; /* nothing to write, but S * C draws might take forever */ }
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
    return NULL;
}
