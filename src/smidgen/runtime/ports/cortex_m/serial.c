/* See serial.h. The port holds one byte. Its interrupt is never taken, as interrupts are off: it wakes the core. */
#include "serial.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define DATA              REGISTER(board_serial + 0x00u)
#define STATE             REGISTER(board_serial + 0x04u)
#define CONTROL           REGISTER(board_serial + 0x08u)
#define INTERRUPT         REGISTER(board_serial + 0x0cu)
#define DIVIDER           REGISTER(board_serial + 0x10u)
#define NVIC_ENABLE       REGISTER(0xe000e100u)
#define NVIC_CLEAR        REGISTER(0xe000e280u)

enum { CAN_SEND = 1, CAN_RECEIVE = 2, WAKES = 8 }; /* CONTROL */
enum { IS_FULL = 1, IS_THERE = 2 };                /* STATE */
enum { RECEIVED = 2 };                             /* INTERRUPT */
enum { CLOCK_HZ = 25000000, BITS_A_SECOND = 115200 };

int serial_open(void) {
    if (!board_serial) { return -1; }
    __asm__ volatile("cpsid i" ::: "memory");
    DIVIDER = CLOCK_HZ / BITS_A_SECOND;
    CONTROL = CAN_SEND | CAN_RECEIVE | WAKES;
    NVIC_ENABLE = 1;
    return 0;
}

uint8_t serial_read(void) {
    while (!(STATE & IS_THERE)) { __asm__ volatile("wfi" ::: "memory"); }
    const uint8_t byte = (uint8_t)DATA;
    INTERRUPT = RECEIVED;
    NVIC_CLEAR = 1;
    return byte;
}

void serial_write(const uint8_t *bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        while (STATE & IS_FULL) {}
        DATA = bytes[i];
    }
}
