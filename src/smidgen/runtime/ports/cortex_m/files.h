/* Samples from a file, results into another, on the machine that the emulator or debugger runs on. */
#ifndef FILES_H
#define FILES_H
#include "board.h"
#include "net_program.h"
#include "smidgen.h"

typedef struct {
    int data, result;                 /* files */
    uint32_t at, written;             /* where in them the next bytes are */
    uint32_t start[NET_MOST_BUFFERS]; /* where the buffers of this run are: inputs in data, outputs in result */
} Files;

/* The program calls these when it wants a piece of an input, or has a piece of an output: straight from or to its
 * arena, so that no batch needs memory of its own. */
static int read_input(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    const Files *f = (const Files *)self;
    return board_read(f->data, f->start[buffer] + (uint32_t)offset, to, bytes);
}

static int write_output(void *self, int buffer, size_t offset, const void *from, size_t bytes) {
    const Files *f = (const Files *)self;
    return board_write(f->result, f->start[buffer] + (uint32_t)offset, from, bytes);
}

/* The next number of the data, 0 if there is none. */
static int32_t next_number(Files *f) {
    int32_t number = 0;
    if (board_read(f->data, f->at, &number, sizeof number)) { return 0; }
    f->at += sizeof number;
    return number;
}

/* Finds out where the first `count` buffers of the next run are, which has n samples. */
static void next_run(Files *f, const SmgContext *x, const char *entry, int count, int32_t n) {
    const int number = smg_entry(x, entry);
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info;
        const uint32_t bytes = (uint32_t)smg_buffer_bytes(x, number, i, n);
        smg_buffer_info(x, number, i, &info);
        uint32_t *at = info.is_output ? &f->written : &f->at;
        f->start[i] = *at;
        *at += bytes;
    }
}

static int append(Files *f, const void *from, size_t bytes) {
    const int failed = board_write(f->result, f->written, from, bytes);
    f->written += (uint32_t)bytes;
    return failed;
}

static int fail(const char *what) {
    board_print("error: ");
    board_print(what);
    board_print("\n");
    return 1;
}
#endif
