/* Learns from a stream with the program `net`, sample by sample, and reports what is unusual: `make MAIN=stream.c`.
 * Samples come from a file of the machine that the emulator or debugger runs on. An application of your own has a
 * sensor in its place: what it needs of this file are the three static variables and the calls that start with smg_.
 *
 * data.bin     a number each, and what belongs to it: LEARN, the inputs and the target; OBSERVE and DETECT, the inputs,
 *              each of one sample; CALIBRATE, a number of samples; END.
 * result.bin   for LEARN the loss and the outputs before it, for DETECT the score; at the end drift, mean and deviation
 *              of the scores, STATE, and bytes of stack that were used. */
#include "board.h"
#include "files.h"
#include "net_program.h"
#include "smidgen_learn.h"
#include "smidgen_train.h"

enum { END, LEARN, OBSERVE, DETECT, CALIBRATE };

static SmgContext context;
static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES] NET_STATE_BANK;
static _Alignas(NET_ALIGN) uint8_t arena[NET_ARENA_BYTES] NET_ARENA_BANK;
static const SmgBuffer buffers[NET_MOST_BUFFERS]; /* none of them has memory: the channel delivers */

/* Finds out where the buffers of one sample are; how many there are. */
static int next_sample(Files *f, const char *entry) {
    const int count = smg_buffer_count(&context, smg_entry(&context, entry));
    next_run(f, &context, entry, count, 1);
    return count;
}

static SmgStatus one(Files *f, const SmgChannel *channel, int32_t what) {
    if (what == LEARN) { return smg_learn(&context, buffers, next_sample(f, "learn"), 1, channel); }
    if (what == OBSERVE) { return smg_observe(&context, buffers, next_sample(f, "observe"), 1, channel); }
    if (what == DETECT) { return smg_detect(&context, buffers, next_sample(f, "detect"), 1, channel); }
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
