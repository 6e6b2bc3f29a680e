/* A board on this machine: fleet.c on standard input and output. Arguments: the program, the file that holds both slots
 * ("-": none), bytes of rows, bytes of room for another program. Memory is allocated to the byte, so that a sanitizer
 * sees every access outside. */
#define _POSIX_C_SOURCE 200809L
#include "fleet.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_STATE = 65536, MOST_ARENA = 1 << 20, PAYLOAD = 300, SLOT_BYTES = 65536, UNIT = 8 };

static SmgContext context;
static SmgFleet fleet;
static uint8_t *other;
static uint32_t other_bytes;

static int at_slot(FILE *file, int slot, uint32_t offset) {
    return fseek(file, (long)slot * SLOT_BYTES + (long)offset, SEEK_SET);
}

static int erase_slot(void *self, int slot) {
    static uint8_t empty[SLOT_BYTES];
    memset(empty, 0xff, sizeof empty);
    FILE *file = (FILE *)self;
    return at_slot(file, slot, 0) || fwrite(empty, sizeof empty, 1, file) != 1 || fflush(file);
}

static int write_slot(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes) {
    FILE *file = (FILE *)self;
    return at_slot(file, slot, offset) || fwrite(from, bytes, 1, file) != 1 || fflush(file);
}

static int read_slot(void *self, int slot, uint32_t offset, void *to, uint32_t bytes) {
    FILE *file = (FILE *)self;
    return at_slot(file, slot, offset) || fread(to, bytes, 1, file) != 1;
}

static int erase_other(void *self) {
    (void)self;
    memset(other, 0xff, other_bytes);
    return 0;
}

static int write_other(void *self, uint32_t offset, const void *from, uint32_t bytes) {
    (void)self;
    memcpy(other + offset, from, bytes);
    return 0;
}

static void to_line(void *self, const uint8_t *bytes, uint32_t count) {
    (void)self;
    while (count) {
        const ssize_t sent = write(1, bytes, count);
        if (sent <= 0) { exit(1); }
        bytes += sent;
        count -= (uint32_t)sent;
    }
}

static void *memory(size_t bytes) {
    void *found = NULL;
    return posix_memalign(&found, 64, bytes ? bytes : 1) ? NULL : found;
}

int main(int count, char **words) {
    if (count != 5) { return 2; }
    FILE *file = fopen(words[1], "rb");
    if (!file || fseek(file, 0, SEEK_END)) { return 2; }
    const long bytes = ftell(file);
    void *program = memory((size_t)bytes);
    rewind(file);
    if (!program || fread(program, (size_t)bytes, 1, file) != 1) { return 2; }
    SmgSlots slots = {.erase = erase_slot, .write = write_slot, .read = read_slot, .bytes = SLOT_BYTES, .unit = UNIT};
    const int has_slots = strcmp(words[2], "-") != 0;
    if (has_slots) {
        slots.self = fopen(words[2], "r+b");
        if (!slots.self) { slots.self = fopen(words[2], "w+b"); }
        if (!slots.self) { return 2; }
    }
    other_bytes = (uint32_t)atol(words[4]);
    other = (uint8_t *)memory(other_bytes);
    memset(other, 0xff, other_bytes);
    const SmgFleetRecipes recipes = {NULL, erase_other, write_other, other, other_bytes};
    const uint32_t rows = (uint32_t)atol(words[3]);
    const SmgFleetParts parts = {.context = &context,
                                 .program = program,
                                 .program_bytes = (uint32_t)bytes,
                                 .state = memory(MOST_STATE),
                                 .state_bytes = MOST_STATE,
                                 .arena = memory(MOST_ARENA),
                                 .arena_bytes = MOST_ARENA,
                                 .rows = memory(rows),
                                 .rows_bytes = rows,
                                 .frames = memory(SMG_FLEET_FRAMES_BYTES(PAYLOAD)),
                                 .frames_bytes = SMG_FLEET_FRAMES_BYTES(PAYLOAD),
                                 .slots = has_slots ? &slots : NULL,
                                 .recipes = other_bytes ? &recipes : NULL,
                                 .write = to_line};
    if (smg_fleet_open(&fleet, &parts)) {
        fprintf(stderr, "%s\n", smg_error(&context));
        return 1;
    }
    uint8_t piece[256];
    for (ssize_t got; (got = read(0, piece, sizeof piece)) > 0;) {
        for (ssize_t i = 0; i < got; i++) { smg_fleet_byte(&fleet, piece[i]); }
    }
    return 0;
}
