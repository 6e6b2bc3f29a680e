/* Trains the program `net` on batches from a file, and writes losses, what was learned and predictions to another one.
 * Both are files of the machine that the emulator or debugger runs on. An application of your own has sensors in their
 * place: what it needs of this file are the three static variables and the calls that start with smg_.
 *
 * data.bin     bytes of STATE to begin with and then these, or 0: the program's own.
 *              Steps: number of samples n, then the n samples of each input; n = 0 ends them. More samples than
 *              NET_BATCH are there in micro-batches of so many, each with all of its inputs.
 *              A program with replay has all n samples of an input together; -n for those that are not new.
 *              The same once more with samples to predict, without targets.
 * result.bin   the loss of each step, STATE, outputs of each prediction, bytes of stack that were used.
 * page.bin     stands in for a memory card, if the program pages. result.bin then has the state in pages behind
 *              STATE, and the bytes that were paged in and out at its end. */
#include "board.h"
#include "files.h"
#include "net_program.h"
#include "smidgen_train.h"

static SmgContext context;
static _Alignas(NET_ALIGN) uint8_t state[NET_STATE_BYTES] NET_STATE_BANK;
static _Alignas(NET_ALIGN) uint8_t arena[NET_ARENA_BYTES] NET_ARENA_BANK;

#if NET_PAGE_BYTES
#include "blocks.h"

/* Two functions make a block device of anything: these want the card's driver in the place of a file. */
static int read_card(void *self, uint32_t block, void *to, uint32_t blocks) {
    return board_read(*(const int *)self, block * SMG_BLOCK_BYTES, to, blocks * SMG_BLOCK_BYTES);
}

static int write_card(void *self, uint32_t block, const void *from, uint32_t blocks) {
    return board_write(*(const int *)self, block * SMG_BLOCK_BYTES, from, blocks * SMG_BLOCK_BYTES);
}

static SmgBlocks card = {.read = read_card, .write = write_card};
static SmgPager pager;
#endif

static const SmgBuffer buffers[NET_MOST_BUFFERS]; /* none of them has memory */

#ifdef NET_REPLAY
#include "replay.h"

static const SmgReplay replay = NET_REPLAY;
static _Alignas(4) uint8_t rows[NET_REPLAY_ROWS_BYTES]; /* new samples, as the program trains on them */

/* A step of n samples, new ones unless n is negative, and of old ones beside them. */
static SmgStatus train(Files *f, const SmgChannel *channel, int32_t n, float *loss) {
    const int32_t count = n < 0 ? -n : n;
    const int target = NET_TRAIN_INPUTS - 1;
    next_run(f, &context, NET_REPLAY_ENTRY, target, count);
    f->start[target] = f->at;
    f->at += (uint32_t)count * smg_replay_row_bytes(&replay, replay.parts - 1);
    const SmgStatus status =
        smg_replay_step(&context, &replay, buffers, NET_TRAIN_INPUTS, count, rows, sizeof rows, loss, channel);
    return status || n < 0 ? status : smg_replay_keep(&context, &replay, rows, count);
}
#else
/* A step of n samples: at once, or in micro-batches whose gradients and losses add up. */
static SmgStatus train(Files *f, const SmgChannel *channel, int32_t n, float *loss) {
    const int32_t most = smg_batch(&context);
    if (n <= most) {
        next_run(f, &context, "train", NET_TRAIN_INPUTS, n);
        return smg_train_step(&context, buffers, NET_TRAIN_INPUTS, n, loss, channel);
    }
    SmgStatus status = smg_zero(&context);
    for (int32_t done = 0; !status && done < n; done += most) {
        const SmgSamples part = {n - done < most ? n - done : most, n, done};
        next_run(f, &context, "grad", NET_TRAIN_INPUTS, part.n);
        status = smg_grad(&context, buffers, NET_TRAIN_INPUTS, part, loss, channel);
    }
    return status ? status : smg_apply(&context);
}
#endif

int main(void) {
    Files f = {.data = board_open("data.bin", BOARD_READ), .result = board_open("result.bin", BOARD_WRITE)};
    if (f.data < 0 || f.result < 0) { return fail("data.bin or result.bin cannot be opened"); }
    const SmgChannel channel = {&f, read_input, write_output};
    int32_t n;

    if (smg_open(&context, net_program, sizeof net_program, state, sizeof state, arena, sizeof arena)) {
        return fail(smg_error(&context));
    }

#if NET_PAGE_BYTES
    int file = board_open("page.bin", BOARD_UPDATE);
    const uint32_t nothing = 0; /* at the very end: a card has all of its blocks from the start */
    if (file < 0 || board_write(file, NET_PAGE_BYTES - sizeof nothing, &nothing, sizeof nothing)) {
        return fail("page.bin cannot be made");
    }
    card.self = &file;
    pager = smg_block_pager(&card);
    if (smg_set_pager(&context, &pager)) { return fail(smg_error(&context)); }
    card.read_bytes = card.written_bytes = 0; /* of training and predictions only */
#endif

    const int32_t given = next_number(&f);
    if (given && ((uint32_t)given != sizeof state || board_read(f.data, f.at, state, sizeof state))) {
        return fail("data.bin has the state of another program");
    }
    f.at += (uint32_t)given;
#ifdef NET_REPLAY
    if (!smg_replay_memory(&context, &replay)) { return fail(smg_error(&context)); }
#endif

    while ((n = next_number(&f)) != 0) {
        float loss = 0;
        if (train(&f, &channel, n, &loss)) { return fail(smg_error(&context)); }
        append(&f, &loss, sizeof loss);
    }

    const SmgBuffer learned = smg_state(&context);
    append(&f, learned.data, learned.bytes);
#if NET_PAGE_BYTES
    const uint32_t paged[2] = {card.read_bytes, card.written_bytes};
    for (uint32_t at = 0; at < NET_PAGE_STATE_BYTES; at += SMG_BLOCK_BYTES) {
        if (pager.read(pager.self, at, card.piece, SMG_BLOCK_BYTES)) { return fail("page.bin cannot be read"); }
        append(&f, card.piece, SMG_BLOCK_BYTES);
    }
#endif

    while ((n = next_number(&f)) > 0) {
        next_run(&f, &context, "infer", NET_INFER_BUFFERS, n);
        if (smg_infer(&context, buffers, NET_INFER_BUFFERS, n, &channel)) { return fail(smg_error(&context)); }
    }

    const uint32_t stack = board_stack_used();
    int failed = append(&f, &stack, sizeof stack);
#if NET_PAGE_BYTES
    failed |= append(&f, paged, sizeof paged);
#endif
    return failed ? fail("result.bin cannot be written") : 0;
}
