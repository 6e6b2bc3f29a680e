/* Learns from a stream with the program `net`, sample by sample, and reports what is unusual: `make MAIN=stream.c`.
 * Samples come from a file of the machine that the emulator or debugger runs on. An application of your own has a
 * sensor in its place: what it needs of this file are the three static variables and the calls that start with smg_.
 *
 * data.bin     a number each, and what belongs to it: LEARN, the inputs and the target; OBSERVE and DETECT, the inputs,
 *              each of one sample; CALIBRATE, a number of samples; END.
 * result.bin   for LEARN the loss and the outputs before it, for DETECT the score; at the end drift, mean and deviation
 *              of the scores, STATE, and bytes of stack that were used. */
#include "board.h"
#include "net_program.h"
#include "smidgen_learn.h"
#include "smidgen_train.h"

enum { END, LEARN, OBSERVE, DETECT, CALIBRATE };

static SmgContext context;
static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES] NET_STATE_BANK;
static _Alignas(NET_ALIGN) uint8_t arena[NET_ARENA_BYTES] NET_ARENA_BANK;
static const SmgBuffer buffers[NET_MOST_BUFFERS]; /* none of them has memory: the channel delivers */

typedef struct {
    int data, result;                 /* files */
    uint32_t at, written;             /* where in them the next bytes are */
    uint32_t start[NET_MOST_BUFFERS]; /* where the buffers of this run are: inputs in data, outputs in result */
} Files;

static int read_input(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    const Files *f = (const Files *)self;
    return board_read(f->data, f->start[buffer] + (uint32_t)offset, to, bytes);
}

static int write_output(void *self, int buffer, size_t offset, const void *from, size_t bytes) {
    const Files *f = (const Files *)self;
    return board_write(f->result, f->start[buffer] + (uint32_t)offset, from, bytes);
}

static int32_t next_number(Files *f) {
    int32_t number = END;
    if (board_read(f->data, f->at, &number, sizeof number)) { return END; }
    f->at += sizeof number;
    return number;
}

/* Finds out where the buffers of one sample are; how many there are. */
static int next_run(Files *f, const char *entry) {
    const int number = smg_entry(&context, entry), count = smg_buffer_count(&context, number);
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info;
        const uint32_t bytes = (uint32_t)smg_buffer_bytes(&context, number, i, 1);
        smg_buffer_info(&context, number, i, &info);
        uint32_t *at = info.is_output ? &f->written : &f->at;
        f->start[i] = *at;
        *at += bytes;
    }
    return count;
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

static SmgStatus one(Files *f, const SmgChannel *channel, int32_t what) {
    if (what == LEARN) { return smg_learn(&context, buffers, next_run(f, "learn"), 1, channel); }
    if (what == OBSERVE) { return smg_observe(&context, buffers, next_run(f, "observe"), 1, channel); }
    if (what == DETECT) { return smg_detect(&context, buffers, next_run(f, "detect"), 1, channel); }
    return smg_calibrate(&context, next_number(f));
}

int main(void) {
    Files f = {.data = board_open("data.bin", BOARD_READ), .result = board_open("result.bin", BOARD_WRITE)};
    if (f.data < 0 || f.result < 0) { return fail("data.bin or result.bin cannot be opened"); }
    const SmgChannel channel = {&f, read_input, write_output};
    if (smg_open(&context, net_program, sizeof net_program, state, sizeof state, arena, sizeof arena)) {
        return fail(smg_error(&context));
    }
    for (int32_t what; (what = next_number(&f)) != END;) {
        if (one(&f, &channel, what)) { return fail(smg_error(&context)); }
    }
    SmgUsual usual;
    if (smg_usual(&context, &usual)) { return fail(smg_error(&context)); }
    const SmgBuffer learned = smg_state(&context);
    int failed = append(&f, &usual, sizeof usual);
    failed |= append(&f, learned.data, learned.bytes);
    const uint32_t stack = board_stack_used();
    failed |= append(&f, &stack, sizeof stack);
    return failed ? fail("result.bin cannot be written") : 0;
}
