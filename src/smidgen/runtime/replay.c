/* See replay.h. The buffer:
 *
 *   0  samples held · samples offered · draws done · 0
 *  16  for each class: samples offered, then for each class: samples held
 *      then for each sample its parts: [scale] numbers, filled up to four bytes
 *
 * Counters wrap around. The two of random numbers only have to differ from each other; offered ones stop at the top. */
#include "replay.h"
#include <string.h>
#include "contraction.h"
#include "hash.h"

enum { HELD, OFFERED, DRAWN, ZERO, HEADER_WORDS };
enum { ADD_KEY = 0x52504c41, DRAW_KEY = 0x52504c44 };
#define NOWHERE  0xffffffffu
#define INFINITE 0x7f800000u
#define LEAST    0x04000000u /* bits of 2^-119: a smaller range would have a scale that is not normal */
#define MOST     0x7c010203u /* bits of the largest scale of which 127 are still finite */
#define ROUNDER  12582912.0f /* 1.5 * 2^23: added and taken away it rounds to a whole number, half to even */

static uint32_t class_count(const SmgReplay *r) { return r->classes ? r->classes : 1; }
static uint32_t *words_of(void *memory) { return (uint32_t *)memory; }
static const uint32_t *look(const void *memory) { return (const uint32_t *)memory; }

/* Bytes of one part of a sample in the buffer. */
static uint64_t part_bytes(SmgReplayPart part) {
    const uint64_t elements = part.elements;
    if (part.kind == SMG_REPLAY_F32) { return 4 * elements; }
    const uint64_t bytes = (elements + 3) / 4 * 4;
    return part.kind == SMG_REPLAY_INT8 ? 4 + bytes : bytes;
}

static uint64_t sample_bytes(const SmgReplay *r) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->parts; i++) { sum += part_bytes(r->part[i]); }
    return sum;
}

uint32_t smg_replay_bytes(const SmgReplay *r) {
    if (!r->samples || !r->parts || r->parts > SMG_REPLAY_PARTS) { return 0; }
    for (uint32_t i = 0; i < r->parts; i++) {
        if (!r->part[i].elements || r->part[i].kind > SMG_REPLAY_RAW) { return 0; }
    }
    const SmgReplayPart target = r->part[r->parts - 1];
    if (r->classes && (target.kind != SMG_REPLAY_RAW || target.elements != 4 || r->samples < r->classes)) { return 0; }
    const uint64_t head = 4 * (uint64_t)HEADER_WORDS + 8 * (uint64_t)class_count(r), each = sample_bytes(r);
    if (head >= UINT32_MAX || each > (UINT32_MAX - head) / r->samples) { return 0; }
    return (uint32_t)(head + each * r->samples);
}

uint32_t smg_replay_row_bytes(const SmgReplay *r, uint32_t part) {
    return r->part[part].kind == SMG_REPLAY_RAW ? r->part[part].elements : 4 * r->part[part].elements;
}

uint32_t smg_replay_rows_bytes(const SmgReplay *r, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < r->parts; i++) { sum += (n * smg_replay_row_bytes(r, i) + 3) / 4 * 4; }
    return sum;
}

void smg_replay_clear(const SmgReplay *r, void *memory) { memset(memory, 0, smg_replay_bytes(r)); }

static uint32_t *seen(const SmgReplay *r, void *memory) {
    (void)r;
    return words_of(memory) + HEADER_WORDS;
}
static uint32_t *held_by_class(const SmgReplay *r, void *memory) {
    return words_of(memory) + HEADER_WORDS + class_count(r);
}
static const uint8_t *sample_at(const SmgReplay *r, const void *memory, uint32_t place) {
    const size_t head = 4 * (size_t)(HEADER_WORDS + 2 * class_count(r));
    return (const uint8_t *)memory + head + (size_t)place * (size_t)sample_bytes(r);
}

uint32_t smg_replay_held(const SmgReplay *r, const void *memory) {
    const uint32_t held = look(memory)[HELD];
    return held <= r->samples ? held : 0;
}
uint32_t smg_replay_held_of(const SmgReplay *r, const void *memory, uint32_t number) {
    return number < class_count(r) ? look(memory)[HEADER_WORDS + class_count(r) + number] : 0;
}
uint32_t smg_replay_seen_of(const SmgReplay *r, const void *memory, uint32_t number) {
    return number < class_count(r) ? look(memory)[HEADER_WORDS + number] : 0;
}

/* The class by a target, or what is no class. */
static uint32_t class_by(const SmgReplay *r, const void *target) {
    uint32_t label;
    if (!r->classes) { return 0; }
    memcpy(&label, target, sizeof label);
    return label < r->classes ? label : NOWHERE;
}
static uint32_t class_at(const SmgReplay *r, const void *memory, uint32_t place) {
    const SmgReplayPart target = r->part[r->parts - 1];
    return class_by(r, sample_at(r, memory, place) + sample_bytes(r) - part_bytes(target));
}

/* -- numbers ------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(const void *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* The bits of the largest magnitude among these floats: they are ordered as whole numbers are. */
static uint32_t largest(const uint8_t *from, uint32_t elements) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < elements; i++) {
        const uint32_t bits = bits_of(from + 4 * (size_t)i) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

static void put_int8(uint8_t *to, const uint8_t *from, uint32_t elements) {
    const uint32_t top = largest(from, elements);
    float most = 0.0f;
    if (top >= LEAST) { memcpy(&most, &top, sizeof most); }
    float scale = most / 127.0f;
    if (bits_of(&scale) > MOST) {
        const uint32_t limit = MOST;
        memcpy(&scale, &limit, sizeof scale);
    }
    memcpy(to, &scale, sizeof scale);
    for (uint32_t i = 0; i < elements; i++) {
        float x, q = 0.0f;
        memcpy(&x, from + 4 * (size_t)i, sizeof x);
        if (top >= LEAST) { q = (x / scale + ROUNDER) - ROUNDER; }
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        to[4 + i] = (uint8_t)(int8_t)q;
    }
}

static void put_sample(const SmgReplay *r, void *memory, uint32_t place, const void *const *parts) {
    uint8_t *to = (uint8_t *)memory + (sample_at(r, memory, place) - (const uint8_t *)memory);
    for (uint32_t i = 0; i < r->parts; i++) {
        const SmgReplayPart part = r->part[i];
        if (part.kind == SMG_REPLAY_INT8) {
            put_int8(to, (const uint8_t *)parts[i], part.elements);
        } else {
            memcpy(to, parts[i], smg_replay_row_bytes(r, i));
        }
        to += part_bytes(part);
    }
}

void smg_replay_read(const SmgReplay *r, const void *memory, uint32_t place, uint32_t part, uint32_t offset, void *to,
                     uint32_t bytes) {
    const uint8_t *from = sample_at(r, memory, place);
    for (uint32_t i = 0; i < part; i++) { from += part_bytes(r->part[i]); }
    if (r->part[part].kind != SMG_REPLAY_INT8) {
        memcpy(to, from + offset, bytes);
        return;
    }
    float scale;
    memcpy(&scale, from, sizeof scale);
    for (uint32_t i = 0; i < bytes / 4; i++) {
        const float x = (float)(int8_t)from[4 + offset / 4 + i] * scale;
        memcpy((uint8_t *)to + 4 * (size_t)i, &x, sizeof x);
    }
}

/* -- which sample -------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t a, b;
} Stream;

static Stream stream_of(uint32_t seed, uint32_t step, uint32_t key) {
    const Stream s = {smg_stream_a(seed, step, key), smg_stream_b(seed, step, key)};
    return s;
}

/* A whole number below `bound`, each as likely as the others but for one part in 2^32 / bound. */
static uint32_t below(Stream s, uint32_t index, uint32_t bound) {
    return (uint32_t)((uint64_t)smg_bits(s.a, s.b, index) * bound >> 32);
}

static uint32_t most_of_a_class(const SmgReplay *r, const void *memory) {
    uint32_t most = 0;
    for (uint32_t c = 0; c < class_count(r); c++) {
        const uint32_t held = smg_replay_held_of(r, memory, c);
        most = held > most ? held : most;
    }
    return most;
}

/* The n-th place whose class is `own`, or, if that is NOWHERE, one of the largest classes. */
static uint32_t nth(const SmgReplay *r, const void *memory, uint32_t n, uint32_t own, uint32_t most) {
    for (uint32_t place = 0; place < r->samples; place++) {
        const uint32_t c = class_at(r, memory, place);
        const int counts = own != NOWHERE ? c == own : c != NOWHERE && smg_replay_held_of(r, memory, c) == most;
        if (counts && n-- == 0) { return place; }
    }
    return NOWHERE;
}

/* Where a sample of class `own` goes in a full buffer, or NOWHERE. A class that gave up samples is a uniform choice of
 * all it was offered only if it goes on as a reservoir, so only one that kept them all may grow. */
static uint32_t chosen(const SmgReplay *r, const void *memory, uint32_t own, Stream s) {
    const uint32_t held = smg_replay_held_of(r, memory, own), offered = smg_replay_seen_of(r, memory, own);
    const uint32_t most = most_of_a_class(r, memory);
    if (held < most && held + 1 >= offered) {
        uint32_t classes = 0;
        for (uint32_t c = 0; c < class_count(r); c++) { classes += smg_replay_held_of(r, memory, c) == most; }
        return nth(r, memory, below(s, 0, classes * most), NOWHERE, most);
    }
    const uint32_t n = below(s, 0, offered);
    return n < held ? nth(r, memory, n, own, most) : NOWHERE;
}

SmgReplayAdded smg_replay_add(const SmgReplay *r, void *memory, const void *const *parts) {
    uint32_t *head = words_of(memory);
    const uint32_t own = class_by(r, parts[r->parts - 1]);
    if (own == NOWHERE) { return SMG_REPLAY_LABEL; }
    if (head[HELD] > r->samples) { return SMG_REPLAY_DAMAGED; }
    for (uint32_t i = 0; i < r->parts; i++) {
        if (r->part[i].kind == SMG_REPLAY_RAW) { continue; }
        if (largest((const uint8_t *)parts[i], r->part[i].elements) >= INFINITE) { return SMG_REPLAY_NOT_FINITE; }
    }
    uint32_t *offered = seen(r, memory) + own, *held = held_by_class(r, memory);
    const Stream s = stream_of(r->seed, head[OFFERED]++, ADD_KEY);
    *offered += *offered < UINT32_MAX;
    if (head[HELD] < r->samples) {
        put_sample(r, memory, head[HELD]++, parts);
        held[own]++;
        return SMG_REPLAY_KEPT;
    }
    const uint32_t place = chosen(r, memory, own, s);
    if (place == NOWHERE) { return SMG_REPLAY_PASSED; }
    const uint32_t gone = class_at(r, memory, place);
    if (gone == NOWHERE) { return SMG_REPLAY_DAMAGED; }
    put_sample(r, memory, place, parts);
    held[gone]--;
    held[own]++;
    return SMG_REPLAY_KEPT;
}

/* The i-th of k among m places, by selection sampling (Knuth's algorithm S): every set of k is as likely. */
static uint32_t selected(Stream s, uint32_t m, uint32_t k, uint32_t i) {
    uint32_t place = 0;
    for (uint32_t left = k; place < m - 1; place++) {
        if (below(s, place, m - place) >= left) { continue; }
        if (i-- == 0) { break; }
        left--;
    }
    return place;
}

uint32_t smg_replay_place(const SmgReplay *r, const void *memory, uint32_t k, uint32_t i) {
    const uint32_t m = smg_replay_held(r, memory);
    if (!m) { return 0; }
    if (i < k / m * m) { return i % m; }
    return selected(stream_of(r->seed, look(memory)[DRAWN], DRAW_KEY), m, k % m, i % m);
}

void smg_replay_next(const SmgReplay *r, void *memory) {
    (void)r;
    words_of(memory)[DRAWN]++;
}

uint32_t smg_replay_draw(const SmgReplay *r, void *memory, uint32_t k, void *const *rows) {
    if (!smg_replay_held(r, memory) || !k) { return 0; }
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t place = smg_replay_place(r, memory, k, i);
        for (uint32_t part = 0; part < r->parts; part++) {
            const uint32_t bytes = smg_replay_row_bytes(r, part);
            smg_replay_read(r, memory, place, part, 0, (uint8_t *)rows[part] + (size_t)i * bytes, bytes);
        }
    }
    smg_replay_next(r, memory);
    return k;
}

uint32_t smg_replay_share(const SmgReplay *r, const void *memory, uint32_t n, int split) {
    const uint32_t held = smg_replay_held(r, memory), old = r->step > r->fresh ? r->step - r->fresh : 0;
    uint64_t k = r->fresh ? (uint64_t)n * old / r->fresh : 0;
    const uint32_t room = r->step > n ? r->step - n : 0;
    if (!split && k > room) { k = room; }
    return k > held ? held : (uint32_t)k;
}

/* -- what was read from somewhere ---------------------------------------------------------------------------------- */

static const char *check_sample(const SmgReplay *r, const uint8_t *at) {
    for (uint32_t i = 0; i < r->parts; i++) {
        const SmgReplayPart part = r->part[i];
        if (part.kind == SMG_REPLAY_F32 && largest(at, part.elements) >= INFINITE) {
            return "a sample of the replay buffer holds NaN or an infinite number";
        }
        if (part.kind == SMG_REPLAY_INT8) {
            if (bits_of(at) > MOST) { return "a scale of the replay buffer is not from zero to the largest"; }
            for (uint32_t k = 0; k < part.elements; k++) {
                if (at[4 + k] == 0x80) { return "a number of the replay buffer is below -127"; }
            }
        }
        at += part_bytes(part);
    }
    return NULL;
}

const char *smg_replay_check(const SmgReplay *r, const void *memory) {
    const uint32_t *head = look(memory);
    uint64_t sum = 0;
    if (head[HELD] > r->samples || head[ZERO]) { return "the replay buffer holds more samples than it has room for"; }
    for (uint32_t c = 0; c < class_count(r); c++) {
        const uint32_t held = smg_replay_held_of(r, memory, c);
        if (held > smg_replay_seen_of(r, memory, c)) { return "the replay buffer holds more of a class than it saw"; }
        uint32_t found = 0;
        for (uint32_t place = 0; place < head[HELD]; place++) { found += class_at(r, memory, place) == c; }
        if (found != held) { return "the labels of the replay buffer do not fit its counts"; }
        sum += held;
    }
    if (sum != head[HELD]) { return "a label of the replay buffer is no class"; }
    for (uint32_t place = 0; place < head[HELD]; place++) {
        const char *wrong = check_sample(r, sample_at(r, memory, place));
        if (wrong) { return wrong; }
    }
    return NULL;
}
