/* Paging to a block device: an SD card, an eMMC, a second bank of flash. The board brings two functions.
 *
 *     static SmgBlocks card = {.read = my_read, .write = my_write, .first = 2048};
 *     static SmgPager pager;
 *     smg_open(&x, …);
 *     pager = smg_block_pager(&card);
 *     if (smg_set_pager(&x, &pager)) fail(smg_error(&x));
 *
 * Whole blocks go straight between the device and the arena; the end of a piece goes through `piece`, which is read
 * before it is written. */
#ifndef SMIDGEN_BLOCKS_H
#define SMIDGEN_BLOCKS_H
#include "smidgen.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_BLOCK_BYTES 512

typedef struct {
    void *self; /* handed to both, which return 0 when all is done */
    int (*read)(void *self, uint32_t block, void *to, uint32_t blocks);
    int (*write)(void *self, uint32_t block, const void *from, uint32_t blocks);
    uint32_t first;                     /* the device's block where pages begin; smg_page_bytes of it are used */
    uint32_t read_bytes, written_bytes; /* paged so far */
    uint8_t piece[SMG_BLOCK_BYTES];
} SmgBlocks;

/* A pager without start and wait, so that both happen at once. */
SmgPager smg_block_pager(SmgBlocks *blocks);

#ifdef __cplusplus
}
#endif
#endif
