/* See frames.h. What is in memory begins with a byte that could be the first of a frame, or is nothing. */
#include "frames.h"
#include "crc.h"

enum { FIRST = 0xa5, SECOND = 0x5a };
enum { AT_VERSION = 2, AT_TYPE = 3, AT_SESSION = 4, AT_SEQUENCE = 8, AT_BYTES = 12, AT_CHECK = 14 };

void smg_frame_reader(SmgFrameReader *r, void *memory, uint32_t bytes) {
    *r = (SmgFrameReader){.memory = (uint8_t *)memory, .room = bytes, .needed = SMG_FRAME_HEADER_BYTES};
}

void smg_frame_byte(SmgFrameReader *r, uint8_t byte) {
    if (r->have < r->room) { r->memory[r->have++] = byte; }
}

/* Bytes of the frame that begins there, as far as it can be told from `have`; 0: none begins there. */
static uint32_t expected(const uint8_t *at, uint32_t have, uint32_t room) {
    if (at[0] != FIRST || (have > 1 && at[1] != SECOND)) { return 0; }
    if (have < SMG_FRAME_HEADER_BYTES) { return SMG_FRAME_HEADER_BYTES; }
    if (at[AT_VERSION] != SMG_FRAME_VERSION) { return 0; }
    if ((smg_crc32(0, at, AT_CHECK) & 0xffffu) != smg_get16(at + AT_CHECK)) { return 0; }
    const uint32_t all = SMG_FRAME_EXTRA_BYTES + smg_get16(at + AT_BYTES);
    return all <= room ? all : 0;
}

static int is_whole(const uint8_t *at, uint32_t all) { return smg_crc32(0, at, all - 4) == smg_get32(at + all - 4); }

int smg_frame_next(SmgFrameReader *r, SmgFrame *frame) {
    uint32_t at = r->given; /* is done with */
    r->given = 0;
    if (!at && r->have < r->needed) { return 0; }
    uint32_t all = 0;
    for (; at < r->have; at++, r->dropped++) {
        const uint32_t have = r->have - at;
        all = expected(r->memory + at, have, r->room);
        if (all && (have < all || is_whole(r->memory + at, all))) { break; }
    }
    r->have -= at;
    if (at && r->have) { memmove(r->memory, r->memory + at, r->have); }
    r->needed = r->have ? all : 1;
    if (!r->have || r->have < all) { return 0; }
    const uint8_t *m = r->memory;
    *frame = (SmgFrame){.type = m[AT_TYPE],
                        .bytes = (uint16_t)smg_get16(m + AT_BYTES),
                        .session = smg_get32(m + AT_SESSION),
                        .sequence = smg_get32(m + AT_SEQUENCE),
                        .payload = m + SMG_FRAME_HEADER_BYTES};
    r->given = all;
    return 1;
}

uint32_t smg_frame_write(uint8_t *to, uint8_t type, uint32_t session, uint32_t sequence, uint16_t payload_bytes) {
    const uint32_t before = SMG_FRAME_HEADER_BYTES + (uint32_t)payload_bytes;
    to[0] = FIRST;
    to[1] = SECOND;
    to[AT_VERSION] = SMG_FRAME_VERSION;
    to[AT_TYPE] = type;
    smg_put32(to + AT_SESSION, session);
    smg_put32(to + AT_SEQUENCE, sequence);
    smg_put16(to + AT_BYTES, payload_bytes);
    smg_put16(to + AT_CHECK, smg_crc32(0, to, AT_CHECK) & 0xffffu);
    smg_put32(to + before, smg_crc32(0, to, before));
    return before + 4;
}
