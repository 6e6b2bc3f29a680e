/* Copies between the arena and a buffer that has no memory: the walk of copy_b4 and copy_b1 (kernels/movement.c), with
 * the caller's functions on one side. Runs of the outside that are runs of the arena too go straight there; others,
 * where axes change their order, through a few words of stack. */
#include "format.h"

#define PIECE 128 /* bytes of stack */

enum { RANK, SRC_AT, DST_AT, SRC_SIZE, DST_SIZE, DIMS };

typedef struct {
    const SmgChannel *channel;
    int buffer, is_output;
    unsigned width;
} Way;

static int transfer(const Way *way, size_t offset, void *memory, size_t bytes) {
    const SmgChannel *c = way->channel;
    return way->is_output ? c->write(c->self, way->buffer, offset, memory, bytes)
                          : c->read(c->self, way->buffer, offset, memory, bytes);
}

/* `length` elements that follow each other outside, `step` elements apart inside. */
static int line(const Way *way, size_t offset, uint8_t *memory, size_t step, size_t length) {
    const size_t width = way->width;
    if (step == 1 || length == 1) { return transfer(way, offset, memory, length * width); }
    uint32_t piece[PIECE / 4];
    uint8_t *bytes = (uint8_t *)piece;
    for (size_t done = 0; done < length;) {
        const size_t count = length - done < PIECE / width ? length - done : PIECE / width;
        uint8_t *at = memory + done * step * width;
        if (way->is_output) {
            for (size_t i = 0; i < count; i++) { memcpy(bytes + i * width, at + i * step * width, width); }
        }
        const int failed = transfer(way, offset + done * width, piece, count * width);
        if (failed) { return failed; }
        if (!way->is_output) {
            for (size_t i = 0; i < count; i++) { memcpy(at + i * step * width, bytes + i * width, width); }
        }
        done += count;
    }
    return 0;
}

int smg_channel_copy(const SmgChannel *channel, int buffer, int is_output, size_t start, uint8_t *memory,
                     const int32_t *p, unsigned width) {
    const Way way = {channel, buffer, is_output, width};
    const int32_t rank = p[RANK], *dims = p + DIMS, *src = dims + rank, *dst = src + rank;
    const int32_t *out = is_output ? dst : src, *in = is_output ? src : dst;
    /* The axis whose elements follow each other outside is walked in one go. */
    int32_t along = -1, at[SMG_MAX_RANK] = {0};
    for (int32_t i = 0; i < rank; i++) {
        if (dims[i] == 0) { return 0; }
        if (out[i] == 1 && (along < 0 || dims[i] > dims[along])) { along = i; }
    }
    size_t outside = (size_t)p[is_output ? DST_AT : SRC_AT], inside = (size_t)p[is_output ? SRC_AT : DST_AT];
    for (;;) {
        const int failed = line(&way, start + outside * width, memory + inside * width,
                                along < 0 ? 1 : (size_t)in[along], along < 0 ? 1 : (size_t)dims[along]);
        if (failed) { return failed; }
        int32_t axis = rank - 1;
        for (; axis >= 0; axis--) { /* an odometer over the other axes */
            if (axis == along) { continue; }
            outside += (size_t)out[axis];
            inside += (size_t)in[axis];
            if (++at[axis] < dims[axis]) { break; }
            outside -= (size_t)dims[axis] * (size_t)out[axis];
            inside -= (size_t)dims[axis] * (size_t)in[axis];
            at[axis] = 0;
        }
        if (axis < 0) { return 0; }
    }
}
