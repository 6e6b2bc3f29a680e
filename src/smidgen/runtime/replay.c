/* See replay.h. The buffer:
 *
 *   0  samples held · samples offered · draws done · 0
 *  16  for each class: samples offered, then for each class: samples held
 *      then the samples (replay_rows.c), or, where those are in PAGE, the number of the class of each
 *
 * Counters wrap around. The two of random numbers only have to differ from each other; offered ones stop at the top. */
#include <string.h>
#include "hash.h"
#include "replay_rows.h"

enum { ADD_KEY = 0x52504c41, DRAW_KEY = 0x52504c44 };

static uint32_t *words_of(void *memory) { return (uint32_t *)memory; }
static const uint32_t *look(const void *memory) { return (const uint32_t *)memory; }

uint32_t smg_replay_bytes(const SmgReplay *r) {
    if (!r->samples || !r->parts || r->parts > SMG_REPLAY_PARTS || r->outside > SMG_PAGES) { return 0; }
    for (uint32_t i = 0; i < r->parts; i++) {
        if (!r->part[i].elements || r->part[i].kind > SMG_REPLAY_RAW) { return 0; }
    }
    const SmgReplayPart target = r->part[r->parts - 1];
    if (r->classes && (target.kind != SMG_REPLAY_RAW || target.elements != 4 || r->samples < r->classes)) { return 0; }
    const uint64_t head = smg_index_bytes(r), each = smg_stored_bytes(r);
    if (head >= UINT32_MAX || each + 4 > (UINT32_MAX - head) / r->samples) { return 0; }
    return (uint32_t)(smg_is_outside(r) ? head : head + each * r->samples);
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
    return words_of(memory) + SMG_REPLAY_WORDS;
}
static uint32_t *held_by_class(const SmgReplay *r, void *memory) {
    return words_of(memory) + SMG_REPLAY_WORDS + smg_class_count(r);
}
uint32_t smg_replay_held(const SmgReplay *r, const void *memory) {
    const uint32_t held = look(memory)[SMG_REPLAY_HELD];
    return held <= r->samples ? held : 0;
}
uint32_t smg_replay_held_of(const SmgReplay *r, const void *memory, uint32_t number) {
    return number < smg_class_count(r) ? look(memory)[SMG_REPLAY_WORDS + smg_class_count(r) + number] : 0;
}
uint32_t smg_replay_seen_of(const SmgReplay *r, const void *memory, uint32_t number) {
    return number < smg_class_count(r) ? look(memory)[SMG_REPLAY_WORDS + number] : 0;
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
    return (uint32_t)((uint64_t)smg_random(s.a, s.b, index) * bound >> 32);
}

static uint32_t most_of_a_class(const SmgReplay *r, const void *memory) {
    uint32_t most = 0;
    for (uint32_t c = 0; c < smg_class_count(r); c++) {
        const uint32_t held = smg_replay_held_of(r, memory, c);
        most = held > most ? held : most;
    }
    return most;
}

/* The n-th place whose class is `own`, or, if that is SMG_REPLAY_NOWHERE, one of the largest classes. */
static uint32_t nth(const SmgReplay *r, const void *memory, uint32_t n, uint32_t own, uint32_t most) {
    for (uint32_t place = 0; place < r->samples; place++) {
        const uint32_t c = smg_class_at(r, memory, place);
        const int counts =
            own != SMG_REPLAY_NOWHERE ? c == own : c != SMG_REPLAY_NOWHERE && smg_replay_held_of(r, memory, c) == most;
        if (counts && n-- == 0) { return place; }
    }
    return SMG_REPLAY_NOWHERE;
}

/* Where a sample of class `own` goes in a full buffer, or SMG_REPLAY_NOWHERE. A class that gave up samples is a uniform
 * choice of all it was offered only if it goes on as a reservoir, so only one that kept them all may grow. */
static uint32_t chosen(const SmgReplay *r, const void *memory, uint32_t own, Stream s) {
    const uint32_t held = smg_replay_held_of(r, memory, own), offered = smg_replay_seen_of(r, memory, own);
    const uint32_t most = most_of_a_class(r, memory);
    if (held < most && held + 1 >= offered) {
        uint32_t classes = 0;
        for (uint32_t c = 0; c < smg_class_count(r); c++) { classes += smg_replay_held_of(r, memory, c) == most; }
        return nth(r, memory, below(s, 0, classes * most), SMG_REPLAY_NOWHERE, most);
    }
    const uint32_t n = below(s, 0, offered);
    return n < held ? nth(r, memory, n, own, most) : SMG_REPLAY_NOWHERE;
}

/* Puts it at a place, in the stead of one of class `gone`, if there is one. */
static const char *keep_at(const SmgReplay *r, void *memory, const SmgPager *pager, uint32_t place, uint32_t gone,
                           const void *const *parts) {
    uint32_t *held = held_by_class(r, memory);
    const char *why = smg_put_sample(r, memory, pager, place, parts);
    if (why) { return why; }
    if (gone != SMG_REPLAY_NOWHERE) { held[gone]--; }
    held[smg_class_by(r, parts[r->parts - 1])]++;
    return NULL;
}

SmgReplayAdded smg_replay_add(const SmgReplay *r, void *memory, const SmgPager *pager, const void *const *parts) {
    uint32_t *head = words_of(memory);
    const uint32_t own = smg_class_by(r, parts[r->parts - 1]);
    if (own == SMG_REPLAY_NOWHERE) { return SMG_REPLAY_LABEL; }
    if (head[SMG_REPLAY_HELD] > r->samples) { return SMG_REPLAY_DAMAGED; }
    for (uint32_t i = 0; i < r->parts; i++) {
        if (r->part[i].kind == SMG_REPLAY_RAW) { continue; }
        if (smg_largest((const uint8_t *)parts[i], r->part[i].elements) >= SMG_REPLAY_INFINITE) {
            return SMG_REPLAY_NOT_FINITE;
        }
    }
    uint32_t *offered = seen(r, memory) + own;
    const uint32_t before = *offered;
    const Stream s = stream_of(r->seed, head[SMG_REPLAY_OFFERED]++, ADD_KEY);
    *offered += *offered < UINT32_MAX;
    const int is_full = head[SMG_REPLAY_HELD] == r->samples;
    const uint32_t place = is_full ? chosen(r, memory, own, s) : head[SMG_REPLAY_HELD];
    if (place == SMG_REPLAY_NOWHERE) { return SMG_REPLAY_PASSED; }
    const uint32_t gone = is_full ? smg_class_at(r, memory, place) : SMG_REPLAY_NOWHERE;
    if (is_full && gone == SMG_REPLAY_NOWHERE) { return SMG_REPLAY_DAMAGED; }
    if (keep_at(r, memory, pager, place, gone, parts)) { /* it was not offered, then */
        head[SMG_REPLAY_OFFERED]--;
        *offered = before;
        return SMG_REPLAY_NOT_WRITTEN;
    }
    head[SMG_REPLAY_HELD] += !is_full;
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
    return selected(stream_of(r->seed, look(memory)[SMG_REPLAY_DRAWN], DRAW_KEY), m, k % m, i % m);
}

void smg_replay_next(const SmgReplay *r, void *memory) {
    (void)r;
    words_of(memory)[SMG_REPLAY_DRAWN]++;
}

const char *smg_replay_draw(const SmgReplay *r, void *memory, const SmgPager *pager, uint32_t k, void *const *rows) {
    if (!smg_replay_held(r, memory) && k) { return "the replay buffer is empty"; }
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t place = smg_replay_place(r, memory, k, i);
        const char *why = smg_is_outside(r) ? smg_check_sample(r, memory, pager, place) : NULL;
        for (uint32_t part = 0; part < r->parts && !why; part++) {
            const uint32_t bytes = smg_replay_row_bytes(r, part);
            why = smg_replay_read(r, memory, pager, place, part, 0, (uint8_t *)rows[part] + (size_t)i * bytes, bytes);
        }
        if (why) { return why; }
    }
    if (k) { smg_replay_next(r, memory); }
    return NULL;
}

const char *smg_replay_look(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t k) {
    const char *wrong = NULL;
    if (!smg_is_outside(r) || !smg_replay_held(r, memory)) { return NULL; }
    for (uint32_t i = 0; i < k && !wrong; i++) {
        wrong = smg_check_sample(r, memory, pager, smg_replay_place(r, memory, k, i));
    }
    return wrong;
}

uint32_t smg_replay_share(const SmgReplay *r, const void *memory, uint32_t n, int split) {
    const uint32_t held = smg_replay_held(r, memory), old = r->step > r->fresh ? r->step - r->fresh : 0;
    uint64_t k = r->fresh ? (uint64_t)n * old / r->fresh : 0;
    const uint32_t room = r->step > n ? r->step - n : 0;
    if (!split && k > room) { k = room; }
    return k > held ? held : (uint32_t)k;
}

/* -- what was read from somewhere ---------------------------------------------------------------------------------- */

const char *smg_replay_check(const SmgReplay *r, const void *memory, const SmgPager *pager) {
    const uint32_t *head = look(memory);
    uint64_t sum = 0;
    if (head[SMG_REPLAY_HELD] > r->samples || head[SMG_REPLAY_ZERO]) {
        return "the replay buffer holds more samples than it has room for";
    }
    for (uint32_t c = 0; c < smg_class_count(r); c++) {
        const uint32_t held = smg_replay_held_of(r, memory, c);
        if (held > smg_replay_seen_of(r, memory, c)) { return "the replay buffer holds more of a class than it saw"; }
        uint32_t found = 0;
        for (uint32_t place = 0; place < head[SMG_REPLAY_HELD]; place++) {
            found += smg_class_at(r, memory, place) == c;
        }
        if (found != held) { return "the labels of the replay buffer do not fit its counts"; }
        sum += held;
    }
    if (sum != head[SMG_REPLAY_HELD]) { return "a label of the replay buffer is no class"; }
    for (uint32_t place = 0; place < head[SMG_REPLAY_HELD]; place++) {
        const char *wrong = smg_check_sample(r, memory, pager, place);
        if (wrong) { return wrong; }
    }
    return NULL;
}
