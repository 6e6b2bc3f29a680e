/* See fleet_rows.h. The program asks for pieces of its inputs through a channel, so no batch needs memory of its own.
 * An input of n samples is laid out as [outer][sample][inner bytes]; a row has its outer · inner bytes together. */
#include "fleet_rows.h"
#include "format.h"
#include "smidgen_train.h"

enum { MOST_BUFFERS = 9 }; /* inputs and target, or inputs and outputs; of a step, the loss besides */

typedef struct {
    uint32_t at, outer, inner; /* of an input, in a row */
} Place;

typedef struct {
    const SmgRows *rows;
    const SmgWanted *wanted;
    uint32_t row_bytes;
    Place inputs[MOST_BUFFERS];
    uint32_t outputs[MOST_BUFFERS]; /* where each begins among all */
} Run;

/* 0: it is the same for all samples, or larger than any row can be. */
static int place_of(const SmgBufferInfo *info, Place *place) {
    uint64_t outer = 1, inner = smg_types[info->type].bytes;
    if (info->batch_axis < 0) { return 0; }
    for (int k = 0; k < info->rank; k++) {
        uint64_t *side = k < info->batch_axis ? &outer : &inner;
        *side *= (uint64_t)info->dims[k];
        if (outer * inner > 0x7fffffffu || outer > 0x7fffffffu) { return 0; }
    }
    place->outer = (uint32_t)outer;
    place->inner = (uint32_t)inner;
    return outer * inner != 0;
}

/* Looks for an input of `train` by its name, and says where it is in a row. Without a name: how large a row is. */
static uint32_t in_row(const SmgContext *x, const char *name, Place *place) {
    const int train = smg_entry(x, "train"), count = train < 0 ? 0 : smg_buffer_count(x, train);
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info;
        Place found;
        if (smg_buffer_info(x, train, i, &info) || info.is_output) { break; }
        if (!place_of(&info, &found)) { return 0; }
        found.at = (uint32_t)at;
        if (name && strcmp(name, info.name) == 0) {
            *place = found;
            return 1;
        }
        at += (uint64_t)found.outer * found.inner;
        if (at > 0x7fffffffu) { return 0; }
    }
    return name ? 0 : (uint32_t)at;
}

uint32_t smg_fleet_row_bytes(const SmgContext *x) { return in_row(x, NULL, NULL); }

SmgFleetError smg_fleet_rows_fit(const SmgRows *r) {
    const uint32_t row = smg_fleet_row_bytes(r->context);
    if (!row) { return SMG_FLEET_SHAPE; }
    if (r->n < 1 || r->n > smg_batch(r->context)) { return SMG_FLEET_RANGE; }
    for (int32_t i = 0; i < r->n; i++) {
        if (smg_get16(r->numbers + 2 * i) >= r->rows_bytes / row) { return SMG_FLEET_RANGE; }
    }
    return SMG_FLEET_OK;
}

static int read_rows(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    const Run *run = (const Run *)self;
    const Place p = run->inputs[buffer];
    uint8_t *next = (uint8_t *)to;
    while (bytes) {
        const size_t piece = offset / p.inner, from = offset % p.inner, left = p.inner - from;
        const size_t sample = piece % (size_t)run->rows->n, outer = piece / (size_t)run->rows->n;
        const size_t count = left < bytes ? left : bytes;
        const size_t row = smg_get16(run->rows->numbers + 2 * sample);
        memcpy(next, run->rows->rows + row * run->row_bytes + p.at + outer * p.inner + from, count);
        next += count;
        offset += count;
        bytes -= count;
    }
    return 0;
}

static int write_wanted(void *self, int buffer, size_t offset, const void *from, size_t bytes) {
    const Run *run = (const Run *)self;
    const SmgWanted *w = run->wanted;
    const size_t begin = run->outputs[buffer] + offset, end = begin + bytes, first = w->offset, last = first + w->bytes;
    const size_t low = begin > first ? begin : first, high = end < last ? end : last;
    if (low < high) { memcpy(w->to + (low - first), (const uint8_t *)from + (low - begin), high - low); }
    return 0;
}

static SmgFleetError result(SmgStatus status) { return status ? SMG_FLEET_STOPPED : SMG_FLEET_OK; }

/* Where the inputs of an entry point are in a row; how many, or -1. *bytes: of all outputs of n samples. */
static int find_buffers(Run *run, const char *name, uint32_t *bytes) {
    SmgContext *x = run->rows->context;
    const int entry = smg_entry(x, name), count = entry < 0 ? 0 : smg_buffer_count(x, entry);
    uint64_t all = 0;
    int inputs = 0;
    run->row_bytes = smg_fleet_row_bytes(x);
    if (count < 1 || count > MOST_BUFFERS) { return -1; }
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info;
        if (smg_buffer_info(x, entry, i, &info)) { return -1; }
        if (info.is_output) {
            run->outputs[i] = (uint32_t)all;
            all += smg_buffer_bytes(x, entry, i, run->rows->n);
            if (all > 0x7fffffffu) { return -1; }
        } else if (in_row(x, info.name, &run->inputs[i])) {
            inputs++;
        } else {
            return -1;
        }
    }
    *bytes = (uint32_t)all;
    return inputs;
}

SmgFleetError smg_fleet_step(const SmgRows *r, SmgSamples s, float *loss, uint8_t *is_whole) {
    static const SmgBuffer none[MOST_BUFFERS]; /* the channel delivers */
    Run run = {.rows = r};
    SmgContext *x = r->context;
    const SmgChannel channel = {&run, read_rows, NULL};
    const int is_part = s.n != s.total;
    uint32_t bytes;
    const int inputs = find_buffers(&run, is_part ? "grad" : "train", &bytes);
    if (inputs < 0) { return SMG_FLEET_SHAPE; }
    SmgStatus status = SMG_OK;
    if (is_part) {
        if (s.first == 0) { status = smg_zero(x); }
        if (!status) { status = smg_grad(x, none, inputs, s, loss, &channel); }
        if (status || s.first + s.n < s.total) { return result(status); }
        status = smg_apply(x);
    } else {
        status = smg_train_step(x, none, inputs, s.n, loss, &channel);
    }
    if (status == SMG_STOPPED) { *is_whole = 0; }
    return result(status);
}

SmgFleetError smg_fleet_infer(const SmgRows *r, const SmgWanted *wanted) {
    static const SmgBuffer none[MOST_BUFFERS];
    Run run = {.rows = r, .wanted = wanted};
    uint32_t bytes;
    const SmgChannel channel = {&run, read_rows, write_wanted};
    const int inputs = find_buffers(&run, "infer", &bytes);
    if (inputs < 0) { return SMG_FLEET_SHAPE; }
    if (wanted->offset > bytes || wanted->bytes > bytes - wanted->offset) { return SMG_FLEET_RANGE; }
    memset(wanted->to, 0, wanted->bytes);
    const int count = smg_buffer_count(r->context, smg_entry(r->context, "infer"));
    return result(smg_infer(r->context, none, count, r->n, &channel));
}
