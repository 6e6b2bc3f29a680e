/* See blocks.h. */
#include "blocks.h"
#include <string.h>

static const char CANNOT_READ[] = "the block device cannot read", CANNOT_WRITE[] = "the block device cannot write";

static const char *read_blocks(void *self, size_t offset, void *to, size_t bytes) {
    SmgBlocks *b = (SmgBlocks *)self;
    uint8_t *at = (uint8_t *)to;
    b->read_bytes += (uint32_t)bytes;
    while (bytes) {
        const uint32_t block = b->first + (uint32_t)(offset / SMG_BLOCK_BYTES), skip = offset % SMG_BLOCK_BYTES;
        size_t count = bytes / SMG_BLOCK_BYTES * SMG_BLOCK_BYTES;
        if (!skip && count) {
            if (b->read(b->self, block, at, (uint32_t)(count / SMG_BLOCK_BYTES))) { return CANNOT_READ; }
        } else {
            count = bytes < SMG_BLOCK_BYTES - skip ? bytes : SMG_BLOCK_BYTES - skip;
            if (b->read(b->self, block, b->piece, 1)) { return CANNOT_READ; }
            memcpy(at, b->piece + skip, count);
        }
        at += count;
        offset += count;
        bytes -= count;
    }
    return NULL;
}

static const char *write_blocks(void *self, size_t offset, const void *from, size_t bytes) {
    SmgBlocks *b = (SmgBlocks *)self;
    const uint8_t *at = (const uint8_t *)from;
    b->written_bytes += (uint32_t)bytes;
    while (bytes) {
        const uint32_t block = b->first + (uint32_t)(offset / SMG_BLOCK_BYTES), skip = offset % SMG_BLOCK_BYTES;
        size_t count = bytes / SMG_BLOCK_BYTES * SMG_BLOCK_BYTES;
        if (!skip && count) {
            if (b->write(b->self, block, at, (uint32_t)(count / SMG_BLOCK_BYTES))) { return CANNOT_WRITE; }
        } else {
            count = bytes < SMG_BLOCK_BYTES - skip ? bytes : SMG_BLOCK_BYTES - skip;
            if (b->read(b->self, block, b->piece, 1)) { return CANNOT_READ; }
            memcpy(b->piece + skip, at, count);
            if (b->write(b->self, block, b->piece, 1)) { return CANNOT_WRITE; }
        }
        at += count;
        offset += count;
        bytes -= count;
    }
    return NULL;
}

SmgPager smg_block_pager(SmgBlocks *blocks) {
    const SmgPager pager = {blocks, read_blocks, write_blocks, NULL, NULL};
    return pager;
}
