/* Touches memory where a test wants it touched: poke.bin holds what to do and an address. */
#include "board.h"

static int32_t deeper(volatile int32_t *above, int32_t left) {
    volatile int32_t own[16];
    own[0] = left + above[0];
    return left ? deeper(own, left - 1) + own[0] : own[0];
}

int main(void) {
    uint32_t poke[2];
    volatile int32_t start = 0;
    const int file = board_open("poke.bin", BOARD_READ);
    if (file < 0 || board_read(file, 0, poke, sizeof poke)) { return 9; }
    volatile uint32_t *at = (volatile uint32_t *)(uintptr_t)poke[1];
    if (poke[0] == 'r') { (void)*at; }
    if (poke[0] == 'w') { *at = 1; }
    if (poke[0] == 's') { board_print_number((uint32_t)deeper(&start, (int32_t)poke[1])); }
    if (poke[0] == 'x') { ((void (*)(void))(uintptr_t)(poke[1] | 1))(); }
    board_print("still here\n");
    return 0;
}
