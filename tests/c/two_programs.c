/* Two programs in one firmware, turn by turn, in one arena; and everything that smidgen_train.h has. */
#include "board.h"
#include "one_program.h"
#include "other_program.h"
#include "smidgen_train.h"

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
static SmgContext one, other;
static _Alignas(64) uint8_t one_state[ONE_STATE_BYTES], other_state[OTHER_STATE_BYTES];
static _Alignas(64) uint8_t arena[LARGER(ONE_ARENA_BYTES, OTHER_ARENA_BYTES)];

static int say(const SmgContext *x) {
    board_print(smg_error(x));
    board_print("\n");
    return 1;
}

int main(void) {
    const int result = board_open("result.bin", BOARD_WRITE);
    uint32_t at = 0;
    float x[2][4] = {{1, 2, 3, 4}, {-1, 0, 1, 2}}, loss, scores[2][3];
    int32_t labels[2] = {1, 2};
    const SmgBuffer in[] = {{x, sizeof x}, {labels, sizeof labels}}, half[] = {{x, 16}, {labels, 4}};
    const SmgBuffer rest[] = {{x[1], 16}, {labels + 1, 4}}, io[] = {{x, sizeof x}, {scores, sizeof scores}};
    if (smg_open(&one, one_program, sizeof one_program, one_state, sizeof one_state, arena, sizeof arena)) {
        return say(&one);
    }
    if (smg_open(&other, other_program, sizeof other_program, other_state, sizeof other_state, arena, sizeof arena)) {
        return say(&other);
    }
    for (int i = 0; i < 3; i++) {
        if (smg_train_step(&one, in, 2, 2, &loss, 0)) { return say(&one); }
        if (board_write(result, at, &loss, 4)) { return 3; }
        at += 4;
        if (smg_zero(&other) || smg_grad(&other, half, 2, (SmgSamples){1, 2, 0}, &loss, 0)) { return say(&other); }
        if (smg_grad(&other, rest, 2, (SmgSamples){1, 2, 1}, &loss, 0) || smg_apply(&other)) { return say(&other); }
    }
    if (smg_infer(&one, io, 2, 2, 0)) { return say(&one); }
    if (smg_zero(&one) != SMG_BAD_CALL) { return 4; /* it was built without --accumulate */ }
    say(&one);
    const SmgBuffer first = smg_state(&one), second = smg_state(&other);
    if (board_write(result, at, first.data, first.bytes)) { return 5; }
    if (board_write(result, at + (uint32_t)first.bytes, second.data, second.bytes)) { return 6; }
    return 0;
}
