/* From reset to main: vectors, painted stack, data, floating point, memory protection; and what happens on a fault.
 * Interrupts of your own go into the vector table behind the sixteen of the core. */
#include "board.h"

int main(void);
void board_reset(void);
void board_start(void);
void board_fault(void);
void board_report_fault(void);

extern uint32_t board_data_source[], board_data[], board_data_end[], board_bss[], board_bss_end[];

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CPACR             REGISTER(0xe000ed88u) /* access to the floating-point unit */
#define CFSR              REGISTER(0xe000ed28u) /* why a fault happened; reads 0 on ARMv6-M */
#define MMFAR             REGISTER(0xe000ed34u) /* at which address, if CFSR says that it is known */
#define BFAR              REGISTER(0xe000ed38u)
#define MPU_TYPE          REGISTER(0xe000ed90u)
#define MPU_CTRL          REGISTER(0xe000ed94u)
#define MPU_RNR           REGISTER(0xe000ed98u)
#define MPU_RBAR          REGISTER(0xe000ed9cu)
#define MPU_RASR          REGISTER(0xe000eda0u) /* MPU_RLAR in ARMv8-M */
#define MPU_MAIR0         REGISTER(0xe000edc0u)
#define PAINT             0xa5a5a5a5u

typedef void (*Vector)(void);
typedef union {
    Vector handler;
    const uint32_t *stack;
} VectorOrStack;
__attribute__((section(".vectors"), used)) const VectorOrStack board_vectors[16] = {
    {.stack = board_stack_top},
    {board_reset},
    {board_fault},
    {board_fault},
    {board_fault},
    {board_fault},
    {board_fault},
    {board_fault},
    {0},
    {0},
    {0},
    {board_fault},
    {board_fault},
    {0},
    {board_fault},
    {board_fault},
};

/* In assembly, because it paints the stack that C would already be using. */
__attribute__((naked, used)) void board_reset(void) {
    __asm__ volatile(".syntax unified\n"
                     "ldr r0, =board_stack\n"
                     "ldr r1, =board_stack_top\n"
                     "ldr r2, =0xa5a5a5a5\n"
                     "mov sp, r1\n"
                     "1: cmp r0, r1\n"
                     "bhs 2f\n"
                     "str r2, [r0]\n"
                     "adds r0, r0, #4\n"
                     "b 1b\n"
                     "2: bl board_start\n"
                     "b .\n");
}

/* RAM beyond the device's, and writes to flash, fault from here on. A core without a memory protection unit says that
 * it has no regions. */
static void protect(void) {
    if (!board_region_count || (MPU_TYPE >> 8 & 0xffu) < (uint32_t)board_region_count) { return; }
    MPU_CTRL = 0;
#if __ARM_ARCH >= 8
    MPU_MAIR0 = 0x0000aa00u | 0x00000004u << 16; /* attribute 1: memory, write-through; 2: devices */
#endif
    for (int i = 0; i < board_region_count; i++) {
        MPU_RNR = (uint32_t)i;
        MPU_RBAR = board_regions[i].base;
        MPU_RASR = board_regions[i].attributes;
    }
    MPU_CTRL = 1; /* no default map behind the regions; off inside fault handlers, which must be able to report */
    __asm__ volatile("dsb\n isb" ::: "memory");
}

__attribute__((used)) void board_start(void) {
#if defined(__ARM_FP)
    CPACR |= 0xfu << 20; /* before the first instruction that uses it */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    const uint32_t *from = board_data_source;
    for (uint32_t *to = board_data; to < board_data_end;) { *to++ = *from++; }
    for (uint32_t *to = board_bss; to < board_bss_end;) { *to++ = 0; }
    protect();
    board_exit(main());
}

/* Nothing is returned to, so the whole stack is there for the report: also when it is the stack that overflowed. */
__attribute__((naked, used)) void board_fault(void) {
    __asm__ volatile("ldr r0, =board_stack_top\n"
                     "mov sp, r0\n"
                     "bl board_report_fault\n"
                     "b .\n");
}

__attribute__((used)) void board_report_fault(void) {
    const uint32_t why = CFSR, memory = MMFAR, bus = BFAR;
    board_print("fault: CFSR ");
    board_print_hex(why);
    if (why & (1u << 7 | 1u << 15)) {
        board_print(", address ");
        board_print_hex(why & 1u << 7 ? memory : bus);
    }
    board_print("\n");
    board_exit(BOARD_FAULT);
}

uint32_t board_stack_used(void) {
    const uint32_t *at = board_stack;
    while (at < board_stack_top && *at == PAINT) { at++; }
    return (uint32_t)((uintptr_t)board_stack_top - (uintptr_t)at);
}
