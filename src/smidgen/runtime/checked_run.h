/* What runs an entry point by its name looks for NaN and infinite numbers among its inputs with these. Static: once in
 * each file that includes them, so that the stack of a step has no frame more for them. */
#ifndef SMG_CHECKED_RUN_H
#define SMG_CHECKED_RUN_H
#include "format.h"
#include "smidgen_train.h"

static SmgStatus run(SmgContext *x, const char *name, const SmgBuffer *buffers, int count, SmgSamples samples,
                     const SmgChannel *channel) {
    const int entry = smg_entry(x, name);
    if (entry >= 0 || !x->is_open) { return smg_run_channel(x, entry, buffers, count, samples, channel); }
    smg_say(x, SMG_FAULT_CALL, "the program has no entry point '");
    smg_add_text(x, name);
    smg_add_text(x, "'");
    return SMG_BAD_CALL;
}

/* One such number would make every weight NaN, so no step begins with it. */
static SmgStatus refuse(SmgContext *x, int entry, int buffer) {
    SmgBufferInfo info;
    smg_say(x, SMG_FAULT_NOT_FINITE, "input '");
    smg_add_text(x, smg_buffer_info(x, entry, buffer, &info) ? "" : info.name);
    smg_add_text(x, "' holds NaN or an infinite number");
    return SMG_STOPPED;
}

static int is_float(const SmgContext *x, int entry, int buffer) {
    SmgBufferInfo info;
    return !smg_buffer_info(x, entry, buffer, &info) && info.type == SMG_F32;
}

/* A channel that looks at what it reads. Inputs are read before the first weight changes. */
typedef struct {
    const SmgChannel *inner;
    const SmgContext *x;
    int entry, ruined; /* the input that is, or -1 */
} Watch;

static int watched_read(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    Watch *watch = (Watch *)self;
    const int failed = watch->inner->read(watch->inner->self, buffer, offset, to, bytes);
    if (failed || !is_float(watch->x, watch->entry, buffer) || !smg_not_finite((const uint8_t *)to, bytes)) {
        return failed;
    }
    watch->ruined = buffer;
    return -1;
}

static int watched_write(void *self, int buffer, size_t offset, const void *from, size_t bytes) {
    const SmgChannel *inner = ((Watch *)self)->inner;
    return inner->write(inner->self, buffer, offset, from, bytes);
}
#endif
