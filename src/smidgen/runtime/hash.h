/* Random bits without state: a hash of (seed, step, key, index). ops/random.py holds the same integer arithmetic; both
 * must change together. */
#ifndef SMG_HASH_H
#define SMG_HASH_H
#include <stdint.h>

/* The finalizer of MurmurHash3: every bit of h reaches every bit of the result. */
static inline uint32_t smg_mix(uint32_t h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* Two words from (seed, step, key), mixed in different orders: streams coincide only if both agree. */
static inline uint32_t smg_stream_a(uint32_t seed, uint32_t step, uint32_t key) {
    return smg_mix(smg_mix(smg_mix(seed ^ 0x9e3779b9u) ^ step) ^ key);
}
static inline uint32_t smg_stream_b(uint32_t seed, uint32_t step, uint32_t key) {
    return smg_mix(smg_mix(smg_mix(seed ^ 0x7f4a7c15u) ^ key) ^ step);
}

/* 32 random bits for each index of the stream of two such words. */
static inline uint32_t smg_random(uint32_t a, uint32_t b, uint32_t index) {
    return smg_mix((index ^ a) * 0x9e3779b1u + b);
}
#endif
