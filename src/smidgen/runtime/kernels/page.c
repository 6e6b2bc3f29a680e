/* Values that live in PAGE: page_out, and back with page_in, or with page_start and page_wait, between which other
 * kernels run. A PAGE operand is an offset, and the pager (smidgen.h) knows what is there.
 *
 * Built with -DSMG_PAGE_CHECK, each piece has a CRC-32 in the word behind it, compared when it comes back; 0 stands for
 * "none", as behind initial values. There is room for the word in every program. */
#include "../kernel.h"
#ifdef SMG_PAGE_CHECK
#include "../crc.h"
#endif
#if SMG_PAGES

typedef struct {
    int32_t bytes;
} Page;
UNPACK(page_of, Page)

static size_t checksum_at(size_t offset, size_t bytes) { return offset + (bytes + 3) / 4 * 4; }

/* Operand 0 and 1; `page` is the one in PAGE. */
static int page_need(const int32_t *p, uint64_t *need, int page) {
    const Page v = page_of(p);
    if (v.bytes < 0) { return -1; }
    need[0] = need[1] = (uint64_t)v.bytes;
#ifdef SMG_PAGE_CHECK
    need[page] = (uint64_t)checksum_at(0, (size_t)v.bytes) + 4;
#else
    (void)page;
    (void)checksum_at;
#endif
    return 0;
}

#ifdef SMG_PAGE_CHECK
static uint32_t checksum(const void *data, size_t bytes) {
    const uint32_t crc = smg_crc32(0, (const uint8_t *)data, bytes);
    return crc ? crc : 1;
}
#endif

/* What the pager said, if anything, is handed on. */
static SmgFault answered(const SmgCall *c, const char *why) {
    if (!why) { return SMG_NO_FAULT; }
    *c->said = why;
    return SMG_FAULT_PAGER;
}

/* Of a piece that came back to `data`, unless the pager had something to say. */
static SmgFault checked(const SmgCall *c, const char *why, size_t offset, const void *data, size_t bytes) {
#ifdef SMG_PAGE_CHECK
    uint32_t stored = 0;
    if (!why) { why = c->pager->read(c->pager->self, checksum_at(offset, bytes), &stored, sizeof stored); }
    if (!why && stored && stored != checksum(data, bytes)) { return SMG_FAULT_PAGE_DAMAGED; }
#else
    (void)offset;
    (void)data;
    (void)bytes;
#endif
    return answered(c, why);
}

static size_t offset_of(const SmgCall *c, int operand) { return (size_t)(uintptr_t)c->op[operand]; }

EXTENT(page_out) { return page_need(p, need, 0); }
KERNEL(page_out, "Pi", PARAMS(Page)) {
    const size_t bytes = (size_t)page_of(c->p).bytes, offset = offset_of(c, 0);
    const char *why = bytes ? c->pager->write(c->pager->self, offset, c->op[1], bytes) : NULL;
#ifdef SMG_PAGE_CHECK
    const uint32_t crc = checksum(c->op[1], bytes);
    if (!why) { why = c->pager->write(c->pager->self, checksum_at(offset, bytes), &crc, sizeof crc); }
#endif
    return answered(c, why);
}

EXTENT(page_in) { return page_need(p, need, 1); }
KERNEL(page_in, "op", PARAMS(Page)) {
    const size_t bytes = (size_t)page_of(c->p).bytes, offset = offset_of(c, 1);
    const char *why = bytes ? c->pager->read(c->pager->self, offset, c->op[0], bytes) : NULL;
    return checked(c, why, offset, c->op[0], bytes);
}

EXTENT(page_start) { return page_need(p, need, 1); }
KERNEL_FLAGS(page_start, "bp", PARAMS(Page), SMG_STARTS) {
    const size_t bytes = (size_t)page_of(c->p).bytes, offset = offset_of(c, 1);
    if (!bytes) { return SMG_NO_FAULT; }
    return answered(c, (c->pager->start ? c->pager->start : c->pager->read)(c->pager->self, offset, c->op[0], bytes));
}

EXTENT(page_wait) { return page_need(p, need, 1); }
KERNEL(page_wait, "wp", PARAMS(Page)) {
    const size_t bytes = (size_t)page_of(c->p).bytes;
    const char *why = bytes && c->pager->wait ? c->pager->wait(c->pager->self, c->op[0]) : NULL;
    return checked(c, why, offset_of(c, 1), c->op[0], bytes);
}
#else
typedef int SmgNothingHere; /* an empty file is not C */
#endif
