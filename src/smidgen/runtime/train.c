/* See smidgen_train.h. Entry points are found by name in each call: there are few, and a step takes far longer. */
#include "smidgen_train.h"
#include "format.h"

#define MOST_INPUTS 8 /* of a model, with its target */

static SmgStatus run(SmgContext *x, const char *name, const SmgBuffer *buffers, int count, SmgSamples samples,
                     const SmgChannel *channel) {
    const int entry = smg_entry(x, name);
    if (entry >= 0 || !x->is_open) { return smg_run_channel(x, entry, buffers, count, samples, channel); }
    smg_say(x, SMG_FAULT_CALL, "the program has no entry point '");
    smg_add_text(x, name);
    smg_add_text(x, "'");
    return SMG_BAD_CALL;
}

/* The loss is the one output of `train` and `grad`; it follows the inputs. */
static SmgStatus with_loss(SmgContext *x, const char *name, const SmgBuffer *inputs, int count, SmgSamples samples,
                           float *loss, const SmgChannel *channel) {
    SmgBuffer buffers[MOST_INPUTS + 1];
    if (count < 0 || count > MOST_INPUTS) { return smg_say(x, SMG_FAULT_CALL, "a step takes at most 8 inputs"); }
    for (int i = 0; i < count; i++) { buffers[i] = inputs[i]; }
    buffers[count] = (SmgBuffer){loss, loss ? sizeof *loss : 0};
    return run(x, name, buffers, count + 1, samples, channel);
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
