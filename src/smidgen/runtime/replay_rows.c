/* See replay_rows.h. A sample is its parts, one after the other: [scale] numbers, filled up to four bytes. In PAGE the
 * CRC-32 of all of it follows. Whole blocks of PAGE are read and written wherever a sample has them. */
#include "replay_rows.h"
#include <string.h>
#include "contraction.h"
#include "crc.h"

enum { CHECKSUM_BYTES = 4, FEW = 64 };
#define LEAST   0x04000000u /* bits of 2^-119: a smaller range would have a scale that is not normal */
#define MOST    0x7c010203u /* bits of the largest scale of which 127 are still finite */
#define ROUNDER 12582912.0f /* 1.5 * 2^23: added and taken away it rounds to a whole number, half to even */

static const char NO_PAGER[] = "the samples of the replay buffer are in pages: call smg_set_pager first";

/* -- sizes and places ---------------------------------------------------------------------------------------------- */

static uint64_t part_bytes(SmgReplayPart part) {
    const uint64_t elements = part.elements;
    if (part.kind == SMG_REPLAY_F32) { return 4 * elements; }
    const uint64_t bytes = (elements + 3) / 4 * 4;
    return part.kind == SMG_REPLAY_INT8 ? 4 + bytes : bytes;
}

uint64_t smg_stored_bytes(const SmgReplay *r) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->parts; i++) { sum += part_bytes(r->part[i]); }
    return sum;
}

/* Of the number of a class in the index; 0 where all samples are alike. */
static uint32_t label_bytes(const SmgReplay *r) {
    if (!r->classes) { return 0; }
    if (r->classes <= 0x100) { return 1; }
    return r->classes <= 0x10000 ? 2 : 4;
}

static uint64_t labels_at(const SmgReplay *r) {
    return 4 * (uint64_t)SMG_REPLAY_WORDS + 8 * (uint64_t)smg_class_count(r);
}

uint64_t smg_index_bytes(const SmgReplay *r) {
    if (!smg_is_outside(r)) { return labels_at(r); }
    return (labels_at(r) + (uint64_t)r->samples * label_bytes(r) + 3) / 4 * 4;
}

uint32_t smg_replay_page_bytes(const SmgReplay *r) {
    if (!smg_is_outside(r) || !smg_replay_bytes(r)) { return 0; }
    return (uint32_t)((smg_stored_bytes(r) + CHECKSUM_BYTES) * r->samples);
}

static size_t page_of(const SmgReplay *r, uint32_t place) {
    return r->page + (size_t)place * (size_t)(smg_stored_bytes(r) + CHECKSUM_BYTES);
}

static size_t offset_of(const SmgReplay *r, uint32_t place) {
    return (size_t)smg_index_bytes(r) + (size_t)place * (size_t)smg_stored_bytes(r);
}

uint32_t smg_class_by(const SmgReplay *r, const void *target) {
    uint32_t label;
    if (!r->classes) { return 0; }
    memcpy(&label, target, sizeof label);
    return label < r->classes ? label : SMG_REPLAY_NOWHERE;
}

uint32_t smg_class_at(const SmgReplay *r, const void *memory, uint32_t place) {
    const uint8_t *at = (const uint8_t *)memory;
    if (!smg_is_outside(r)) {
        const uint64_t target = smg_stored_bytes(r) - part_bytes(r->part[r->parts - 1]);
        return smg_class_by(r, at + offset_of(r, place) + target);
    }
    uint32_t label = 0;
    at += labels_at(r) + (size_t)place * label_bytes(r);
    for (uint32_t i = 0; i < label_bytes(r); i++) { label |= (uint32_t)at[i] << 8 * i; }
    return smg_class_by(r, &label);
}

#if SMG_PAGES
static void note_class(const SmgReplay *r, void *memory, uint32_t place, const void *target) {
    uint8_t *at = (uint8_t *)memory + labels_at(r) + (size_t)place * label_bytes(r);
    const uint32_t label = smg_class_by(r, target);
    for (uint32_t i = 0; i < label_bytes(r); i++) { at[i] = (uint8_t)(label >> 8 * i); }
}
#endif

/* -- bytes, there and back ----------------------------------------------------------------------------------------- */

/* A sample on its way: to or from memory, or in blocks of PAGE. */
typedef struct {
    uint8_t *memory; /* NULL: in PAGE */
    const uint8_t *from;
    const SmgPager *pager;
    size_t at; /* of `piece`, in PAGE */
    uint64_t left;
    uint32_t filled, used, crc;
    const char *why;
#if SMG_PAGES
    uint8_t piece[SMG_PAGE_ALIGN];
#endif
} Way;

#if SMG_PAGES
static uint32_t to_the_end_of_a_block(size_t at) { return SMG_PAGE_ALIGN - (uint32_t)(at % SMG_PAGE_ALIGN); }

static void write_piece(Way *w) {
    if (w->filled && !w->why) { w->why = w->pager->write(w->pager->self, w->at, w->piece, w->filled); }
    w->at += w->filled;
    w->filled = 0;
}

static void read_piece(Way *w) {
    w->at += w->filled;
    w->used = 0;
    w->filled = to_the_end_of_a_block(w->at);
    if (w->filled > w->left) { w->filled = (uint32_t)w->left; }
    w->why = w->pager->read(w->pager->self, w->at, w->piece, w->filled);
    w->left -= w->filled;
    w->crc = smg_crc32(w->crc, w->piece, w->filled);
}
#endif

static void put_bytes(Way *w, const void *from, size_t bytes) {
    const uint8_t *at = (const uint8_t *)from;
    if (w->memory) {
        memcpy(w->memory, at, bytes);
        w->memory += bytes;
        return;
    }
#if SMG_PAGES
    while (bytes && !w->why) {
        const uint32_t room = to_the_end_of_a_block(w->at) - w->filled, count = bytes < room ? (uint32_t)bytes : room;
        memcpy(w->piece + w->filled, at, count);
        w->crc = smg_crc32(w->crc, at, count);
        w->filled += count;
        at += count;
        bytes -= count;
        if (count == room) { write_piece(w); }
    }
#endif
}

static void get_bytes(Way *w, uint8_t *to, size_t bytes) {
    if (w->from) {
        memcpy(to, w->from, bytes);
        w->from += bytes;
        return;
    }
#if SMG_PAGES
    while (bytes && !w->why) {
        if (w->used == w->filled) { read_piece(w); }
        const uint32_t some = w->filled - w->used, count = bytes < some ? (uint32_t)bytes : some;
        memcpy(to, w->piece + w->used, count);
        w->used += count;
        to += count;
        bytes -= count;
    }
#endif
}

/* -- numbers ------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(const void *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

uint32_t smg_largest(const uint8_t *from, uint32_t elements) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < elements; i++) {
        const uint32_t bits = bits_of(from + 4 * (size_t)i) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

static void put_int8(Way *w, const uint8_t *from, uint32_t elements) {
    const uint32_t top = smg_largest(from, elements);
    float most = 0.0f;
    if (top >= LEAST) { memcpy(&most, &top, sizeof most); }
    float scale = most / 127.0f;
    if (bits_of(&scale) > MOST) {
        const uint32_t limit = MOST;
        memcpy(&scale, &limit, sizeof scale);
    }
    put_bytes(w, &scale, sizeof scale);
    for (uint32_t done = 0, count; done < elements; done += count) {
        int8_t few[FEW];
        count = elements - done < FEW ? elements - done : FEW;
        for (uint32_t i = 0; i < count; i++) {
            float x, q = 0.0f;
            memcpy(&x, from + 4 * ((size_t)done + i), sizeof x);
            if (top >= LEAST) { q = (x / scale + ROUNDER) - ROUNDER; }
            q = q > 127.0f ? 127.0f : q;
            q = q < -127.0f ? -127.0f : q;
            few[i] = (int8_t)q;
        }
        put_bytes(w, few, count);
    }
}

const char *smg_put_sample(const SmgReplay *r, void *memory, const SmgPager *pager, uint32_t place,
                           const void *const *parts) {
    static const uint8_t zeros[4];
    Way w;
    w.why = NULL;
    w.crc = w.filled = 0;
    w.pager = pager;
    w.at = page_of(r, place);
    w.memory = smg_is_outside(r) ? NULL : (uint8_t *)memory + offset_of(r, place);
    if (smg_is_outside(r) && !pager) { return NO_PAGER; }
    for (uint32_t i = 0; i < r->parts; i++) {
        const SmgReplayPart part = r->part[i];
        if (part.kind == SMG_REPLAY_INT8) {
            put_int8(&w, (const uint8_t *)parts[i], part.elements);
        } else {
            put_bytes(&w, parts[i], smg_replay_row_bytes(r, i));
        }
        if (part.kind != SMG_REPLAY_F32) { put_bytes(&w, zeros, (4 - part.elements % 4) % 4); }
    }
#if SMG_PAGES
    if (smg_is_outside(r)) {
        const uint32_t crc = w.crc;
        put_bytes(&w, &crc, sizeof crc);
        write_piece(&w);
        if (!w.why) { note_class(r, memory, place, parts[r->parts - 1]); }
    }
#endif
    return w.why;
}

/* int8 numbers in the last quarter of the floats that they become. */
static void widen(uint8_t *to, uint32_t count, float scale) {
    const uint8_t *from = to + 3 * (size_t)count;
    for (uint32_t i = 0; i < count; i++) {
        const float x = (float)(int8_t)from[i] * scale; /* before its byte is written over */
        memcpy(to + 4 * (size_t)i, &x, sizeof x);
    }
}

const char *smg_replay_read(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t place,
                            uint32_t part, uint32_t offset, void *to, uint32_t bytes) {
    const int is_int8 = r->part[part].kind == SMG_REPLAY_INT8;
    const uint32_t skipped = is_int8 ? 4 + offset / 4 : offset, count = is_int8 ? bytes / 4 : bytes;
    uint8_t *into = is_int8 ? (uint8_t *)to + 3 * (size_t)count : (uint8_t *)to;
    size_t before = 0;
    float scale = 0.0f;
    for (uint32_t i = 0; i < part; i++) { before += (size_t)part_bytes(r->part[i]); }
    if (!smg_is_outside(r)) {
        const uint8_t *from = (const uint8_t *)memory + offset_of(r, place) + before;
        if (is_int8) { memcpy(&scale, from, sizeof scale); }
        memcpy(into, from + skipped, count);
    } else {
        const char *why = pager ? NULL : NO_PAGER;
        const size_t from = page_of(r, place) + before;
        if (!why && is_int8) { why = pager->read(pager->self, from, &scale, sizeof scale); }
        if (!why) { why = pager->read(pager->self, from + skipped, into, count); }
        if (why) { return why; }
    }
    if (is_int8) { widen((uint8_t *)to, count, scale); }
    return NULL;
}

/* -- what was read from somewhere ---------------------------------------------------------------------------------- */

static const char *check_part(Way *w, SmgReplayPart part) {
    uint64_t left = part_bytes(part), numbers = part.elements;
    uint8_t few[FEW];
    if (part.kind == SMG_REPLAY_INT8) {
        get_bytes(w, few, 4);
        if (!w->why && bits_of(few) > MOST) { return "a scale of the replay buffer is not from zero to the largest"; }
        left -= 4;
    }
    for (uint32_t count; left && !w->why; left -= count) {
        count = left < FEW ? (uint32_t)left : FEW;
        get_bytes(w, few, count);
        if (w->why) { break; }
        if (part.kind == SMG_REPLAY_F32 && smg_largest(few, count / 4) >= SMG_REPLAY_INFINITE) {
            return "a sample of the replay buffer holds NaN or an infinite number";
        }
        for (uint32_t k = 0; part.kind == SMG_REPLAY_INT8 && k < count && numbers; k++, numbers--) {
            if (few[k] == 0x80) { return "a number of the replay buffer is below -127"; }
        }
    }
    return w->why;
}

const char *smg_check_sample(const SmgReplay *r, const void *memory, const SmgPager *pager, uint32_t place) {
    const char *wrong = NULL;
    Way w;
    w.why = NULL;
    w.crc = w.filled = w.used = 0;
    w.pager = pager;
    w.at = page_of(r, place);
    w.left = smg_stored_bytes(r);
    w.from = smg_is_outside(r) ? NULL : (const uint8_t *)memory + offset_of(r, place);
    if (smg_is_outside(r) && !pager) { return NO_PAGER; }
    for (uint32_t i = 0; i < r->parts && !wrong; i++) { wrong = check_part(&w, r->part[i]); }
    if (!smg_is_outside(r) || wrong) { return wrong; }
    uint32_t label = 0, crc = 0;
    wrong = pager->read(pager->self, page_of(r, place) + (size_t)smg_stored_bytes(r), &crc, sizeof crc);
    if (!wrong && r->classes) {
        wrong = smg_replay_read(r, memory, pager, place, r->parts - 1, 0, &label, sizeof label);
    }
    if (wrong) { return wrong; }
    if (crc != w.crc) { return "a sample of the replay buffer is not what was written there"; }
    if (r->classes && label != smg_class_at(r, memory, place)) {
        return "a sample of the replay buffer is of another class than noted";
    }
    return NULL;
}
