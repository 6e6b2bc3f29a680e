/* See slots.h. A slot: the header below, then the state (STATE, and behind it what of it is in pages), filled up to a
 * whole unit.
 *
 *   0  magic "SMGS" · version · bytes of the state · sequence number
 *  16  checksum of the program file · CRC-32 of the state · 0 · CRC-32 of the 28 bytes before
 *
 * The header is written last: without it there is nothing, so a save that was cut is as if it had not begun. */
#include "slots.h"
#include "crc.h"
#include "format.h"

enum { H_MAGIC, H_VERSION, H_STATE, H_SEQUENCE, H_PROGRAM, H_CRC, H_ZERO, H_OWN_CRC, HEADER_WORDS };
enum { CHUNK = 64 };
#define SLOT_MAGIC 0x53474d53u /* "SMGS" */

typedef struct {
    int good;
    uint32_t sequence, crc;
} Found;

static uint32_t in_units(uint32_t bytes, uint32_t unit) { return (bytes + unit - 1) / unit * unit; }

static uint32_t state_bytes(const SmgContext *x) {
#if SMG_PAGES
    return smg_state_bytes(x) + smg_page_state_bytes(x);
#else
    return smg_state_bytes(x);
#endif
}

uint32_t smg_slot_bytes(const SmgContext *x, uint32_t unit) {
    return SMG_SLOT_HEADER_BYTES + in_units(state_bytes(x), unit);
}

/* Moves a piece of the state to `piece`, or from there. -1 if the pager fails. */
static int move(const SmgContext *x, uint32_t at, uint8_t *piece, uint32_t count, int put) {
    const uint32_t state = smg_state_bytes(x), left = at < state ? state - at : 0, own = left < count ? left : count;
    if (own) { memcpy(put ? x->state + at : piece, put ? piece : x->state + at, own); }
#if SMG_PAGES
    if (own < count) {
        const SmgPager *p = x->pager;
        const size_t offset = at + own - state;
        if (put ? p->write(p->self, offset, piece + own, count - own)
                : p->read(p->self, offset, piece + own, count - own)) {
            return -1;
        }
    }
#endif
    return 0;
}

/* Reads the state of a slot in pieces, and puts them where they belong, if `put` is set. -1 if a memory fails. */
static int read_state(const SmgContext *x, const SmgSlots *s, int slot, int put, uint32_t *crc) {
    uint8_t piece[CHUNK];
    const uint32_t bytes = state_bytes(x);
    *crc = 0;
    for (uint32_t at = 0; at < bytes; at += CHUNK) {
        const uint32_t count = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (s->read(s->self, slot, SMG_SLOT_HEADER_BYTES + at, piece, count)) { return -1; }
        *crc = smg_crc32(*crc, piece, count);
        if (put && move(x, at, piece, count, 1)) { return -1; }
    }
    return 0;
}

static Found look(const SmgContext *x, const SmgSlots *s, int slot) {
    uint32_t h[HEADER_WORDS], crc;
    Found f = {0, 0, 0};
    if (s->read(s->self, slot, 0, h, sizeof h)) { return f; }
    if (smg_crc32(0, (const uint8_t *)h, sizeof h - 4) != h[H_OWN_CRC]) { return f; }
    if (h[H_MAGIC] != SLOT_MAGIC || h[H_VERSION] != SMG_SLOT_VERSION || h[H_ZERO] != 0) { return f; }
    if (h[H_STATE] != state_bytes(x) || h[H_PROGRAM] != smg_words(x)[F_CRC]) { return f; }
    if (read_state(x, s, slot, 0, &crc) || crc != h[H_CRC]) { return f; }
    return (Found){1, h[H_SEQUENCE], crc};
}

/* The slot with the newest complete state, or -1. Numbers may wrap around. */
static int newest(const Found found[2]) {
    if (!found[0].good && !found[1].good) { return -1; }
    if (!found[0].good || !found[1].good) { return found[1].good; }
    return (int32_t)(found[1].sequence - found[0].sequence) > 0;
}

static SmgStatus check(SmgContext *x, const SmgSlots *s) {
    if (!x->is_open) { return smg_say(x, SMG_FAULT_CALL, "no program is open"); }
    if (!s || !s->erase || !s->write || !s->read) {
        return smg_say(x, SMG_FAULT_CALL, "slots need the functions erase, write and read");
    }
    if (!s->unit || s->unit > SMG_SLOT_MAX_UNIT || (s->unit & (s->unit - 1))) {
        return smg_say(x, SMG_FAULT_CALL, "the unit of slots must be a power of two, at most 32 bytes");
    }
#if SMG_PAGES
    if (smg_page_state_bytes(x) && !x->pager) {
        return smg_say(x, SMG_FAULT_CALL, "part of the state is in pages: call smg_set_pager first");
    }
#endif
    if (s->bytes >= smg_slot_bytes(x, s->unit)) { return SMG_OK; }
    smg_say(x, SMG_FAULT_CALL, "a slot needs ");
    smg_add_number(x, smg_slot_bytes(x, s->unit));
    smg_add_text(x, " bytes, it has ");
    smg_add_number(x, s->bytes);
    return SMG_BAD_CALL;
}

static int write_slot(const SmgContext *x, const SmgSlots *s, int slot, uint32_t sequence, uint32_t *crc) {
    const uint32_t bytes = state_bytes(x), direct = smg_state_bytes(x) / CHUNK * CHUNK;
    *crc = smg_crc32(0, x->state, direct);
    if (s->erase(s->self, slot)) { return -1; }
    if (direct && s->write(s->self, slot, SMG_SLOT_HEADER_BYTES, x->state, direct)) { return -1; }
    for (uint32_t at = direct; at < bytes; at += CHUNK) { /* the rest, and what is in pages */
        uint8_t piece[CHUNK] = {0};
        const uint32_t count = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (move(x, at, piece, count, 0)) { return -1; }
        *crc = smg_crc32(*crc, piece, count);
        if (s->write(s->self, slot, SMG_SLOT_HEADER_BYTES + at, piece, in_units(count, s->unit))) { return -1; }
    }
    uint32_t h[HEADER_WORDS] = {SLOT_MAGIC, SMG_SLOT_VERSION, bytes, sequence, smg_words(x)[F_CRC], *crc, 0, 0};
    h[H_OWN_CRC] = smg_crc32(0, (const uint8_t *)h, sizeof h - 4);
    return s->write(s->self, slot, 0, h, sizeof h);
}

SmgStatus smg_save(SmgContext *x, const SmgSlots *s) {
    const SmgStatus status = check(x, s);
    if (status) { return status; }
    const Found found[2] = {look(x, s, 0), look(x, s, 1)};
    const int last = newest(found), slot = last == 0 ? 1 : 0;
    const uint32_t sequence = last < 0 ? 1 : found[last].sequence + 1;
    uint32_t crc;
    if (write_slot(x, s, slot, sequence, &crc)) { return smg_say(x, SMG_FAULT_SLOTS, "writing to a slot failed"); }
    const Found now = look(x, s, slot);
    if (!now.good || now.sequence != sequence || now.crc != crc) {
        return smg_say(x, SMG_FAULT_SLOTS, "a slot returned other data than was written to it");
    }
    return smg_say(x, SMG_NO_FAULT, "");
}

SmgStatus smg_restore(SmgContext *x, const SmgSlots *s) {
    const SmgStatus status = check(x, s);
    if (status) { return status; }
    Found found[2] = {look(x, s, 0), look(x, s, 1)};
    int slot = newest(found);
    if (slot < 0) { return smg_say(x, SMG_FAULT_CALL, "no slot holds a complete state of this program"); }
    for (int tries = 0; tries < 2 && slot >= 0; tries++, slot = newest(found)) {
        uint32_t crc;
        if (!read_state(x, s, slot, 1, &crc) && crc == found[slot].crc) { return smg_say(x, SMG_NO_FAULT, ""); }
        found[slot].good = 0; /* it was good a moment ago: the memory fails */
    }
    (void)smg_reset_state(x); /* rather than a mixture */
    return smg_say(x, SMG_FAULT_SLOTS,
                   "flash returned different data on two reads; state was reset to the program's initial values");
}
