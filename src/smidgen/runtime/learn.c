/* See smidgen_learn.h. */
#include "smidgen_learn.h"
#include "checked_run.h"

/* How many of the buffers are inputs. Apart, so that what it takes of the stack is free again when the program runs. */
__attribute__((noinline)) static int inputs_of(const SmgContext *x, int entry, int count) {
    int inputs = 0;
    SmgBufferInfo info;
    while (inputs < count && !smg_buffer_info(x, entry, inputs, &info) && !info.is_output) { inputs++; }
    return inputs;
}

static SmgStatus stream(SmgContext *x, const char *name, const SmgBuffer *buffers, int count, int32_t n,
                        const SmgChannel *channel) {
    const int entry = smg_entry(x, name);
    if (smg_check_inputs(x, entry, buffers, inputs_of(x, entry, count), n)) { return SMG_STOPPED; }
    const SmgSamples samples = {n, n, 0};
    if (!channel) { return run(x, name, buffers, count, samples, NULL); }
    Watch watch = {channel, x, entry, -1};
    const SmgChannel looking = {&watch, channel->read ? watched_read : NULL, channel->write ? watched_write : NULL};
    const SmgStatus status = run(x, name, buffers, count, samples, &looking);
    return watch.ruined < 0 ? status : refuse(x, entry, watch.ruined);
}

SmgStatus smg_learn(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel) {
    return stream(x, "learn", buffers, count, n, channel);
}

SmgStatus smg_judge(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel) {
    return stream(x, "judge", buffers, count, n, channel);
}

SmgStatus smg_observe(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel) {
    return stream(x, "observe", buffers, count, n, channel);
}

SmgStatus smg_detect(SmgContext *x, const SmgBuffer *buffers, int count, int32_t n, const SmgChannel *channel) {
    return stream(x, "detect", buffers, count, n, channel);
}

SmgStatus smg_usual(SmgContext *x, SmgUsual *usual) {
    float moved[3], scores[3]; /* drift, mean and deviation: of the layer's input, and of the scores */
    const SmgBuffer reports[] = {{moved, sizeof moved}, {scores, sizeof scores}};
    const SmgStatus status = stream(x, "drift", reports, 2, 1, NULL);
    if (status) { return status; }
    usual->drift = moved[0];
    usual->mean = scores[1];
    usual->deviation = scores[2];
    return SMG_OK;
}

SmgStatus smg_calibrate(SmgContext *x, int32_t samples) {
    float count = (float)samples;
    const SmgBuffer input = {&count, sizeof count};
    return stream(x, "restart", &input, 1, 1, NULL);
}
