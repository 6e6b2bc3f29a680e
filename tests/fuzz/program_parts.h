/* A program file in parts that can grow and shrink, and back: for mutate.c. Whatever the bytes were, what is put
 * together has the size and the checksum that belong to it; its tables may say anything. */
#ifndef PROGRAM_PARTS_H
#define PROGRAM_PARTS_H
#include "format.h"

enum { ROOM = 4096, MAX_SPOTS = 512 }; /* words of a section, instructions of an entry point */

typedef struct {
    uint32_t head[F_TABLE];
    uint32_t bytes[SECTIONS + 1]; /* the last one is there if the program pages */
    uint32_t words[SECTIONS + 1][ROOM];
} Parts;

static uint32_t sections_of(const Parts *p) { return p->head[F_SECTIONS] == SECTIONS + 1 ? SECTIONS + 1 : SECTIONS; }
static uint32_t count_of(const Parts *p, int section) { return p->bytes[section] / 4; }

static uint32_t crc_of(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) { crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0); }
    }
    return ~crc;
}

static void seal(uint8_t *data, size_t size) {
    if (size < SMG_HEADER_BYTES) { return; }
    const uint32_t total = (uint32_t)size, crc = crc_of(data + SMG_CRC_FROM, size - SMG_CRC_FROM);
    memcpy(data + 4 * F_TOTAL, &total, 4);
    memcpy(data + 4 * F_CRC, &crc, 4);
}

static int take_apart(Parts *p, const uint8_t *data, size_t size) {
    uint32_t table[2 * (SECTIONS + 1)];
    if (size < SMG_HEADER_BYTES + 8) { return 0; }
    memset(p, 0, sizeof *p);
    memcpy(p->head, data, sizeof p->head);
    memcpy(table, data + sizeof p->head, sizeof table);
    for (uint32_t i = 0; i < sections_of(p); i++) {
        const uint32_t at = table[2 * i], bytes = table[2 * i + 1];
        if (at > size || bytes > size - at || bytes > sizeof p->words[i]) { return 0; }
        memcpy(p->words[i], data + at, bytes);
        p->bytes[i] = bytes;
    }
    return 1;
}

/* Bytes written, 0 if there is no room. */
static size_t put_together(const Parts *p, uint8_t *data, size_t room) {
    size_t at = (F_TABLE + 2 * sections_of(p)) * 4;
    uint32_t table[2 * (SECTIONS + 1)];
    if (room < at) { return 0; }
    for (uint32_t i = 0; i < sections_of(p); i++) {
        const size_t align = i == S_CONST ? 64 : 4, start = (at + align - 1) / align * align;
        if (start + p->bytes[i] > room) { return 0; }
        memset(data + at, 0, start - at);
        memcpy(data + start, p->words[i], p->bytes[i]);
        table[2 * i] = (uint32_t)start, table[2 * i + 1] = p->bytes[i];
        at = start + p->bytes[i];
    }
    memcpy(data, p->head, sizeof p->head);
    memcpy(data + sizeof p->head, table, 8 * sections_of(p));
    seal(data, at);
    return at;
}

/* An empty program with one entry point. */
static void begin(Parts *p) {
    static const uint32_t head[F_TABLE] = {SMG_MAGIC, SMG_VERSION, 0, 0, 2, 16, 0, 0, 256, SECTIONS};
    memset(p, 0, sizeof *p);
    memcpy(p->head, head, sizeof head);
    memcpy(p->words[S_STRINGS], "train", 6);
    memcpy(p->words[S_META], "{}", 2);
    p->bytes[S_ENTRIES] = ENTRY_WORDS * 4, p->bytes[S_STRINGS] = 6, p->bytes[S_META] = 2;
}

/* ---- changes of length ---- */

static int insert(Parts *p, int section, uint32_t at, const uint32_t *words, uint32_t count) {
    const uint32_t now = count_of(p, section);
    if (now + count > ROOM || at > now) { return 0; }
    memmove(p->words[section] + at + count, p->words[section] + at, (now - at) * 4);
    memcpy(p->words[section] + at, words, count * 4);
    p->bytes[section] = 4 * (now + count);
    return 1;
}

static void erase(Parts *p, int section, uint32_t at, uint32_t count) {
    const uint32_t now = count_of(p, section);
    if (at + count > now) { return; }
    memmove(p->words[section] + at, p->words[section] + at + count, (now - at - count) * 4);
    p->bytes[section] = 4 * (now - count);
}

/* ---- code ---- */

static uint32_t *entry_of(Parts *p, uint32_t entry) { return p->words[S_ENTRIES] + entry * ENTRY_WORDS; }
static uint32_t entries_of(const Parts *p) { return p->bytes[S_ENTRIES] / (ENTRY_WORDS * 4); }

/* Where the instructions of an entry point start in the code section; the end of the last one is spots[count]. */
static uint32_t instructions(Parts *p, uint32_t entry, uint32_t *spots) {
    const uint32_t *e = entry_of(p, entry), words = count_of(p, S_CODE);
    uint32_t at = e[E_CODE], count = 0;
    if (at > words || e[E_WORDS] > words - at) { return spots[0] = 0; }
    const uint32_t end = at + e[E_WORDS];
    while (end - at >= 2 && count < MAX_SPOTS) {
        const uint32_t *code = p->words[S_CODE] + at;
        const uint32_t length = smg_code_words(code);
        if (length > end - at) { break; }
        spots[count++] = at, at += length;
    }
    spots[count] = at;
    return count;
}

static int insert_code(Parts *p, uint32_t entry, uint32_t at, const uint32_t *code, uint32_t words, uint32_t count) {
    if (!insert(p, S_CODE, at, code, words)) { return 0; }
    for (uint32_t i = 0; i < entries_of(p); i++) {
        if (i != entry && entry_of(p, i)[E_CODE] >= at) { entry_of(p, i)[E_CODE] += words; }
    }
    entry_of(p, entry)[E_WORDS] += words;
    entry_of(p, entry)[E_INSTRUCTIONS] += count;
    return 1;
}

static void erase_code(Parts *p, uint32_t entry, uint32_t at, uint32_t words, uint32_t count) {
    erase(p, S_CODE, at, words);
    for (uint32_t i = 0; i < entries_of(p); i++) {
        if (i != entry && entry_of(p, i)[E_CODE] > at) { entry_of(p, i)[E_CODE] -= words; }
    }
    entry_of(p, entry)[E_WORDS] -= words;
    entry_of(p, entry)[E_INSTRUCTIONS] -= count;
}

static uint32_t block_words(const uint32_t *block) {
    const uint32_t count = block[0] & 0xffff;
    return 1 + count + (block[0] >> 16 ? (count + 31) / 32 : 0);
}
/* The parameters of an instruction, or NULL. */
static uint32_t *block_of(Parts *p, const uint32_t *code) {
    const uint32_t words = count_of(p, S_PARAMS);
    if (code[1] >= words || block_words(p->words[S_PARAMS] + code[1]) > words - code[1]) { return NULL; }
    return p->words[S_PARAMS] + code[1];
}

/* The program's number of a kernel; it is added if need be. */
static uint32_t kernel_number(Parts *p, const char *name) {
    const uint32_t count = count_of(p, S_KERNELS), length = (uint32_t)strlen(name) + 1, at = p->bytes[S_STRINGS];
    char *strings = (char *)p->words[S_STRINGS];
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t offset = p->words[S_KERNELS][i];
        if (offset < at && strncmp(strings + offset, name, at - offset) == 0) { return i; }
    }
    if (at + length > ROOM * 4 || !insert(p, S_KERNELS, count, &at, 1)) { return 0; }
    memcpy(strings + at, name, length);
    p->bytes[S_STRINGS] += length;
    return count;
}
#endif
