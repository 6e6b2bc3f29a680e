/* Runs an entry point a second way: like vm.c, but every operand of every instruction is a copy of its own, allocated
 * to the byte. A kernel that touches a byte outside what its extent declares is found even where that byte belongs to
 * the same region; and both ways must leave the same bits behind. */
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

static SmgFault execute(SmgContext *x, const uint32_t *code, const SmgBuffer *buffers, int32_t scale, int32_t iteration,
                        SmgRun run) {
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
    kernel->extent(c.p, c.params, (int)operands, run, need);
    smg_roles(kernel->signature, operands, roles);
    for (unsigned i = 0; i < operands; i++) {
        place[i] = address(x, code[2 + i], buffers);
        if (place[i] && strides) { place[i] += (size_t)iteration * strides[i]; }
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

SmgFault fuzz_run_apart(SmgContext *x, int entry, const SmgBuffer *buffers, SmgSamples samples) {
    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    const SmgRun run = {samples.n, samples.total, samples.first};
    SmgFault fault = SMG_NO_FAULT;
    while (at < end && !fault) {
        if (smg_code_kernel(at) != SMG_LOOP) {
            fault = execute(x, at, buffers, samples.n, 0, run);
            at += smg_code_words(at);
            continue;
        }
        const uint32_t body = at[1], trips = smg_code_operands(at) ? at[2] : 0, *first = at + smg_code_words(at);
        for (int32_t i = 0; i < (trips ? (int32_t)trips : samples.n) && !fault; i++) {
            const SmgRun one = {samples.n, samples.total, samples.first + (trips ? 0 : i)};
            at = first;
            for (uint32_t k = 0; k < body && !fault; k++, at += smg_code_words(at)) {
                fault = execute(x, at, buffers, trips ? samples.n : 1, i, one);
            }
        }
    }
    return fault;
}
