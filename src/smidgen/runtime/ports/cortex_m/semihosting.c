/* Files, text and the exit status by Arm semihosting (ARM IHI 0100), as debuggers and QEMU understand it. Without one
 * of them attached, the breakpoint instruction is a fault. */
#include "board.h"

enum { OPEN = 0x01, WRITE0 = 0x04, WRITE = 0x05, READ = 0x06, SEEK = 0x0a, EXIT = 0x20 };
#define APPLICATION_EXIT 0x20026u

static int32_t call(uint32_t operation, const void *arguments) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = arguments;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

static uint32_t word(const void *pointer) { return (uint32_t)(uintptr_t)pointer; }

void board_exit(int status) {
    const uint32_t arguments[2] = {APPLICATION_EXIT, (uint32_t)status};
    call(EXIT, arguments);
    for (;;) {}
}

void board_print(const char *text) { call(WRITE0, text); }

void board_print_number(uint32_t number) {
    char digits[11];
    int at = 10;
    digits[at] = 0;
    do { digits[--at] = (char)('0' + number % 10); } while (number /= 10);
    board_print(digits + at);
}

void board_print_hex(uint32_t number) {
    char digits[11] = "0x";
    for (int i = 0; i < 8; i++) { digits[2 + i] = "0123456789abcdef"[number >> (28 - 4 * i) & 15]; }
    digits[10] = 0;
    board_print(digits);
}

int board_open(const char *path, int mode) {
    uint32_t length = 0;
    while (path[length]) { length++; }
    const uint32_t arguments[3] = {word(path), (uint32_t)mode, length};
    return (int)call(OPEN, arguments);
}

/* READ and WRITE return how many bytes were left over. */
static int move(uint32_t operation, int file, uint32_t at, const void *memory, size_t bytes) {
    const uint32_t place[2] = {(uint32_t)file, at}, arguments[3] = {(uint32_t)file, word(memory), (uint32_t)bytes};
    return bytes && (call(SEEK, place) != 0 || call(operation, arguments) != 0);
}

int board_read(int file, uint32_t at, void *to, size_t bytes) { return move(READ, file, at, to, bytes); }
int board_write(int file, uint32_t at, const void *from, size_t bytes) { return move(WRITE, file, at, from, bytes); }
