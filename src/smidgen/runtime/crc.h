/* CRC-32 (zlib's), four bits at a time: the table costs 64 bytes of flash. */
#ifndef SMG_CRC_H
#define SMG_CRC_H
#include <stddef.h>
#include <stdint.h>

/* Of the bytes so far and these; starts with 0. */
static inline uint32_t smg_crc32(uint32_t so_far, const uint8_t *data, size_t bytes) {
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu,
    };
    uint32_t crc = ~so_far;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}
#endif
