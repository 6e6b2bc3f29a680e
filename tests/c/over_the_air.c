/* Opens a program that came after the firmware was built: into RAM, as a radio would bring it. */
#include "board.h"
#include "net_program.h"
#include "smidgen_train.h"

static SmgContext context;
static _Alignas(64) uint8_t file[24 * 1024], state[8 * 1024], arena[8 * 1024];

int main(void) {
    uint32_t bytes;
    const int data = board_open("recipe.smg", BOARD_READ), size = board_open("size.bin", BOARD_READ);
    if (data < 0 || size < 0 || board_read(size, 0, &bytes, sizeof bytes) || bytes > sizeof file) { return 9; }
    if (board_read(data, 0, file, bytes)) { return 8; }
    if (smg_open(&context, file, bytes, state, sizeof state, arena, sizeof arena)) {
        board_print(smg_error(&context));
        board_print("\n");
        return 1;
    }
    static float x[4], y[1];
    static int32_t label[1];
    const SmgBuffer in[] = {{x, sizeof x}, {label, sizeof label}};
    float loss = 0;
    if (smg_train_step(&context, in, 2, 1, &loss, 0)) {
        board_print(smg_error(&context));
        return 2;
    }
    (void)y;
    board_print("trained\n");
    return 0;
}
