/* The board under the program: start, memory protection, and files of the machine that the debugger or emulator runs on
 * (Arm semihosting). Nothing here takes RAM but stack. An application of your own needs startup.c and no more. */
#ifndef BOARD_H
#define BOARD_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BOARD_FAULT 70 /* exit status after a fault */

/* Regions of the memory protection unit: the two words of each (RBAR and RASR, or RBAR and RLAR in ARMv8-M), with the
 * region's number left out. memory.c of the board has them. */
typedef struct {
    uint32_t base, attributes;
} BoardRegion;
extern const BoardRegion board_regions[];
extern const int board_region_count;

/* From the linker script. */
extern uint32_t board_stack[], board_stack_top[];

/* The most bytes of stack in use since the start. */
uint32_t board_stack_used(void);

/* Semihosting: only with a debugger or an emulator attached. */
void board_exit(int status);
void board_print(const char *text);
void board_print_number(uint32_t number);
void board_print_hex(uint32_t number);
enum {
    BOARD_READ = 1,
    BOARD_KEEP = 3,
    BOARD_WRITE = 5,
    BOARD_UPDATE = 7
}; /* binary; the last two start an empty file */
int board_open(const char *path, int mode);                             /* a number for the file, or -1 */
int board_read(int file, uint32_t at, void *to, size_t bytes);          /* 0 if all of it was read */
int board_write(int file, uint32_t at, const void *from, size_t bytes); /* 0 if all of it was written */

#ifdef __cplusplus
}
#endif
#endif
