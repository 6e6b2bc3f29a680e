/* Power cuts and flipped bits against runtime/slots.c, on a model of flash.
 *
 *     slots program.smg other.smg seed
 *
 * Flash is two arrays. Erasing sets bytes to 0xff one by one, writing takes erased bytes only, and the power may go
 * before any byte. Every state is one pattern over all of STATE, so a mixture of two is seen. Prints what was
 * tried. */
#include "crc.h"
#include "ports/posix.h"
#include "slots.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16 };
typedef struct {
    uint8_t memory[2][MOST];
    long power; /* bytes that can still be changed; -1: no end */
    uint32_t unit;
    int broken_reads; /* reads that fail from now on */
} Flash;

static void fail(const char *why, long at) {
    fprintf(stderr, "%s (%ld)\n", why, at);
    exit(1);
}

static int change(Flash *f, uint8_t *byte, uint8_t value) {
    if (f->power == 0) { return -1; }
    if (f->power > 0) { f->power--; }
    *byte = value;
    return 0;
}

static int flash_erase(void *self, int slot) {
    Flash *f = (Flash *)self;
    for (int i = 0; i < MOST; i++) {
        if (f->memory[slot][i] != 0xff && change(f, &f->memory[slot][i], 0xff)) { return -1; }
    }
    return 0;
}

static int flash_write(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes) {
    Flash *f = (Flash *)self;
    if (offset % f->unit || bytes % f->unit) { fail("a write that is no whole unit", (long)offset); }
    for (uint32_t i = 0; i < bytes; i++) {
        uint8_t *byte = &f->memory[slot][offset + i];
        if (*byte != 0xff) { fail("written twice", (long)(offset + i)); }
        if (change(f, byte, ((const uint8_t *)from)[i])) { return -1; }
    }
    return 0;
}

static int flash_read(void *self, int slot, uint32_t offset, void *to, uint32_t bytes) {
    Flash *f = (Flash *)self;
    if (f->broken_reads) { return -1; }
    memcpy(to, &f->memory[slot][offset], bytes);
    return 0;
}

static void fill(SmgContext *x, uint32_t pattern) {
    for (uint32_t i = 0; i < smg_state_bytes(x) / 4; i++) {
        const uint32_t word = pattern * 2654435761u + i;
        memcpy(x->state + 4 * i, &word, 4);
    }
}

/* The pattern that all of STATE has, or -1. */
static long pattern_of(SmgContext *x, uint32_t most) {
    for (uint32_t p = 0; p <= most; p++) {
        uint32_t i = 0, word = 0;
        for (; i < smg_state_bytes(x) / 4; i++) {
            memcpy(&word, x->state + 4 * i, 4);
            if (word != p * 2654435761u + i) { break; }
        }
        if (i == smg_state_bytes(x) / 4) { return p; }
    }
    return -1;
}

static SmgPosix *opened(const char *path) {
    char message[SMG_MESSAGE_BYTES];
    SmgStatus status;
    SmgPosix *p = smg_posix_open(path, NULL, 0, 0, &status, message);
    if (!p) { fail(message, status); }
    return p;
}

static uint32_t word_of(const Flash *f, int slot, int word) {
    uint32_t value;
    memcpy(&value, &f->memory[slot][4 * word], 4);
    return value;
}

/* As if so many saves had gone before. */
static void set_sequence(Flash *f, int slot, uint32_t sequence) {
    memcpy(&f->memory[slot][12], &sequence, 4);
    const uint32_t crc = smg_crc32(0, f->memory[slot], 28);
    memcpy(&f->memory[slot][28], &crc, 4);
}

int main(int argc, char **argv) {
    static Flash start, f;
    if (argc != 4) { fail("slots program.smg other.smg seed", argc); }
    SmgPosix *p = opened(argv[1]), *other = opened(argv[2]);
    SmgContext *x = smg_posix_context(p), *y = smg_posix_context(other);
    long cuts = 0, flips = 0, older = 0;
    srand((unsigned)atoi(argv[3]));
    for (uint32_t unit = 1; unit <= 32; unit *= 2) {
        const SmgSlots slots = {&f, flash_erase, flash_write, flash_read, MOST, unit};
        memset(f.memory, 0xff, sizeof f.memory);
        f.unit = unit;
        f.power = -1;
        fill(x, 9);
        if (smg_restore(x, &slots) != SMG_BAD_CALL || pattern_of(x, 9) != 9) { fail("a state from nowhere", unit); }
        for (uint32_t k = 1; k <= 2; k++) {
            fill(x, k);
            if (smg_save(x, &slots)) { fail(smg_error(x), k); }
        }
        start = f;
        /* A save that is cut before each of its bytes; then a whole one. */
        for (long power = 0;; power++) {
            f = start;
            f.power = power;
            fill(x, 3);
            const SmgStatus done = smg_save(x, &slots);
            f.power = -1;
            fill(x, 9);
            if (smg_restore(x, &slots)) { fail("nothing is left", power); }
            if (pattern_of(x, 9) != (done == SMG_OK ? 3 : 2)) {
                /* The last byte was written, and then the power went: both answers are right. */
                if (done == SMG_OK || pattern_of(x, 9) != 3) { fail("not the newest complete state", power); }
            }
            fill(x, 4);
            if (smg_save(x, &slots)) { fail("no save after a cut", power); }
            fill(x, 9);
            if (smg_restore(x, &slots) || pattern_of(x, 9) != 4) { fail("not the state after a cut", power); }
            cuts++;
            if (done == SMG_OK) { break; }
        }
        /* One bit of either slot. */
        for (int i = 0; i < 1000; i++) {
            const int slot = i & 1;
            const uint32_t at = (uint32_t)rand() % smg_slot_bytes(x, 1);
            f = start;
            f.memory[slot][at] ^= (uint8_t)(1u << (rand() & 7));
            fill(x, 9);
            if (smg_restore(x, &slots)) { fail("nothing is left", at); }
            const long found = pattern_of(x, 9), newest = slot == 1 ? 1 : 2; /* slot 1 holds the newest, 2 */
            if (found != newest) { fail("not the newest good state", at); }
            flips++;
            older += found == 1;
        }
        /* Both damaged, another program, memory that fails: STATE stays as it was. */
        f = start;
        f.memory[0][40] ^= 1;
        f.memory[1][40] ^= 1;
        fill(x, 9);
        if (smg_restore(x, &slots) != SMG_BAD_CALL || pattern_of(x, 9) != 9) { fail("two bad slots", unit); }
        f = start;
        fill(y, 9);
        if (smg_restore(y, &slots) != SMG_BAD_CALL || pattern_of(y, 9) != 9) { fail("another program's state", unit); }
        f.broken_reads = 1;
        if (smg_restore(x, &slots) != SMG_BAD_CALL || smg_save(x, &slots) == SMG_OK) { fail("broken memory", unit); }
        /* Sequence numbers wrap around. */
        f = start;
        set_sequence(&f, 0, 0xfffffffeu);
        set_sequence(&f, 1, 0xffffffffu);
        fill(x, 5);
        if (smg_save(x, &slots) || word_of(&f, 0, 3) != 0) { fail(smg_error(x), unit); }
        fill(x, 9);
        if (smg_restore(x, &slots) || pattern_of(x, 9) != 5) { fail("the wrong side of the wrap", unit); }
    }
    const SmgSlots small = {&f, flash_erase, flash_write, flash_read, smg_slot_bytes(x, 1) - 1, 1};
    const SmgSlots odd = {&f, flash_erase, flash_write, flash_read, MOST, 3}, none = {&f, NULL, NULL, NULL, MOST, 1};
    if (smg_save(x, &small) != SMG_BAD_CALL || smg_save(x, &odd) != SMG_BAD_CALL ||
        smg_save(x, &none) != SMG_BAD_CALL) {
        fail("wrong slots", 0);
    }
    smg_save(x, &small);
    printf("%ld cuts, %ld flips, %ld of them fell back to the state before; %s\n", cuts, flips, older, smg_error(x));
    smg_posix_close(p);
    smg_posix_close(other);
    return 0;
}
