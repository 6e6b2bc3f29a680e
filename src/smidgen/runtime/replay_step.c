/* A training step with replay, see replay.h: stage the new samples, then train on them and on old ones.
 * The step reads its samples through a channel, old ones straight from the buffer, so that no batch needs memory. */
#include "format.h"
#include "replay_rows.h"
#include "smidgen_train.h"

/* The samples of a step: n new ones, then k of the buffer. A call of a micro-batch begins at `first` of them. */
typedef struct {
    const SmgReplay *r;
    const uint8_t *memory, *rows;
    const SmgPager *pager;
    uint32_t n, k, first;
    int leaves_out;  /* samples that count for nothing */
    const char *why; /* an old sample could not be read */
} Rows;

static const uint8_t *rows_of(const Rows *s, uint32_t part) {
    const uint8_t *at = s->rows;
    for (uint32_t i = 0; i < part; i++) { at += (s->n * smg_replay_row_bytes(s->r, i) + 3) / 4 * 4; }
    return at;
}

static int counts(const Rows *s, uint32_t row) {
    int32_t label;
    if (row < s->n) {
        memcpy(&label, rows_of(s, s->r->parts - 1) + 4 * (size_t)row, sizeof label);
    } else {
        label = (int32_t)smg_class_at(s->r, s->memory, smg_replay_place(s->r, s->memory, s->k, row - s->n));
    }
    return label != s->r->ignore;
}

/* How many samples of the step count. */
static int32_t counted(const Rows *s) {
    int32_t found = 0;
    for (uint32_t row = 0; row < s->n + s->k; row++) { found += counts(s, row); }
    return found;
}

/* The sample that is the i-th of those that are learned from. */
static uint32_t nth_row(const Rows *s, uint32_t i) {
    uint32_t row = 0;
    if (!s->leaves_out) { return i; }
    while (!counts(s, row) || i-- != 0) { row++; }
    return row;
}

static int read_rows(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    Rows *s = (Rows *)self;
    const uint32_t part = (uint32_t)buffer, each = smg_replay_row_bytes(s->r, part);
    uint8_t *at = (uint8_t *)to;
    while (bytes) {
        const uint32_t row = nth_row(s, s->first + (uint32_t)(offset / each)), in = (uint32_t)(offset % each);
        const uint32_t count = bytes < each - in ? (uint32_t)bytes : each - in;
        if (row < s->n) {
            memcpy(at, rows_of(s, part) + (size_t)row * each + in, count);
        } else {
            const uint32_t place = smg_replay_place(s->r, s->memory, s->k, row - s->n);
            s->why = smg_replay_read(s->r, s->memory, s->pager, place, part, in, at, count);
            if (s->why) { return 1; }
        }
        at += count;
        offset += count;
        bytes -= count;
    }
    return 0;
}

/* The caller's channel, for the samples from `first` on. */
typedef struct {
    const SmgChannel *inner;
    const SmgContext *x;
    int entry;
    int32_t first;
    int ruined; /* an input that holds NaN or infinity, or -1 */
} Source;

static int read_source(void *self, int buffer, size_t offset, void *to, size_t bytes) {
    Source *s = (Source *)self;
    SmgBufferInfo info;
    const size_t skipped = s->first ? (size_t)smg_buffer_bytes(s->x, s->entry, buffer, s->first) : 0;
    const int failed = s->inner->read(s->inner->self, buffer, skipped + offset, to, bytes);
    if (!failed && !smg_buffer_info(s->x, s->entry, buffer, &info) && info.type == SMG_F32 &&
        smg_not_finite((const uint8_t *)to, bytes)) {
        s->ruined = buffer;
        return 1;
    }
    return failed;
}

static SmgStatus refused(SmgContext *x, const char *why) { return smg_say(x, SMG_FAULT_CALL, why); }

/* The part itself, as the caller gives it: all n samples of inputs[i], which is buffer i of `entry`. */
static SmgStatus copy_rows(SmgContext *x, const SmgBuffer *inputs, int i, uint8_t *to, size_t bytes,
                           const SmgChannel *channel) {
    if (inputs[i].data) {
        if (inputs[i].bytes < bytes) { return refused(x, "an input has fewer bytes than the samples take"); }
        memcpy(to, inputs[i].data, bytes);
        return SMG_OK;
    }
    if (!channel || !channel->read) { return refused(x, "an input has neither memory nor a channel"); }
    if (!channel->read(channel->self, i, 0, to, bytes)) { return SMG_OK; }
    return smg_say(x, SMG_FAULT_CHANNEL_READ, "a channel could not read an input");
}

/* Runs `features` on the new samples, as many at a time as a call takes. */
static SmgStatus run_features(SmgContext *x, int entry, const SmgBuffer *inputs, int count, const Rows *s,
                              const SmgChannel *channel) {
    SmgBuffer buffers[2 * SMG_REPLAY_PARTS];
    const int32_t n = (int32_t)s->n, most = smg_batch(x);
    const int outputs = (int)s->r->parts - 1;
    for (int i = 0; i < count; i++) {
        if (inputs[i].data && inputs[i].bytes < smg_buffer_bytes(x, entry, i, n)) {
            return refused(x, "an input has fewer bytes than the samples take");
        }
    }
    if (smg_check_inputs(x, entry, inputs, count, n)) { return SMG_STOPPED; }
    for (int32_t first = 0, part; first < n; first += part) {
        part = n - first < most ? n - first : most;
        for (int i = 0; i < count; i++) {
            const size_t skipped = first ? (size_t)smg_buffer_bytes(x, entry, i, first) : 0;
            buffers[i] = inputs[i];
            if (!inputs[i].data) { continue; }
            buffers[i] = (SmgBuffer){(uint8_t *)inputs[i].data + skipped, inputs[i].bytes - skipped};
        }
        for (int i = 0; i < outputs; i++) {
            const size_t each = smg_replay_row_bytes(s->r, (uint32_t)i);
            uint8_t *to = (uint8_t *)(uintptr_t)rows_of(s, (uint32_t)i) + (size_t)first * each;
            buffers[count + i] = (SmgBuffer){to, (size_t)part * each};
        }
        Source source = {channel, x, entry, first, -1};
        const SmgChannel reading = {&source, read_source, NULL};
        const SmgSamples samples = {part, part, 0};
        const SmgStatus status =
            smg_run_channel(x, entry, buffers, count + outputs, samples, channel && channel->read ? &reading : NULL);
        if (source.ruined >= 0) { return smg_say(x, SMG_FAULT_NOT_FINITE, "an input holds NaN or an infinite number"); }
        if (status) { return status; }
    }
    return SMG_OK;
}

static SmgStatus train(SmgContext *x, Rows *s, float *loss) {
    static const SmgBuffer none[SMG_REPLAY_PARTS];
    const SmgChannel channel = {s, read_rows, NULL};
    const int32_t most = smg_batch(x);
    const int parts = (int)s->r->parts;
    int32_t total = (int32_t)(s->n + s->k);
    if (total > most && s->r->classes && s->r->ignore != INT32_MIN) {
        const int32_t count = counted(s);
        s->leaves_out = count > 0;
        total = count ? count : most; /* of none that counts, some have the gradient of all: zero */
    }
    if (total <= most) { return smg_train_step(x, none, parts, total, loss, &channel); }
    SmgStatus status = smg_zero(x);
    for (int32_t done = 0; !status && done < total; done += most) {
        const SmgSamples samples = {total - done < most ? total - done : most, total, done};
        s->first = (uint32_t)done;
        status = smg_grad(x, none, parts, samples, loss, &channel);
    }
    return status ? status : smg_apply(x);
}

static SmgStatus stage(SmgContext *x, const SmgBuffer *inputs, int count, const Rows *s, const SmgChannel *channel) {
    const int entry = smg_entry(x, "features"), target = (int)s->r->parts - 1;
    if (entry >= 0) {
        const SmgStatus status = run_features(x, entry, inputs, count - 1, s, channel);
        if (status) { return status; }
    } else if (count != target + 1) {
        return refused(x, "another number of inputs than a sample of the replay buffer has");
    }
    for (int i = entry >= 0 ? target : 0; i <= target; i++) {
        const size_t bytes = (size_t)s->n * smg_replay_row_bytes(s->r, (uint32_t)i);
        uint8_t *to = (uint8_t *)(uintptr_t)rows_of(s, (uint32_t)i);
        const SmgStatus status = copy_rows(x, inputs, entry >= 0 ? count - 1 : i, to, bytes, channel);
        if (status) { return status; }
    }
    return SMG_OK;
}

static const SmgPager *pager_of(const SmgContext *x) {
#if SMG_PAGES
    return x->pager;
#else
    (void)x;
    return NULL;
#endif
}

static int lies_within(uint32_t at, uint32_t bytes, uint32_t room) {
    return at % 4 == 0 && bytes <= room && at <= room - bytes;
}

/* Does the buffer lie in STATE and PAGE, and does `train` take what it holds? NULL, or why not. */
static const char *misfit(const SmgContext *x, const SmgReplay *r) {
    static const char none[] = "the program has no such replay buffer";
    const uint32_t bytes = x->is_open && r ? smg_replay_bytes(r) : 0;
    if (!bytes || !lies_within(r->at, bytes, smg_state_bytes(x))) { return none; }
    const uint32_t pages = smg_replay_page_bytes(r);
    if (pages && !lies_within(r->page, pages, smg_page_state_bytes(x))) { return none; }
    const int entry = smg_entry(x, "train");
    for (uint32_t i = 0; i < r->parts; i++) {
        if (smg_buffer_bytes(x, entry, (int)i, 1) != smg_replay_row_bytes(r, i)) { return none; }
    }
    return pages && !pager_of(x) ? "samples to replay are in pages: call smg_set_pager first" : NULL;
}

void *smg_replay_memory(SmgContext *x, const SmgReplay *r) {
    const char *wrong = misfit(x, r);
    if (!wrong) { wrong = smg_replay_check(r, x->state + r->at, pager_of(x)); }
    smg_say(x, wrong ? SMG_FAULT_CALL : SMG_NO_FAULT, wrong ? wrong : "");
    return wrong ? NULL : x->state + r->at;
}

SmgStatus smg_replay_step(SmgContext *x, const SmgReplay *r, const SmgBuffer *inputs, int count, int32_t n, void *rows,
                          size_t rows_bytes, float *loss, const SmgChannel *channel) {
    const char *wrong = misfit(x, r);
    if (wrong) { return refused(x, wrong); }
    if (n < 1 || count < 2 || count > SMG_REPLAY_PARTS || !rows || rows_bytes < smg_replay_rows_bytes(r, (uint32_t)n)) {
        return refused(x, "a step with replay takes samples, their targets, and rows for them");
    }
    uint8_t *memory = x->state + r->at;
    const uint32_t k = smg_replay_share(r, memory, (uint32_t)n, smg_entry(x, "grad") >= 0);
    Rows s = {r, memory, (const uint8_t *)rows, pager_of(x), (uint32_t)n, k, 0, 0, NULL};
    wrong = smg_replay_look(r, memory, s.pager, k);
    if (wrong) { return smg_say(x, SMG_FAULT_PAGE_DAMAGED, wrong); }
    SmgStatus status = stage(x, inputs, count, &s, channel);
    if (!status) { status = train(x, &s, loss); }
    if (s.why) { return smg_say(x, SMG_FAULT_PAGER, s.why); }
    if (status) { return status; }
    if (k) { smg_replay_next(r, memory); }
    return SMG_OK;
}

SmgStatus smg_replay_keep(SmgContext *x, const SmgReplay *r, const void *rows, int32_t n) {
    const char *wrong = misfit(x, r);
    if (wrong || !rows || n < 1) { return refused(x, wrong ? wrong : "there are no rows to keep"); }
    uint8_t *memory = x->state + r->at;
    const Rows s = {r, memory, (const uint8_t *)rows, pager_of(x), (uint32_t)n, 0, 0, 0, NULL};
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        const void *parts[SMG_REPLAY_PARTS];
        for (uint32_t p = 0; p < r->parts; p++) { parts[p] = rows_of(&s, p) + (size_t)i * smg_replay_row_bytes(r, p); }
        const SmgReplayAdded added = smg_replay_add(r, memory, s.pager, parts);
        if (added == SMG_REPLAY_DAMAGED) {
            return refused(x, "the replay buffer is damaged: clear it, or restore the state");
        }
        if (added == SMG_REPLAY_NOT_WRITTEN) {
            return smg_say(x, SMG_FAULT_PAGER, "a sample to replay cannot be written to its page");
        }
    }
    return SMG_OK;
}
