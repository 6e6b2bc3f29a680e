/* See smidgen_train.h. Entry points are found by name in each call: there are few, and a step takes far longer. */
#include "smidgen_train.h"
#include "checked_run.h"

#define MOST_INPUTS 8 /* of a model, with its target */

/* Is a number among these NaN or infinite? Then all bits of its exponent are set. */
int smg_not_finite(const uint8_t *at, size_t bytes) {
    for (uint32_t word; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        if ((word & 0x7f800000u) == 0x7f800000u) { return 1; }
    }
    return 0;
}

SmgStatus smg_check_inputs(SmgContext *x, int entry, const SmgBuffer *inputs, int count, int32_t n) {
    for (int i = 0; i < count; i++) {
        const uint64_t bytes = smg_buffer_bytes(x, entry, i, n); /* 0: no such buffer, as smg_run will say */
        if (!inputs[i].data || inputs[i].bytes < bytes || !is_float(x, entry, i)) { continue; }
        if (smg_not_finite((const uint8_t *)inputs[i].data, (size_t)bytes)) { return refuse(x, entry, i); }
    }
    return SMG_OK;
}

/* The loss is the one output of `train` and `grad`; it follows the inputs. */
static SmgStatus with_loss(SmgContext *x, const char *name, const SmgBuffer *inputs, int count, SmgSamples samples,
                           float *loss, const SmgChannel *channel) {
    SmgBuffer buffers[MOST_INPUTS + 1];
    if (count < 0 || count > MOST_INPUTS) { return smg_say(x, SMG_FAULT_CALL, "a step takes at most 8 inputs"); }
    const int entry = smg_entry(x, name);
    if (smg_check_inputs(x, entry, inputs, count, samples.n)) { return SMG_STOPPED; }
    for (int i = 0; i < count; i++) { buffers[i] = inputs[i]; }
    buffers[count] = (SmgBuffer){loss, loss ? sizeof *loss : 0};
    if (!channel) { return run(x, name, buffers, count + 1, samples, NULL); }
    Watch watch = {channel, x, entry, -1};
    const SmgChannel looking = {&watch, channel->read ? watched_read : NULL, channel->write ? watched_write : NULL};
    const SmgStatus status = run(x, name, buffers, count + 1, samples, &looking);
    return watch.ruined < 0 ? status : refuse(x, entry, watch.ruined);
}

SmgStatus smg_train_step(SmgContext *x, const SmgBuffer *inputs, int count, int32_t n, float *loss,
                         const SmgChannel *channel) {
    return with_loss(x, "train", inputs, count, (SmgSamples){n, n, 0}, loss, channel);
}

SmgStatus smg_grad(SmgContext *x, const SmgBuffer *inputs, int count, SmgSamples samples, float *loss,
                   const SmgChannel *channel) {
    return with_loss(x, "grad", inputs, count, samples, loss, channel);
}

SmgStatus smg_zero(SmgContext *x) { return run(x, "zero", NULL, 0, (SmgSamples){1, 1, 0}, NULL); }
SmgStatus smg_apply(SmgContext *x) { return run(x, "apply", NULL, 0, (SmgSamples){1, 1, 0}, NULL); }

SmgStatus smg_infer(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel) {
    return run(x, "infer", buffers, count, (SmgSamples){n, n, 0}, channel);
}

SmgBuffer smg_state(SmgContext *x) {
    const SmgBuffer none = {NULL, 0}, found = {x->state, smg_state_bytes(x)};
    return x->is_open ? found : none;
}
