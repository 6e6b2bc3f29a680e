/* The fuzz target for what a gateway may send to a board: frames.c, fleet.c and fleet_rows.c on a small program, with
 * slots and room for another one. An input is either bytes of a line as they are, or a list of requests, which get
 * frames with the right checksums, and some of them damage: see below.
 *
 *   make frames                                         ten million executions
 *   python -m tests.fuzz.frames --runs 10000000         the same
 *
 * A finding is a report of the address or undefined-behaviour sanitizer, or one of these: an answer that is no frame,
 * or is larger than what the caller gave; a reader that holds more than its memory; a request that was done although
 * the one with the same number was done before; a program that no longer answers. All memory is allocated to the
 * byte. */
#include "fleet.h"
#include "crc.h"
#include "fuzz_frames_program.h" /* made by frames.py: own_program */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAYLOAD = SMG_FLEET_LEAST_PAYLOAD, HALF = PAYLOAD + SMG_FRAME_EXTRA_BYTES, SLOT = 8192, ROWS = 512 };
enum { RECIPE = (int)sizeof own_program };

/* In the first byte of a request: its type and what happens to its frame. */
enum { TYPE = 15, WHOLE_RECIPE = 15, MAY_SEND_RECIPE = 0xc0, TWICE = 16, CHANGED = 32, CUT = 64, RIGHT_SUM = 128 };

static SmgContext context, context_before;
static SmgFleet fleet, fleet_before;
static uint8_t *state, *state_before, *arena, *rows, *frames, *recipe, *slot[2];
static uint32_t answers, last_session, last_number, last_sum, sequence;

static void finding(const char *what) {
    fprintf(stderr, "finding: %s\n", what);
    abort();
}

static int erase(void *self, int number) {
    (void)self;
    memset(slot[number], 0xff, SLOT);
    return 0;
}
static int put(void *self, int number, uint32_t offset, const void *from, uint32_t bytes) {
    (void)self;
    memcpy(slot[number] + offset, from, bytes);
    return 0;
}
static int get(void *self, int number, uint32_t offset, void *to, uint32_t bytes) {
    (void)self;
    memcpy(to, slot[number] + offset, bytes);
    return 0;
}
static int erase_recipe(void *self) {
    (void)self;
    memset(recipe, 0xff, RECIPE);
    return 0;
}
static int write_recipe(void *self, uint32_t offset, const void *from, uint32_t bytes) {
    (void)self;
    for (uint32_t i = 0; i < bytes; i++) {
        if (recipe[offset + i] != 0xff) { finding("a byte of a recipe is written twice"); }
    }
    memcpy(recipe + offset, from, bytes);
    return 0;
}

/* The same number in a session always has the same answer, but that it was out of order. */
static void answered(void *self, const uint8_t *bytes, uint32_t count) {
    static uint8_t again[HALF];
    SmgFrameReader reader;
    SmgFrame frame;
    (void)self;
    if (count > HALF) { finding("an answer is larger than its memory"); }
    smg_frame_reader(&reader, again, sizeof again);
    for (uint32_t i = 0; i < count; i++) { smg_frame_byte(&reader, bytes[i]); }
    if (!smg_frame_next(&reader, &frame) || frame.bytes + SMG_FRAME_EXTRA_BYTES != count || frame.bytes < 4) {
        finding("an answer is no frame");
    }
    const uint32_t error = smg_get16(frame.payload), sum = smg_crc32(0, frame.payload, frame.bytes);
    if (error > SMG_FLEET_SHAPE) { finding("an unknown error number"); }
    answers++;
    if (error == SMG_FLEET_NOT_NEXT || error == SMG_FLEET_NO_SESSION) { return; }
    if (frame.session == last_session && frame.sequence == last_number && sum != last_sum) {
        finding("the same request has two answers");
    }
    last_session = frame.session;
    last_number = frame.sequence;
    last_sum = sum;
}

static const SmgSlots slots = {.erase = erase, .write = put, .read = get, .bytes = SLOT, .unit = 8};
static SmgFleetRecipes recipes = {.erase = erase_recipe, .write = write_recipe, .bytes = RECIPE};
static SmgFleetParts parts = {.context = &context,
                              .program = own_program,
                              .program_bytes = sizeof own_program,
                              .slots = &slots,
                              .recipes = &recipes,
                              .write = answered,
                              .rows_bytes = ROWS,
                              .frames_bytes = SMG_FLEET_FRAMES_BYTES(PAYLOAD)};

static uint8_t *memory(size_t bytes) {
    void *found = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!found) { exit(1); }
    return (uint8_t *)found;
}

static void begin(void) {
    if (!state) {
        const SmgContext none = {0};
        context = none;
        if (smg_measure(&context, own_program, sizeof own_program)) { finding("the program does not open"); }
        parts.state_bytes = smg_state_bytes(&context);
        parts.arena_bytes = smg_arena_bytes(&context);
        parts.state = state = memory(parts.state_bytes);
        parts.arena = arena = memory(parts.arena_bytes);
        parts.rows = rows = (uint8_t *)malloc(ROWS);
        parts.frames = frames = (uint8_t *)malloc(parts.frames_bytes);
        recipes.memory = recipe = memory(RECIPE);
        slot[0] = (uint8_t *)malloc(SLOT);
        slot[1] = (uint8_t *)malloc(SLOT);
        state_before = memory(parts.state_bytes);
        memset(rows, 0, ROWS);
        memset(frames, 0, parts.frames_bytes);
        erase(NULL, 0);
        erase(NULL, 1);
        erase_recipe(NULL);
        if (smg_fleet_open(&fleet, &parts)) { finding("the board does not start"); }
        context_before = context;
        fleet_before = fleet;
        memcpy(state_before, state, parts.state_bytes);
    }
    context = context_before;
    fleet = fleet_before;
    memcpy(state, state_before, parts.state_bytes);
    memset(slot[0], 0xff, SMG_SLOT_HEADER_BYTES);
    memset(slot[1], 0xff, SMG_SLOT_HEADER_BYTES);
    erase_recipe(NULL);
    answers = last_session = last_number = last_sum = sequence = 0;
}

static void feed(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        smg_fleet_byte(&fleet, bytes[i]);
        if (fleet.reader.have > fleet.reader.room) { finding("the reader holds more than its memory"); }
    }
}

static void request(uint8_t type, const uint8_t *payload, uint32_t bytes, uint8_t what, uint8_t where) {
    uint8_t frame[HALF];
    if (bytes > PAYLOAD) { bytes = PAYLOAD; }
    if (bytes) { memcpy(frame + SMG_FRAME_HEADER_BYTES, payload, bytes); }
    if (what & RIGHT_SUM && bytes >= 4 && type == SMG_FLEET_STATE_SET) {
        smg_put32(frame + SMG_FRAME_HEADER_BYTES, smg_crc32(0, state, smg_state_bytes(&context)));
    }
    if (what & RIGHT_SUM && bytes >= 4 && type == SMG_FLEET_RECIPE_USE) {
        smg_put32(frame + SMG_FRAME_HEADER_BYTES, smg_crc32(0, recipe, fleet.recipe_bytes));
    }
    uint32_t all = smg_frame_write(frame, type, 1, ++sequence, (uint16_t)bytes);
    if (what & CHANGED) { frame[where % all] ^= (uint8_t)(1 << where % 8); }
    if (what & CUT) { all = where % all; }
    feed(frame, all);
    if (what & TWICE) { feed(frame, all); }
    if (fleet.sequence != sequence) { sequence = fleet.sequence; } /* it was damaged: the next one has its number */
}

/* The board's own program with one byte changed, or none. */
static void whole_recipe(uint8_t where, uint8_t by) {
    uint8_t payload[4 + 128];
    const uint8_t *own = (const uint8_t *)own_program;
    smg_put32(payload, RECIPE);
    request(SMG_FLEET_RECIPE, payload, 4, 0, 0);
    for (uint32_t at = 0; at < RECIPE; at += 128) {
        const uint32_t count = RECIPE - at < 128 ? RECIPE - at : 128;
        smg_put32(payload, at);
        memcpy(payload + 4, own + at, count);
        if (at / 128 == where) { payload[4 + by % count] ^= by; }
        request(SMG_FLEET_RECIPE_IN, payload, 4 + count, 0, 0);
    }
    request(SMG_FLEET_RECIPE_USE, payload, 4, RIGHT_SUM, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    begin();
    if (size && data[0] & 1) {
        feed(data + 1, size - 1);
    } else {
        /* Both take far longer than what is looked for here, so that most inputs have none or few of them. */
        int recipes_left = size && data[0] >= MAY_SEND_RECIPE, steps_left = 4;
        request(SMG_FLEET_HELLO, NULL, 0, 0, 0);
        for (size_t at = 1; at + 2 < size;) { /* what, where, bytes of the payload, payload */
            const uint8_t what = data[at], where = data[at + 1];
            const uint32_t left = (uint32_t)(size - at - 3), bytes = data[at + 2] < left ? data[at + 2] : left;
            if ((what & TYPE) == WHOLE_RECIPE) {
                if (recipes_left-- > 0) { whole_recipe(where, data[at + 2]); }
                at += 3;
                continue;
            }
            if ((what & TYPE) == SMG_FLEET_STEP && steps_left-- <= 0) { break; }
            request(what & TYPE, data + at + 3, bytes, what, where);
            at += 3 + bytes;
        }
    }
    /* Whatever came, a session can begin: after at most one frame's worth of bytes it listens again. */
    static const uint8_t silence[HALF];
    feed(silence, sizeof silence);
    uint8_t hello[SMG_FRAME_EXTRA_BYTES];
    const uint32_t before = answers;
    smg_frame_write(hello, SMG_FLEET_HELLO, 0x7fffffff, 1, 0);
    feed(hello, sizeof hello);
    if (answers == before) { finding("it does not answer any more"); }
    return 0;
}
