/* See stream.h. Every bit is that of job.learn on the host with kernels="exact". */
#include "stream.h"
#include "../smidgen_train.h"
#include "store.h"
#include <errno.h>
#include <string.h>

typedef struct {
    SmgBuffer io[2 * DATA_MOST_INPUTS]; /* inputs, target, loss, outputs of one sample */
    int inputs, count;                  /* of the model; of all buffers */
    float loss;
} Sample;

static int takes_itself(const SmgContext *x, int entry) {
    SmgBufferInfo sample, target, loss;
    if (smg_buffer_info(x, entry, 0, &sample) || smg_buffer_info(x, entry, 1, &target) ||
        smg_buffer_info(x, entry, 2, &loss) || target.is_output || !loss.is_output) {
        return 0;
    }
    return sample.type == target.type && sample.rank == target.rank &&
           memcmp(sample.dims, target.dims, (size_t)sample.rank * sizeof sample.dims[0]) == 0;
}

int stream_open(Data *d, const SmgContext *x, const char *npz, char **raw, int raws) {
    const int entry = smg_entry(x, "learn");
    return data_open(d, x, entry, npz, raw, raws, takes_itself(x, entry), 1);
}

/* Memory for the outputs of one sample, and places for all else. NULL, or why not. */
static const char *room(Sample *one, const SmgContext *x, const Data *d) {
    const int entry = smg_entry(x, "learn");
    SmgBufferInfo info;
    one->count = smg_buffer_count(x, entry);
    if (one->count > 2 * DATA_MOST_INPUTS) { return "the program has too many buffers"; }
    for (one->inputs = 0; !smg_buffer_info(x, entry, one->inputs, &info) && !info.is_output;) { one->inputs++; }
    one->inputs--; /* without the target */
    for (int i = 0; i < one->inputs; i++) { one->io[i] = d->inputs[i].staged; }
    one->io[one->inputs] = d->inputs[d->count > one->inputs ? one->inputs : 0].staged;
    one->io[one->inputs + 1] = (SmgBuffer){&one->loss, sizeof one->loss};
    for (int i = one->inputs + 2; i < one->count; i++) {
        const size_t bytes = (size_t)smg_buffer_bytes(x, entry, i, 1);
        one->io[i] = (SmgBuffer){data_memory(bytes), bytes};
        if (!one->io[i].data) { return strerror(errno); }
    }
    return NULL;
}

/* As `job.learn` with replay: a prediction, then a step with old samples beside the new one, which is kept. */
static SmgStatus replayed(SmgContext *x, const SmgReplay *replay, Sample *one, void *rows, size_t bytes) {
    SmgStatus status = smg_judge(x, one->io, one->count, 1, NULL);
    if (!status) { status = smg_replay_step(x, replay, one->io, one->inputs + 1, 1, rows, bytes, &one->loss, NULL); }
    return status ? status : smg_replay_keep(x, replay, rows, 1);
}

static const char *written(const Sample *one, const Stream *s) {
    const SmgBuffer out = one->io[one->inputs + 2];
    if (s->losses && fwrite(&one->loss, sizeof one->loss, 1, s->losses) != 1) { return strerror(errno); }
    if (s->out && fwrite(out.data, 1, out.bytes, s->out) != out.bytes) { return strerror(errno); }
    return NULL;
}

static const char *begin_output(const SmgContext *x, const Data *d, const Sample *one, FILE *file) {
    SmgBufferInfo out;
    uint64_t dims[NPZ_MAX_RANK];
    if (smg_buffer_info(x, smg_entry(x, "learn"), one->inputs + 2, &out) || out.type != SMG_F32 || out.batch_axis) {
        return "only programs whose first output is of f32 numbers can write it";
    }
    for (int i = 0; i < out.rank; i++) { dims[i] = (uint64_t)out.dims[i] * (i ? 1 : d->samples); }
    return store_npy(file, dims, out.rank) ? strerror(errno) : NULL;
}

const char *stream_learn(SmgContext *x, Data *d, const SmgReplay *replay, Stream *s) {
    static Sample one;
    const size_t bytes = replay->samples ? smg_replay_rows_bytes(replay, 1) : 0;
    void *rows = bytes ? data_memory(bytes) : NULL;
    const char *why = room(&one, x, d);
    if (bytes && !rows) { return strerror(errno); }
    if (!why && s->out) { why = begin_output(x, d, &one, s->out); }
    for (uint64_t i = 0; !why && i < d->samples; i++) {
        if (data_take(d, i, 1)) { return d->message; }
        const SmgStatus status =
            bytes ? replayed(x, replay, &one, rows, bytes) : smg_learn(x, one.io, one.count, 1, NULL);
        if (status) { return smg_error(x); }
        s->loss += (double)one.loss / (double)d->samples;
        why = written(&one, s);
    }
    if (!why && smg_usual(x, &s->usual)) { why = smg_error(x); }
    return why;
}
