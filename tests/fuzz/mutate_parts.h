/* What all changes of a program draw on: numbers that could stand somewhere, an instruction, room. */
#ifndef MUTATE_PARTS_H
#define MUTATE_PARTS_H
#include "program_parts.h"

static uint32_t state = 1;
static uint32_t any(void) { /* xorshift */
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}
static uint32_t below(uint32_t bound) { return bound ? any() % bound : 0; }
static int one_in(uint32_t n) { return below(n) == 0; }

/* ---- words ---- */

/* clang-format off */
static const uint32_t numbers[] = {
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 63, 64, 65, 127, 255, 256, 511, 512, 513, 65535, 65536, 65537,
    0x0fffffff, 0x10000000, 0x10000001, 0x1fffffff, 0x20000000, 0x3fffffff, 0x40000000, 0x40000001, 0x55555555,
    0x7ffffff0, 0x7ffffffe, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffff8, 0xfffffffe, 0xffffffff,
    /* as f32: infinities, NaNs, the largest, the smallest, 1, -1, 0.5, 1e-5, 2^31, -2^31, 2^24, 88.7 */
    0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x7f7fffff, 0x00800000, 0x3f800000, 0xbf800000, 0x3f000000,
    0x3727c5ac, 0x4f000000, 0xcf000000, 0x4b800000, 0x42b17218,
    /* as the upper word of a double: 1, 0.5, 2, infinity, NaN, 2^24 */
    0x3ff00000, 0x3fe00000, 0x7ff00000, 0x7ff80000, 0x41700000,
};
/* clang-format on */

/* A word that could stand where `old` stands. */
static uint32_t another(uint32_t old) {
    switch (below(9)) {
    case 0: return numbers[below(sizeof numbers / 4)];
    case 1: return old + below(5) - 2;
    case 2: return old ^ 1u << below(32);
    case 3: return old * (2 + below(3));
    case 4: return old / 2;
    case 5: return 1 + below(20);
    case 6: return 0;
    case 7: return 1u << below(31);
    default: return old + 4 * (below(9) - 4);
    }
}

/* A random instruction that is no loop or stream: its words, or NULL. */
static uint32_t *some_instruction(Parts *p, uint32_t *entry, uint32_t *at) {
    static uint32_t spots[MAX_SPOTS + 1];
    *entry = below(entries_of(p));
    if (!entries_of(p)) { return NULL; }
    const uint32_t count = instructions(p, *entry, spots);
    for (int i = 0; i < 8 && count; i++) {
        *at = spots[below(count)];
        if (!smg_code_repeats(p->words[S_CODE] + *at)) { return p->words[S_CODE] + *at; }
    }
    return NULL;
}

/* ---- room ---- */

/* Makes a region at least as large, or exactly as large, as `bytes`. */
static void make_room(Parts *p, uint32_t region, uint32_t bytes) {
    uint32_t *size = &p->head[F_CONST + region];
    if (*size >= bytes && !one_in(8)) { return; }
    if (region == R_CONST) {
        if (bytes > ROOM * 4) { return; }
        for (uint32_t i = p->bytes[S_CONST] / 4; i < bytes / 4; i++) {
            p->words[S_CONST][i] = one_in(2) ? below(4) : numbers[below(sizeof numbers / 4)];
        }
        p->bytes[S_CONST] = bytes;
    }
    if (region == R_STATE && p->bytes[S_STATE] > bytes) { p->bytes[S_STATE] = bytes; }
    *size = bytes;
}
#endif
