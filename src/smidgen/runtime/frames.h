/* Frames on a line that loses, changes and repeats bytes: a serial port, a radio. Nothing in them is trusted before its
 * checksum fits, and after anything that does not fit, reading goes on at the next byte that could begin a frame. All
 * memory is the caller's, and of one size. Numbers are little-endian.
 *
 *   0  0xa5 0x5a · format version u8 · type u8 · session u32 · sequence number u32
 *  12  bytes of the payload u16 · CRC-32 of the 14 bytes before, its lower half
 *  16  payload · CRC-32 of all before */
#ifndef SMIDGEN_FRAMES_H
#define SMIDGEN_FRAMES_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_FRAME_VERSION      1
#define SMG_FRAME_HEADER_BYTES 16
#define SMG_FRAME_EXTRA_BYTES  20 /* of a frame besides its payload */

typedef struct {
    uint8_t type;
    uint16_t bytes; /* of the payload */
    uint32_t session, sequence;
    const uint8_t *payload;
} SmgFrame;

/* Fields are for smg_frame_... only. */
typedef struct {
    uint8_t *memory;
    uint32_t room, have, needed; /* bytes; needed before there is more to look at */
    uint32_t given;              /* of the frame that was given last */
    uint32_t dropped;            /* bytes that were no part of a frame, since the start */
} SmgFrameReader;

/* Reads frames of up to `bytes`, which stay in `memory`. */
void smg_frame_reader(SmgFrameReader *r, void *memory, uint32_t bytes);

/* Takes a byte from the line. Call smg_frame_next after each. */
void smg_frame_byte(SmgFrameReader *r, uint8_t byte);

/* 1 if a frame is there: it is valid until the next call. Call it until it returns 0. */
int smg_frame_next(SmgFrameReader *r, SmgFrame *frame);

/* Makes a frame around a payload that is at to + SMG_FRAME_HEADER_BYTES already; its bytes in all. */
uint32_t smg_frame_write(uint8_t *to, uint8_t type, uint32_t session, uint32_t sequence, uint16_t payload_bytes);

static inline uint32_t smg_get16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static inline uint32_t smg_get32(const uint8_t *at) { return smg_get16(at) | smg_get16(at + 2) << 16; }
static inline void smg_put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}
static inline void smg_put32(uint8_t *at, uint32_t value) {
    smg_put16(at, value);
    smg_put16(at + 2, value >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
