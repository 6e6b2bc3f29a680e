/* The serial port of the emulated boards: that of Arm's CMSDK. A device of your own has another one, whose driver goes
 * into the place of serial.c. */
#ifndef SERIAL_H
#define SERIAL_H
#include "board.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const uint32_t board_serial; /* address of its registers, in memory.c of the board; 0: not known */

/* 115,200 bits a second. 0 on success. */
int serial_open(void);
/* The next byte; the core sleeps until it comes. */
uint8_t serial_read(void);
void serial_write(const uint8_t *bytes, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
