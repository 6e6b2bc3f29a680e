/* Runs what load.c and check.c have proved safe: fetch an instruction, point at its operands, call its kernel. */
#include "format.h"
#include "rows.h"

const SmgTypeInfo smg_types[SMG_TYPE_COUNT] = {
    {"f32", 4}, {"i32", 4}, {"u8", 1}, {"i8", 1}, {"i16", 2}, {"f16", 2}, {"bf16", 2},
};

size_t smg_context_bytes(void) { return sizeof(SmgContext); }
size_t smg_stack_bytes(void) { return SMG_STACK_BYTES; }

/* ---- facts ---- */

static uint32_t fact(const SmgContext *x, int word) { return x->file ? smg_words(x)[word] : 0; }
int32_t smg_batch(const SmgContext *x) { return (int32_t)fact(x, F_BATCH); }
uint32_t smg_align(const SmgContext *x) { return fact(x, F_ALIGN); }
uint32_t smg_const_bytes(const SmgContext *x) { return fact(x, F_CONST); }
uint32_t smg_state_bytes(const SmgContext *x) { return fact(x, F_STATE); }
uint32_t smg_arena_bytes(const SmgContext *x) { return fact(x, F_ARENA); }
uint32_t smg_page_bytes(const SmgContext *x) {
    return x->file && smg_has_pages(x) ? smg_section(x, S_PAGES)[PAGES_BYTES] : 0;
}
uint32_t smg_page_state_bytes(const SmgContext *x) {
    return x->file && smg_has_pages(x) ? smg_section(x, S_PAGES)[PAGES_STATE] : 0;
}

int smg_entry_count(const SmgContext *x) {
    return x->is_open ? (int)(smg_section_bytes(x, S_ENTRIES) / (ENTRY_WORDS * 4)) : 0;
}

static int is_entry(const SmgContext *x, int entry) { return entry >= 0 && entry < smg_entry_count(x); }

const char *smg_entry_name(const SmgContext *x, int entry) {
    return is_entry(x, entry) ? smg_name(x, smg_entry_record(x, entry)[E_NAME]) : NULL;
}

int smg_entry(const SmgContext *x, const char *name) {
    for (int i = 0; i < smg_entry_count(x); i++) {
        if (strcmp(smg_entry_name(x, i), name) == 0) { return i; }
    }
    return -1;
}

int smg_buffer_count(const SmgContext *x, int entry) {
    if (!is_entry(x, entry)) { return 0; }
    return (int)(smg_entry_record(x, entry)[E_INPUTS] + smg_entry_record(x, entry)[E_OUTPUTS]);
}

static const uint32_t *buffer_record(const SmgContext *x, int entry, int buffer) {
    if (buffer < 0 || buffer >= smg_buffer_count(x, entry)) { return NULL; }
    return smg_section(x, S_BUFFERS) + (size_t)(smg_entry_record(x, entry)[E_BUFFER] + (uint32_t)buffer) * BUFFER_WORDS;
}

SmgStatus smg_buffer_info(const SmgContext *x, int entry, int buffer, SmgBufferInfo *info) {
    const uint32_t *b = buffer_record(x, entry, buffer);
    if (!b) { return SMG_BAD_CALL; }
    const uint32_t kind = b[B_KIND];
    info->name = smg_name(x, b[B_NAME]);
    info->type = (SmgType)(kind & 0xff);
    info->is_output = (int)(kind >> 8 & BUFFER_OUTPUT);
    info->rank = (int)(kind >> 16 & 0xff);
    info->batch_axis = kind >> 24 == 0xff ? -1 : (int)(kind >> 24);
    memcpy(info->dims, b + B_DIMS, sizeof info->dims);
    info->scale = 1.0f;
    info->offset = 0.0f;
    if (kind >> 8 & BUFFER_SCALED) {
        info->scale = smg_f32(info->dims[B_SCALE - B_DIMS]);
        info->offset = smg_f32(info->dims[B_OFFSET - B_DIMS]);
        info->dims[B_SCALE - B_DIMS] = 0;
        info->dims[B_OFFSET - B_DIMS] = 0;
    }
    return SMG_OK;
}

uint64_t smg_buffer_size(const uint32_t *record, int32_t n) {
    const uint32_t kind = record[B_KIND], rank = kind >> 16 & 0xff;
    uint64_t bytes = smg_types[kind & 0xff].bytes;
    for (uint32_t d = 0; d < rank; d++) { bytes = smg_mul(bytes, record[B_DIMS + d]); }
    return kind >> 24 == 0xff ? bytes : smg_mul(bytes, (uint64_t)n);
}

uint64_t smg_buffer_bytes(const SmgContext *x, int entry, int buffer, int32_t n) {
    const uint32_t *b = buffer_record(x, entry, buffer);
    return b && n > 0 ? smg_buffer_size(b, n) : 0;
}

SmgStatus smg_reset_state(SmgContext *x) {
    if (!x->is_open) { return SMG_OK; }
    const uint32_t given = smg_section_bytes(x, S_STATE), state = smg_state_bytes(x), arena = smg_arena_bytes(x);
    if (given) { memcpy(x->state, smg_section(x, S_STATE), given); }
    if (state > given) { memset(x->state + given, 0, state - given); /* a file leaves out the zeros at the end */ }
    if (arena) { memset(x->arena, 0, arena); }
#if SMG_PAGES
    return smg_reset_pages(x);
#else
    return SMG_OK;
#endif
}

/* ---- running ---- */

const int32_t *smg_scaled(SmgContext *x, const uint32_t *block, int32_t n) {
    const uint32_t count = block[0] & 0xffffu;
    if (!(block[0] >> 16)) { return (const int32_t *)(const void *)(block + 1); }
    const uint32_t *map = block + 1, *words = map + (count + 31) / 32;
    for (uint32_t i = 0; i < count; i++) {
        int64_t value = (int32_t)words[i];
        if (map[i / 32] >> i % 32 & 1) { value *= n; }
        if (value != (int32_t)value) { return NULL; }
        x->words[i] = (int32_t)value;
    }
    return x->words;
}

/* What the caller hands over for a run. */
typedef struct {
    const SmgBuffer *buffers;
    const SmgChannel *channel;
} Outside;

static int is_outside(uint32_t operand) { return operand >> 29 == R_INPUT || operand >> 29 == R_OUTPUT; }

/* Number of the operand that is a buffer without memory, or -1. */
static int unbacked(const Outside *outside, const uint32_t *code) {
    for (unsigned i = 0; i < smg_code_operands(code); i++) {
        const uint32_t word = code[2 + i];
        if (is_outside(word) && !outside->buffers[word & 0x1fffffffu].data) { return (int)i; }
    }
    return -1;
}

/* The same as running the copying kernel, with the channel in place of operand `which`: 0 the output, 1 the input. */
static SmgFault through_channel(const Outside *outside, const uint32_t *code, const SmgCall *c, int which, size_t start,
                                unsigned flags) {
    const int buffer = (int)(code[2 + which] & 0x1fffffffu);
    const unsigned width = flags & SMG_BYTES ? 1 : 4;
    const int failed = smg_channel_copy(outside->channel, buffer, which == 0, start, c->op[1 - which], c->p, width);
    if (!failed) { return SMG_NO_FAULT; }
    return which ? SMG_FAULT_CHANNEL_READ : SMG_FAULT_CHANNEL_WRITE;
}

/* Where the operands of an instruction are: `scale` is the n in its sizes, 1 inside a loop, where `iteration` moves
 * them; in a stream they have moved by `rows` bytes on top of that. */
typedef struct {
    int32_t scale, iteration;
#if SMG_ROWS
    const SmgRowRule *rule; /* NULL outside of streams */
    const SmgTurn *turn;
    const size_t *rows;
#endif
} Where;

static size_t moved(const Where *w, const uint32_t *strides, unsigned operand) {
    const size_t bytes = strides ? (size_t)w->iteration * strides[operand] : 0;
#if SMG_ROWS
    return w->rule ? bytes + w->rows[operand] : bytes;
#else
    return bytes;
#endif
}

/* The parameters of an instruction. */
static const int32_t *parameters(SmgContext *x, const uint32_t *block, const Where *w) {
    const int32_t *p = smg_scaled(x, block, w->scale);
#if SMG_ROWS
    if (w->rule && smg_rows_kind(w->rule) != SMG_ROWS_EACH) { return smg_put_turn(x, block, p, w->rule, w->turn); }
#endif
    return p;
}

static SmgFault execute(SmgContext *x, const uint32_t *code, const Outside *outside, SmgCall *c, const Where *w) {
    const unsigned operands = smg_code_operands(code);
    const uint32_t *ops = code + 2, *strides = smg_code_flags(code) & FLAG_STRIDES ? ops + operands : NULL;
    const uint32_t *block = smg_section(x, S_PARAMS) + code[1];
    for (unsigned i = 0; i < operands; i++) {
        const uint32_t at = ops[i] & 0x1fffffffu;
        uint8_t *start = NULL;
        switch (ops[i] >> 29) {
        case R_CONST: start = (uint8_t *)(uintptr_t)smg_section(x, S_CONST) + (size_t)at * 4; break;
        case R_STATE: start = x->state + (size_t)at * 4; break;
        case R_ARENA: start = x->arena + (size_t)at * 4; break;
        case R_INPUT:
        case R_OUTPUT: start = (uint8_t *)outside->buffers[at].data; break;
#if SMG_PAGES
        case R_PAGE: start = (uint8_t *)(uintptr_t)((size_t)at * 4); break;
#endif
        default: break;
        }
        c->op[i] = start ? start + moved(w, strides, i) : NULL;
    }
    c->operands = (int32_t)operands;
    c->params = (int32_t)(block[0] & 0xffffu);
    c->p = parameters(x, block, w);
    const unsigned k = x->kernels[smg_code_kernel(code)];
    const int which = outside->channel ? unbacked(outside, code) : -1;
    if (which >= 0) {
        const size_t start = moved(w, strides, (unsigned)which);
        return through_channel(outside, code, c, which, start, smg_kernels[k]->flags);
    }
    const SmgKernelFn fast = x->runs ? ((const SmgKernelFn *)x->runs)[k] : NULL;
    return (fast ? fast : smg_kernels[k]->run)(c);
}

#if SMG_ROWS
static uint8_t *memory_of(SmgContext *x, uint32_t operand) {
    return (operand >> 29 == R_STATE ? x->state : x->arena) + (size_t)(operand & 0x1fffffffu) * 4;
}

/* Forgets rows of the value that an instruction adds to: those still needed move to the front. */
static void forget(uint8_t *rows, const SmgRowValue *v, int32_t i) {
    const int32_t before = smg_rows_begin(v, i - 1), begin = smg_rows_begin(v, i), end = smg_rows_end(v, i - 1);
    if (begin > before && end > begin) {
        const size_t bytes = (size_t)v->bytes;
        memmove(rows, rows + (size_t)(begin - before) * bytes, (size_t)(end - begin) * bytes);
    }
}

/* An instruction of a stream, in iteration i of the stream and `sample` of the loop around it. */
static SmgFault make_rows(SmgContext *x, const uint32_t *code, const Outside *outside, SmgCall *c, const SmgStream *s,
                          const SmgRowRule *rule, int32_t i, int32_t sample) {
    const unsigned operands = smg_code_operands(code);
    const uint32_t *strides = smg_code_flags(code) & FLAG_STRIDES ? code + 2 + operands : NULL;
    const uint32_t *numbers = smg_code_rows(code);
    const SmgRowValue *out = &s->value[numbers[0] - 1];
    const int32_t from = i ? smg_rows_end(out, i - 1) : 0, end = smg_rows_end(out, i);
    if (i && rule->kind & SMG_ROWS_FORGETS && !is_outside(code[2])) {
        forget(memory_of(x, code[2]) + (strides ? (size_t)sample * strides[0] : 0), out, i);
    }
    if (from == end) { return SMG_NO_FAULT; }
    const int is_each = smg_rows_kind(rule) == SMG_ROWS_EACH;
    const unsigned windowed = smg_rows_windowed(rule);
    const int32_t count = windowed < operands && numbers[windowed] ? s->value[numbers[windowed] - 1].count : out->count;
    const SmgTurn turn = smg_turn(rule, from, end - from, count);
    size_t rows[SMG_MAX_OPERANDS];
    for (unsigned k = 0; k < operands; k++) {
        const SmgRowValue *v = numbers[k] ? &s->value[numbers[k] - 1] : NULL;
        const int32_t row = k && k == windowed ? turn.first : from;
        rows[k] = v ? (size_t)(row - smg_rows_begin(v, i)) * (size_t)v->bytes : 0;
    }
    const Where w = {is_each ? end - from : 1, sample, rule, &turn, rows};
    return execute(x, code, outside, c, &w);
}

static SmgFault run_stream(SmgContext *x, const uint32_t *head, const Outside *outside, SmgCall *c, int32_t sample,
                           uint32_t *instruction) {
    const SmgStream s = smg_stream_of(smg_section(x, S_PARAMS) + head[2]);
    const uint32_t body = head[1], *first = head + smg_code_words(head);
    for (int32_t i = 0; i < s.iterations; i++) {
        const uint32_t *at = first;
        for (uint32_t k = 0; k < body; k++) {
            const SmgFault fault = make_rows(x, at, outside, c, &s, &s.rule[k], i, sample);
            if (fault) {
                *instruction = k;
                return fault;
            }
            at += smg_code_words(at);
        }
    }
    return SMG_NO_FAULT;
}

static const uint32_t *behind(const uint32_t *at, uint32_t instructions) {
    for (; instructions; instructions--) { at += smg_code_words(at); }
    return at;
}
#endif

static SmgStatus stopped(SmgContext *x, int entry, uint32_t instruction, const uint32_t *code, const SmgCall *c,
                         SmgFault fault) {
    const char *kernel = smg_kernels[x->kernels[smg_code_kernel(code)]]->name;
    const char *why = smg_fault_text(fault);
#if SMG_PAGES
    if (fault == SMG_FAULT_PAGER) { why = *c->said; }
#else
    (void)c;
#endif
    const SmgStatus status = smg_say_at(x, fault, entry, instruction, kernel, why);
#if SMG_PAGES
    smg_stop_pages(x); /* after the message: `why` may be the pager's own text */
#endif
    return status;
}

static SmgStatus check_buffers(SmgContext *x, int entry, const Outside *outside, int count, int32_t n) {
    const SmgBuffer *buffers = outside->buffers;
    const SmgChannel *channel = outside->channel;
    if (count != smg_buffer_count(x, entry) || (count && !buffers)) {
        smg_say(x, SMG_FAULT_CALL, "the entry point takes ");
        smg_add_number(x, (uint64_t)smg_buffer_count(x, entry));
        smg_add_text(x, " buffers");
        return SMG_BAD_CALL;
    }
    for (int i = 0; i < count; i++) {
        const uint32_t *record = buffer_record(x, entry, i);
        const uint64_t bytes = smg_buffer_size(record, n);
        const int anywhere = smg_types[record[B_KIND] & 0xff].bytes < 4;
        const int misplaced = !anywhere && ((uintptr_t)buffers[i].data & 3);
        if (buffers[i].bytes >= bytes && buffers[i].data && !misplaced) { continue; }
        if (!buffers[i].data && channel && (record[B_KIND] >> 8 & 1 ? channel->write != NULL : channel->read != NULL)) {
            continue;
        }
        smg_say(x, SMG_FAULT_CALL, "buffer '");
        smg_add_text(x, smg_name(x, record[B_NAME]));
        if (misplaced) {
            smg_add_text(x, "' is not aligned to 4 bytes");
        } else {
            smg_add_text(x, "' needs ");
            smg_add_number(x, bytes);
            smg_add_text(x, " bytes and has ");
            smg_add_number(x, buffers[i].data ? buffers[i].bytes : 0);
        }
        return SMG_BAD_CALL;
    }
    return SMG_OK;
}

/* Buffers without memory are copied and nothing else. Only of a checked entry, and only with a channel. */
static SmgStatus check_channel(SmgContext *x, int entry, const Outside *outside) {
    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    for (uint32_t instruction = 0; at < end; instruction++) {
        if (smg_code_repeats(at)) {
            at += smg_code_words(at);
            continue;
        }
        const SmgKernel *kernel = smg_kernels[x->kernels[smg_code_kernel(at)]];
        const int which = unbacked(outside, at);
        if (which >= 0 && (!(kernel->flags & SMG_COPIES) || is_outside(at[2]) == is_outside(at[3]))) {
            return smg_say_at(x, SMG_FAULT_CALL, entry, instruction, kernel->name,
                              "a buffer without memory can only be copied");
        }
        at += smg_code_words(at);
    }
    return SMG_OK;
}

SmgStatus smg_run(SmgContext *x, int entry, const SmgBuffer *buffers, int count, SmgSamples samples) {
    return smg_run_channel(x, entry, buffers, count, samples, NULL);
}

SmgStatus smg_run_channel(SmgContext *x, int entry, const SmgBuffer *buffers, int count, SmgSamples samples,
                          const SmgChannel *channel) {
    const Outside outside = {buffers, channel};
    const int32_t n = samples.n, total = samples.total, before = samples.first;
    smg_say(x, SMG_NO_FAULT, "");
    if (!x->is_open) { return smg_say(x, SMG_FAULT_CALL, "no program is open"); }
    if (!is_entry(x, entry)) { return smg_say(x, SMG_FAULT_CALL, "the program has no such entry point"); }
    if (n < 1 || n > smg_batch(x)) {
        smg_say(x, SMG_FAULT_CALL, "the program takes 1 to ");
        smg_add_number(x, (uint64_t)smg_batch(x));
        smg_add_text(x, " samples at a time");
        return SMG_BAD_CALL;
    }
    if (before < 0 || total < n || before > total - n) {
        return smg_say(x, SMG_FAULT_CALL, "the whole batch has fewer samples than its parts");
    }
#if SMG_PAGES
    if (x->paging >> entry & 1 && !x->pager) {
        return smg_say(x, SMG_FAULT_CALL, "the entry point pages, and there is nowhere to page to: smg_set_pager");
    }
#endif
    SmgStatus status = check_buffers(x, entry, &outside, count, n);
    if (!status && x->checked[entry] != n) { status = smg_check_entry(x, entry, n); }
    if (!status && channel) { status = check_channel(x, entry, &outside); }
    if (status) { return status; }

    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    SmgCall c = {.run = {n, total, before}, .work = (const struct SmgWork *)x->work};
#if SMG_PAGES
    const char *said = "";
    c.pager = x->pager;
    c.said = &said;
#endif
    SmgFault fault;
    for (uint32_t instruction = 0; at < end; instruction++) {
        if (smg_code_kernel(at) != SMG_LOOP) {
            fault = execute(x, at, &outside, &c, &(const Where){.scale = n});
            if (fault) { return stopped(x, entry, instruction, at, &c, fault); }
            at += smg_code_words(at);
            continue;
        }
        int is_samples;
        const int32_t times = smg_loop_count(at, n, &is_samples);
        const uint32_t body = at[1], *first = at + smg_code_words(at);
        for (int32_t iteration = 0; iteration < times; iteration++) {
            const Where where = {.scale = is_samples ? 1 : n, .iteration = iteration};
            at = first;
            if (is_samples) { c.run.index = before + iteration; }
            for (uint32_t i = 0; i < body; i++) {
#if SMG_ROWS
                if (smg_code_kernel(at) == SMG_STREAM) {
                    uint32_t inside = 0;
                    const uint32_t *next = at + smg_code_words(at);
                    fault = run_stream(x, at, &outside, &c, iteration, &inside);
                    if (fault) {
                        const uint32_t number = instruction + 2 + i + inside;
                        return stopped(x, entry, number, behind(next, inside), &c, fault);
                    }
                    i += at[1];
                    at = behind(next, at[1]);
                    continue;
                }
#endif
                fault = execute(x, at, &outside, &c, &where);
                if (fault) { return stopped(x, entry, instruction + 1 + i, at, &c, fault); }
                at += smg_code_words(at);
            }
        }
        c.run.index = before;
        instruction += body;
    }
    return SMG_OK;
}
