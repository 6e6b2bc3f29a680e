/* Learns a new class on the board and keeps it in flash. Each run is one life of a device between two resets: it
 * restores what was saved, trains if there is something to learn, saves, and predicts.
 *
 * data.bin, result.bin   as main.c has them
 * power.bin              how many bytes of flash can change before the power goes
 * flash.bin              two slots of flash. A file, so that it outlives a reset; bits go from 1 to 0 by writing, and
 *                        back by erasing. */
#include "board.h"
#include "classes.h"
#include "net_program.h"
#include "slots.h"
#include "smidgen_train.h"

enum { SLOT_BYTES = 131072, CHUNK = 64, UPDATE = 3 /* reading and writing, of a file that exists */, CUT = 42 };
static SmgContext x;
static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES];
static _Alignas(NET_ALIGN) uint8_t arena[NET_ARENA_BYTES];
static float images[NET_BATCH][8 * 8], scores[NET_BATCH][9 + 4];
static int32_t labels[NET_BATCH];
static int data, result, flash;
static uint32_t power, at, written;
static const SmgClasses classes = NET_CLASSES;

/* Changes flash up to the byte at which the power goes; the rest of the program does not happen then. */
static int change(int slot, uint32_t offset, const uint8_t *to, uint32_t bytes) {
    const uint32_t possible = bytes < power ? bytes : power;
    power -= possible;
    if (board_write(flash, (uint32_t)slot * SLOT_BYTES + offset, to, possible)) { return -1; }
    if (possible < bytes) { board_exit(CUT); }
    return 0;
}

static int flash_read(void *self, int slot, uint32_t offset, void *to, uint32_t bytes) {
    (void)self;
    return board_read(flash, (uint32_t)slot * SLOT_BYTES + offset, to, bytes);
}

static int flash_erase(void *self, int slot) {
    uint8_t piece[CHUNK];
    (void)self;
    for (int i = 0; i < CHUNK; i++) { piece[i] = 0xff; }
    for (uint32_t offset = 0; offset < SLOT_BYTES; offset += CHUNK) {
        if (change(slot, offset, piece, CHUNK)) { return -1; }
    }
    return 0;
}

static int flash_write(void *self, int slot, uint32_t offset, const void *from, uint32_t bytes) {
    uint8_t piece[CHUNK];
    (void)self;
    if (offset % 8 || bytes % 8) { board_exit(7); }
    for (uint32_t done = 0; done < bytes; done += CHUNK) {
        const uint32_t count = bytes - done < CHUNK ? bytes - done : CHUNK;
        if (flash_read(self, slot, offset + done, piece, count)) { return -1; }
        for (uint32_t i = 0; i < count; i++) {
            if (piece[i] != 0xff) { board_exit(8); /* written twice */ }
        }
        if (change(slot, offset + done, (const uint8_t *)from + done, count)) { return -1; }
    }
    return 0;
}

static const SmgSlots slots = {0, flash_erase, flash_write, flash_read, SLOT_BYTES, 8};

static int fail(const char *what) {
    board_print(what);
    board_print("\n");
    return 1;
}

static int append(const void *from, size_t bytes) {
    written += (uint32_t)bytes;
    return board_write(result, written - (uint32_t)bytes, from, bytes);
}

static int next(void *to, size_t bytes) {
    at += (uint32_t)bytes;
    return board_read(data, at - (uint32_t)bytes, to, bytes);
}

int main(void) {
    const int cut = board_open("power.bin", BOARD_READ);
    data = board_open("data.bin", BOARD_READ);
    flash = board_open("flash.bin", UPDATE);
    result = board_open("result.bin", BOARD_WRITE);
    if (cut < 0 || data < 0 || flash < 0 || result < 0 || board_read(cut, 0, &power, sizeof power)) { return 9; }
    if (smg_open(&x, net_program, sizeof net_program, state, sizeof state, arena, sizeof arena)) {
        return fail(smg_error(&x));
    }
    board_print(smg_restore(&x, &slots) ? smg_error(&x) : "restored");
    board_print("\n");

    int32_t n, trained = 0;
    if (next(&n, sizeof n) || n) { return 8; /* a state to begin with is not for this one */ }
    for (; !next(&n, sizeof n) && n; trained += n) {
        const size_t bytes = (size_t)n * sizeof images[0];
        if (smg_class_count(&x, &classes) == 9 && smg_add_class(&x, &classes, "new") != 9) {
            return fail(smg_error(&x));
        }
        if (next(images, bytes) || next(labels, (size_t)n * 4)) { return 10; }
        const SmgBuffer batch[] = {{images, bytes}, {labels, (size_t)n * 4}};
        float loss;
        if (smg_train_step(&x, batch, 2, n, &loss, NULL)) { return fail(smg_error(&x)); }
        if (append(&loss, sizeof loss)) { return 11; }
    }
    const SmgBuffer learned = smg_state(&x);
    if (append(learned.data, learned.bytes)) { return 12; }
    if (trained && smg_save(&x, &slots)) { return fail(smg_error(&x)); }

    while (!next(&n, sizeof n) && n) {
        const SmgBuffer io[] = {{images, (size_t)n * sizeof images[0]}, {scores, (size_t)n * sizeof scores[0]}};
        if (next(images, io[0].bytes)) { return 13; }
        if (smg_infer(&x, io, 2, n, NULL)) { return fail(smg_error(&x)); }
        if (append(scores, io[1].bytes)) { return 14; }
    }
    const uint32_t stack = board_stack_used();
    const char *name = smg_class_name(&x, &classes, 9);
    board_print(name ? name : "no name");
    return append(&stack, sizeof stack) ? 15 : 0;
}
