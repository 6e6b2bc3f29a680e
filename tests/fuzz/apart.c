/* Runs an entry point a second way: like vm.c, but every operand of every instruction is a copy of its own, allocated
 * to the byte. A kernel that touches a byte outside what its extent declares is found even where that byte belongs to
 * the same region; and both ways must leave the same bits behind. Which rows an instruction of a stream makes, and
 * where they lie, is worked out here from the formulas of rows.h, row by row, with none of rows.c. */
#include "fuzz_program.h"
#include <stdlib.h>

static void *copies[SMG_MAX_OPERANDS]; /* static: a run may be left in the middle */

void fuzz_apart_free(void) {
    for (int i = 0; i < SMG_MAX_OPERANDS; i++) {
        free(copies[i]);
        copies[i] = NULL;
    }
}

static uint8_t *address(const SmgContext *x, uint32_t word, const SmgBuffer *buffers) {
    const size_t at = word & 0x1fffffffu;
    switch (word >> 29) {
    case R_CONST: return (uint8_t *)(uintptr_t)smg_section(x, S_CONST) + at * 4;
    case R_STATE: return x->state + at * 4;
    case R_ARENA: return x->arena + at * 4;
    case R_PAGE: return (uint8_t *)(uintptr_t)(at * 4); /* an offset: the pager goes where it is told to */
    case R_NONE: return NULL;
    default: return (uint8_t *)buffers[at].data;
    }
}

/* Bytes of the longest operand that starts where operand 0 does. */
static uint64_t longest(uint8_t *const *place, const uint64_t *need, unsigned operands) {
    uint64_t most = 0;
    for (unsigned i = 0; i < operands; i++) {
        if (place[i] == place[0] && need[i] > most) { most = need[i]; }
    }
    return most;
}

/* ---- rows ---- */

enum { COUNT, STEP, PERIOD, AHEAD, KEPT, BYTES, OF_VALUE };                    /* words of a value */
enum { KIND, REACH, STRIDE, BY, PAD, TOLD_IN, TOLD_OUT, TOLD_ABOVE, OF_RULE }; /* of a rule */

static int64_t within(int64_t row, int64_t count) {
    if (row < 0) { return 0; }
    return row < count ? row : count;
}
static int64_t rows_until(const int32_t *v, int64_t i) { /* end(i); nothing before the first iteration */
    return i < 0 ? 0 : within((i + 1) * v[STEP] / v[PERIOD] + v[AHEAD], v[COUNT]);
}
static int64_t rows_from(const int32_t *v, int64_t i) { return within(i * v[STEP] / v[PERIOD] + v[KEPT], v[COUNT]); }

static int is_window(const int32_t *rule) {
    return (rule[KIND] & 15) == SMG_ROWS_WINDOW || (rule[KIND] & 15) == SMG_ROWS_SUM;
}

/* The first row of the input that row `row` of the result needs, and the one behind the last: counted, not divided. */
static int64_t reads_from(const int32_t *rule, int64_t row, int64_t count) {
    int64_t at = 0;
    if (is_window(rule)) { return within(row * rule[STRIDE] - rule[PAD], count); }
    if ((rule[KIND] & 15) == SMG_ROWS_SPREAD) {
        while (at < count && at * rule[STRIDE] - rule[PAD] + rule[REACH] <= row) { at++; }
    } else {
        while (at < count && (at + 1) * rule[STRIDE] <= row * rule[BY] - rule[PAD]) { at++; }
    }
    return at;
}
static int64_t reads_until(const int32_t *rule, int64_t row, int64_t count) {
    int64_t at = 0;
    if (is_window(rule)) { return within(row * rule[STRIDE] - rule[PAD] + rule[REACH], count); }
    if ((rule[KIND] & 15) == SMG_ROWS_SPREAD) {
        while (at < count && at * rule[STRIDE] - rule[PAD] <= row) { at++; }
    } else {
        while (at < count && at * rule[STRIDE] < row * rule[BY] - rule[PAD] + rule[REACH]) { at++; }
    }
    return at;
}

FuzzRows fuzz_rows(const uint32_t *table, const uint32_t *code, uint32_t place, int32_t i) {
    const int32_t *words = (const int32_t *)(const void *)(table + 1), *values = words + 2;
    const int32_t *rule = values + words[1] * OF_VALUE + place * OF_RULE;
    const unsigned operands = smg_code_operands(code);
    const uint32_t *numbers = smg_code_rows(code);
    const int32_t *out = values + (numbers[0] - 1) * OF_VALUE;
    const int is_each = (rule[KIND] & 15) == SMG_ROWS_EACH, is_sum = (rule[KIND] & 15) == SMG_ROWS_SUM;
    const unsigned windowed = is_sum ? 2 : 1; /* all other operands have the rows of the result */
    const int64_t from = rows_until(out, i - 1), end = rows_until(out, i);
    FuzzRows r = {.made = (int32_t)(end - from), .is_last = end == out[COUNT]};
    if (i && rule[KIND] & SMG_ROWS_FORGETS && rows_from(out, i) > rows_from(out, i - 1)) {
        const int64_t old = rows_from(out, i) - rows_from(out, i - 1), left = from - rows_from(out, i);
        r.forget_from = (size_t)old * (size_t)out[BYTES];
        r.forget = left > 0 ? (size_t)left * (size_t)out[BYTES] : 0;
    }
    if (!r.made) { return r; }
    int64_t first = from, stop = end;
    if (!is_each) {
        const int has_window = windowed < operands && numbers[windowed];
        const int64_t count = has_window ? values[(numbers[windowed] - 1) * OF_VALUE + COUNT] : out[COUNT],
                      over = rule[PAD] - from * rule[STRIDE];
        first = reads_from(rule, from, count);
        stop = reads_until(rule, end - 1, count);
        r.above = (int32_t)(over > 0 ? over : 0);
        if ((rule[KIND] & 15) == SMG_ROWS_SPREAD) { r.above = (int32_t)(from + rule[PAD] - first * rule[STRIDE]); }
        if ((rule[KIND] & 15) == SMG_ROWS_PLACED) {
            r.above = (int32_t)first;
            r.from = (int32_t)from;
            r.is_placed = 1;
        }
        if (is_sum) {
            r.from = (int32_t)from;
            r.is_placed = 1;
        }
        r.told = rule + TOLD_IN;
    }
    r.needed = (int32_t)(stop - first);
    r.scale = is_each ? r.made : 1;
    for (unsigned k = 0; k < operands; k++) {
        if (!numbers[k]) { continue; }
        const int32_t *v = values + (numbers[k] - 1) * OF_VALUE;
        const int reads_window = !is_each && k == windowed;
        const int64_t row = reads_window ? first : from, rows = reads_window ? r.needed : r.made;
        if (row < rows_from(v, i) || row + rows > rows_until(v, i)) { fuzz_finding("rows that are not there"); }
        r.moved[k] = (size_t)(row - rows_from(v, i)) * (size_t)v[BYTES];
    }
    return r;
}

const int32_t *fuzz_row_params(SmgContext *x, const uint32_t *block, const int32_t *p, const FuzzRows *rows) {
    if (!rows->told) { return p; }
    for (uint32_t i = 0; i < (block[0] & 0xffffu); i++) { x->words[i] = p[i]; }
    x->words[rows->told[0]] = rows->needed;
    x->words[rows->told[1]] = rows->made;
    x->words[rows->told[2]] = rows->above;
    if (rows->is_placed) { x->words[rows->told[2] + 1] = rows->from; }
    return x->words;
}

/* ---- instructions ---- */

/* Bytes of the region from where an operand lies. */
static uint64_t room(const SmgContext *x, uint32_t word, const SmgBuffer *buffers) {
    const uint64_t at = word & 0x1fffffffu;
    return word >> 29 <= R_ARENA ? smg_words(x)[F_CONST + (word >> 29)] - at * 4 : buffers[at].bytes;
}

static SmgFault execute(SmgContext *x, const uint32_t *code, const SmgBuffer *buffers, int32_t scale, int32_t iteration,
                        SmgRun run, const FuzzRows *rows) {
    const SmgKernel *kernel = smg_kernels[x->kernels[smg_code_kernel(code)]];
    const uint32_t *block = smg_section(x, S_PARAMS) + code[1];
    const unsigned operands = smg_code_operands(code);
    const uint32_t *strides = smg_code_flags(code) & FLAG_STRIDES ? code + 2 + operands : NULL;
    const char *said = "";
    SmgCall c = {.operands = (int32_t)operands,
                 .params = (int32_t)(block[0] & 0xffffu),
                 .run = run,
                 .pager = x->pager,
                 .said = &said};
    uint64_t need[SMG_MAX_OPERANDS] = {0};
    uint8_t *place[SMG_MAX_OPERANDS];
    SmgRole roles[SMG_MAX_OPERANDS];
    c.p = smg_scaled(x, block, scale);
    if (c.p && rows) { c.p = fuzz_row_params(x, block, c.p, rows); }
    if (!c.p || kernel->extent(c.p, c.params, (int)operands, run, need)) {
        fuzz_finding("parameters that the kernel refuses");
    }
    smg_roles(kernel->signature, operands, roles);
    for (unsigned i = 0; i < operands; i++) {
        place[i] = address(x, code[2 + i], buffers);
        if (!place[i]) { continue; }
        const size_t moved = (strides ? (size_t)iteration * strides[i] : 0) + (rows ? rows->moved[i] : 0);
        place[i] += moved;
        if (code[2 + i] >> 29 != R_PAGE && need[i] && moved + need[i] > room(x, code[2 + i], buffers)) {
            fuzz_finding("an operand that ends behind its region");
        }
    }
    for (unsigned i = 0; i < operands; i++) {
        const int in_place = i > 0 && place[i] == place[0] && code[2 + i] >> 29 != R_PAGE && need[i] && need[0] &&
                             roles[0].letter != 'i';
        const uint64_t bytes = i == 0 && need[0] ? longest(place, need, operands) : need[i];
        if (!place[i]) { continue; }
        if (code[2 + i] >> 29 == R_PAGE) {
            c.op[i] = place[i];
            continue;
        }
        if (in_place) {
            c.op[i] = c.op[0];
        } else if (bytes > FUZZ_LARGEST_BUFFER) { /* zeros without memory */
            c.op[i] = place[i];
        } else {
            c.op[i] = copies[i] = malloc(bytes ? bytes : 1);
            if (bytes) { memcpy(c.op[i], place[i], bytes); }
        }
    }
    const SmgFault fault = kernel->run(&c);
    for (unsigned i = 0; i < operands; i++) {
        if (roles[i].letter != 'i' && c.op[i] && c.op[i] != place[i]) { memcpy(place[i], c.op[i], need[i]); }
    }
    fuzz_apart_free();
    return fault;
}

/* Rows of operand 0 that are needed move to its start, where there may be old ones. */
static void forget(const SmgContext *x, const uint32_t *code, const SmgBuffer *buffers, int32_t sample,
                   const FuzzRows *rows) {
    const uint32_t region = code[2] >> 29, operands = smg_code_operands(code);
    const size_t start = smg_code_flags(code) & FLAG_STRIDES ? (size_t)sample * code[2 + operands] : 0;
    if (!rows->forget || region == R_INPUT || region == R_OUTPUT) { return; }
    if (start + rows->forget_from + rows->forget > room(x, code[2], buffers)) {
        fuzz_finding("rows are forgotten that are not there");
    }
    uint8_t *at = address(x, code[2], buffers) + start;
    copies[0] = malloc(rows->forget);
    memcpy(copies[0], at + rows->forget_from, rows->forget);
    memcpy(at, copies[0], rows->forget);
    fuzz_apart_free();
}

static const uint32_t *run_stream(SmgContext *x, const uint32_t *head, const SmgBuffer *buffers, int32_t sample,
                                  SmgRun run, SmgFault *fault) {
    const uint32_t *table = smg_section(x, S_PARAMS) + head[2], *first = head + smg_code_words(head), *at = first;
    for (int32_t i = 0; i < (int32_t)table[1] && !*fault; i++) {
        at = first;
        for (uint32_t k = 0; k < head[1] && !*fault; k++, at += smg_code_words(at)) {
            const FuzzRows rows = fuzz_rows(table, at, k, i);
            forget(x, at, buffers, sample, &rows);
            if (rows.made) { *fault = execute(x, at, buffers, rows.scale, sample, run, &rows); }
        }
    }
    return at;
}

SmgFault fuzz_run_apart(SmgContext *x, int entry, const SmgBuffer *buffers, SmgSamples samples) {
    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    const SmgRun run = {samples.n, samples.total, samples.first};
    SmgFault fault = SMG_NO_FAULT;
    while (at < end && !fault) {
        if (smg_code_kernel(at) != SMG_LOOP) {
            fault = execute(x, at, buffers, samples.n, 0, run, NULL);
            at += smg_code_words(at);
            continue;
        }
        const uint32_t body = at[1], trips = smg_code_operands(at) ? at[2] : 0, *first = at + smg_code_words(at);
        for (int32_t i = 0; i < (trips ? (int32_t)trips : samples.n) && !fault; i++) {
            const SmgRun one = {samples.n, samples.total, samples.first + (trips ? 0 : i)};
            at = first;
            for (uint32_t k = 0; k < body && !fault; k++) {
                if (smg_code_kernel(at) == SMG_STREAM) {
                    k += at[1];
                    at = run_stream(x, at, buffers, i, one, &fault);
                    continue;
                }
                fault = execute(x, at, buffers, trips ? samples.n : 1, i, one, NULL);
                at += smg_code_words(at);
            }
        }
    }
    return fault;
}
