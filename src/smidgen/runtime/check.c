/* Proves that an entry point, run on n samples, stays inside its memory: the second half of opening a file, and
 * repeated when n changes. Kernels say what they touch (EXTENT); this file holds them and the operands to it. */
#include "check.h"

SmgStatus smg_refuse_as(const SmgCheck *c, SmgFault fault, const char *why) {
    return smg_say_at(c->x, fault, c->entry, c->instruction, c->kernel, why);
}

SmgStatus smg_refuse(const SmgCheck *c, const char *why) { return smg_refuse_as(c, SMG_FAULT_PROGRAM, why); }

SmgStatus smg_refuse_operand_as(const SmgCheck *c, SmgFault fault, unsigned operand, const char *why) {
    smg_refuse_as(c, fault, "operand ");
    smg_add_number(c->x, operand);
    smg_add_text(c->x, " ");
    smg_add_text(c->x, why);
    return SMG_BAD_PROGRAM;
}

SmgStatus smg_refuse_operand(const SmgCheck *c, unsigned operand, const char *why) {
    return smg_refuse_operand_as(c, SMG_FAULT_PROGRAM, operand, why);
}

int smg_roles(const char *s, unsigned operands, SmgRole *roles) {
    unsigned sure = 0, optional = 0;
    int many = 0;
    for (const char *p = s; *p; p++) {
        if (*p == '?') {
            sure--;
            optional++;
        } else if (*p == '+') {
            many = 1;
        } else {
            sure++;
        }
    }
    if (operands < sure || operands > SMG_MAX_OPERANDS || (!many && operands > sure + optional)) { return -1; }
    unsigned left_out = operands < sure + optional ? sure + optional - operands : 0, at = 0, seen = 0;
    for (const char *p = s; *p; p++) {
        if (*p == '?' || *p == '+') { continue; }
        const int may = p[1] == '?';
        if (may && seen++ >= optional - left_out) { continue; }
        roles[at].letter = *p;
        roles[at].optional = (uint8_t)may;
        at++;
    }
    for (; at < operands; at++) { roles[at] = roles[at - 1]; }
    return 0;
}

#if SMG_PAGES
static int is_page(SmgRole role) { return role.letter == 'P' || role.letter == 'p'; }
#endif

/* Bytes of the operand's region from its start, or a refusal. */
static SmgStatus available(const SmgCheck *c, unsigned operand, uint32_t word, SmgRole role, uint64_t *bytes) {
    const uint32_t region = word >> 29, at = word & 0x1fffffffu;
    const int writes = role.letter != 'i';
    if (region == R_NONE) {
        *bytes = 0;
        if (word != SMG_NONE || !role.optional) { return smg_refuse_operand(c, operand, RULE("must not be absent")); }
        return SMG_OK;
    }
    if (region == R_LIST) { return smg_refuse_operand_as(c, SMG_FAULT_LATER, operand, "is an index list"); }
    if (region == R_INPUT || region == R_OUTPUT) {
        const uint32_t inputs = c->record[E_INPUTS], outputs = c->record[E_OUTPUTS];
        if (region == R_INPUT ? role.letter != 'i' || at >= inputs
                              : role.letter != 'o' || at < inputs || at >= inputs + outputs) {
            return smg_refuse_operand(c, operand, RULE("is no such buffer of the caller"));
        }
        const uint32_t *b = smg_section(c->x, S_BUFFERS) + (size_t)(c->record[E_BUFFER] + at) * BUFFER_WORDS;
        /* Bytes of the caller may lie anywhere; only kernels that move single bytes can take them there. */
        if (smg_types[b[B_KIND] & 0xff].bytes < 4 && !(c->flags & SMG_BYTES)) {
            return smg_refuse_operand(c, operand, RULE("is not aligned for this kernel"));
        }
        *bytes = smg_buffer_size(b, c->n);
        return SMG_OK;
    }
#if SMG_PAGES
    if ((region == R_PAGE) != is_page(role)) { return smg_refuse_operand(c, operand, RULE("is not where pages are")); }
    if (region == R_PAGE) {
        const uint64_t pages = smg_page_bytes(c->x), from = (uint64_t)at * 4;
        if (!pages) { return smg_refuse_operand(c, operand, RULE("pages, and the program has no pages")); }
        if (c->in_loop) { return smg_refuse_operand(c, operand, RULE("pages inside a loop")); }
        if (at % (SMG_PAGE_ALIGN / 4)) {
            return smg_refuse_operand(c, operand, RULE("does not start where pages start"));
        }
        if (from > pages) { return smg_refuse_operand(c, operand, RULE("starts behind its region")); }
        *bytes = pages - from;
        return SMG_OK;
    }
    if ((role.letter == 'b' || role.letter == 'w') && region != R_ARENA) {
        return smg_refuse_operand(c, operand, RULE("must be in the arena"));
    }
#endif
    if (region > R_ARENA) { return smg_refuse_operand(c, operand, RULE("is in an unknown region")); }
    if ((writes && region == R_CONST) || (role.letter == 's' && region != R_ARENA)) {
        return smg_refuse_operand(c, operand, RULE("must not be written there"));
    }
    const uint64_t size = smg_words(c->x)[F_CONST + region], start = (uint64_t)at * 4;
    if (start > size) { return smg_refuse_operand(c, operand, RULE("starts behind its region")); }
    *bytes = size - start;
    return SMG_OK;
}

/* Bytes from the start of an operand to the end of what all iterations touch. */
static uint64_t span(const SmgCheck *c, uint64_t need, uint32_t stride) {
    return need ? smg_add(need, smg_mul((uint64_t)c->count - 1, stride)) : 0;
}

/* In a stream: are rows made in the place of rows of the same value? */
static int in_place(const SmgCheck *c, const uint32_t *code, unsigned i, unsigned j) {
#if SMG_ROWS
    const uint32_t *rows = smg_code_rows(code);
    return (!rows || rows[i] == rows[j]) && (!c->rule || smg_rows_kind(c->rule) == SMG_ROWS_EACH);
#else
    (void)c, (void)code, (void)i, (void)j;
    return 1;
#endif
}

/* A written operand shares no byte with another one, but for output 0 of a kernel that works in place. */
static SmgStatus check_overlap(const SmgCheck *c, const uint32_t *code, const uint64_t *need, const SmgRole *roles,
                               uint32_t inplace) {
    const unsigned operands = smg_code_operands(code);
    const uint32_t *ops = code + 2, *strides = smg_code_flags(code) & FLAG_STRIDES ? ops + operands : NULL;
    unsigned outputs = 0;
    while (outputs < operands && (roles[outputs].letter == 'o' || roles[outputs].letter == 'u')) { outputs++; }
    for (unsigned i = 0; i < operands; i++) {
        if (roles[i].letter == 'i') { continue; }
        for (unsigned j = 0; j < operands; j++) {
            if (i == j || ops[i] >> 29 != ops[j] >> 29 || ops[i] >> 29 == R_NONE) { continue; }
            const uint32_t step_i = strides ? strides[i] : 0, step_j = strides ? strides[j] : 0;
            const uint32_t at_i = ops[i] & 0x1fffffffu, at_j = ops[j] & 0x1fffffffu;
            const int may = i == 0 && j >= outputs && inplace >> (j - outputs) & 1 && in_place(c, code, i, j);
            if (may && at_i == at_j && step_i == step_j) { continue; }
            int apart = 0;
            if (ops[i] >> 29 == R_OUTPUT) {
                apart = at_i != at_j;
            } else {
                /* Operands that advance alike are compared within one iteration, others over all of them. */
                const int alike = step_i == step_j;
                const uint64_t a = (uint64_t)at_i * 4, b = (uint64_t)at_j * 4;
                const uint64_t len_a = alike ? need[i] : span(c, need[i], step_i);
                const uint64_t len_b = alike ? need[j] : span(c, need[j], step_j);
                apart = !len_a || !len_b || a + len_a <= b || b + len_b <= a;
#if SMG_ROWS
                if (!apart && c->rule && !i && alike) {
                    const int over = j >= outputs && inplace >> (j - outputs) & 1;
                    apart = smg_check_behind(c, code, j, need[0], (int64_t)b - (int64_t)a, over);
                }
#endif
            }
            if (!apart) {
                smg_refuse_operand(c, i, RULE("overlaps operand "));
                smg_add_number(c->x, j);
                return SMG_BAD_PROGRAM;
            }
        }
    }
    return SMG_OK;
}

#if SMG_PAGES
static int is_apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* From start to wait, nobody touches the memory that a page goes to, and nobody writes the page. */
static SmgStatus check_started(SmgCheck *c, const uint32_t *code, const uint64_t *need, const SmgRole *roles) {
    const unsigned operands = smg_code_operands(code);
    const uint32_t *ops = code + 2, *strides = smg_code_flags(code) & FLAG_STRIDES ? ops + operands : NULL;
    if (roles[0].letter == 'w') {
        int k = 0;
        while (k < c->pending &&
               (c->started[k].to != ops[0] || c->started[k].page != ops[1] || c->started[k].bytes != need[0])) {
            k++;
        }
        if (k == c->pending) { return smg_refuse(c, RULE("no such page was started")); }
        c->started[k] = c->started[--c->pending];
    }
    for (unsigned i = 0; i < operands; i++) {
        const uint32_t region = ops[i] >> 29;
        const uint64_t at = (uint64_t)(ops[i] & 0x1fffffffu) * 4, bytes = span(c, need[i], strides ? strides[i] : 0);
        if (region != R_ARENA && roles[i].letter != 'P') { continue; }
        for (int k = 0; k < c->pending; k++) {
            const SmgStarted *s = &c->started[k];
            const uint64_t from = (uint64_t)((region == R_ARENA ? s->to : s->page) & 0x1fffffffu) * 4;
            if (bytes && s->bytes && !is_apart(at, bytes, from, s->bytes)) {
                return smg_refuse_operand(c, i, RULE("is used by a page that is on its way"));
            }
        }
    }
    if (roles[0].letter == 'b') {
        if (c->pending == SMG_MAX_STARTED) { return smg_refuse(c, RULE("too many pages are on their way")); }
        c->started[c->pending++] = (SmgStarted){ops[0], (uint32_t)need[0], ops[1]};
    }
    return SMG_OK;
}
#endif

/* What an instruction touches with these parameters: 0, or -1 if its kernel refuses them. */
static int extent(const SmgCheck *c, const uint32_t *code, const int32_t *p, uint32_t params, uint64_t *need) {
    const SmgRun run = {c->n, c->n, 0};
    const SmgKernel *kernel = smg_kernels[c->x->kernels[smg_code_kernel(code)]];
    return kernel->extent(p, (int)params, (int)smg_code_operands(code), run, need);
}

#if SMG_ROWS
uint32_t smg_single_bytes(const SmgCheck *c, const uint32_t *code, const uint32_t *block) {
    uint64_t need[SMG_MAX_OPERANDS] = {0};
    const int32_t *p = smg_scaled(c->x, block, 1);
    const SmgTurn one = {.n = 1, .rows = 1};
    uint32_t found = 0;
    if (p && smg_rows_kind(c->rule) != SMG_ROWS_EACH) { p = smg_put_turn(c->x, block, p, c->rule, &one); }
    if (!p || extent(c, code, p, block[0] & 0xffffu, need)) { return 0; }
    for (unsigned i = 0; i < smg_code_operands(code); i++) { found |= (uint32_t)(need[i] % 4 != 0) << i; }
    return found;
}
#endif

SmgStatus smg_check_call(SmgCheck *c, const uint32_t *code, const int32_t *p, uint32_t params, const SmgRole *roles) {
    SmgContext *x = c->x;
    const unsigned operands = smg_code_operands(code);
    const int number = x->kernels[smg_code_kernel(code)];
    uint64_t need[SMG_MAX_OPERANDS] = {0};
    if (extent(c, code, p, params, need)) { return smg_refuse(c, RULE("the parameters are out of range")); }
    const uint32_t *ops = code + 2, *strides = smg_code_flags(code) & FLAG_STRIDES ? ops + operands : NULL;
    /* In a loop with a count of its own every iteration writes memory that none before it wrote. The count is then paid
     * for in memory: a short file cannot ask for hours of work. */
    int again = c->counted;
    for (unsigned i = 0; i < operands; i++) {
        uint64_t bytes;
        const uint32_t stride = strides ? strides[i] : 0;
        const SmgStatus status = available(c, i, ops[i], roles[i], &bytes);
        if (status) { return status; }
        /* Words are read at multiples of four bytes; an operand with an odd size consists of bytes. */
        int single = need[i] % 4 != 0;
#if SMG_ROWS
        if (c->rule) {
            single = c->single >> i & 1;
            const SmgStatus moves = smg_check_moves(c, code, i, &need[i]);
            if (moves) { return moves; }
        }
#endif
        if (stride % 4 && !single) { return smg_refuse_operand(c, i, RULE("advances by an odd stride")); }
        if (need[i] == SMG_TOO_MUCH || span(c, need[i], stride) > bytes) {
            smg_refuse_operand(c, i, RULE("needs "));
            smg_add_number(x, span(c, need[i], stride));
            smg_add_text(x, " bytes and has ");
            smg_add_number(x, bytes);
            return SMG_BAD_PROGRAM;
        }
        if (need[i] && stride >= need[i] && roles[i].letter == 'o') { again = 0; }
    }
    if (again) { return smg_refuse(c, RULE("writes nothing new in a loop with a count")); }
#if SMG_PAGES
    for (unsigned i = 0; i < operands; i++) {
        if (is_page(roles[i])) { x->paging |= 1u << c->entry; }
    }
    if (c->pending || roles[0].letter == 'b' || roles[0].letter == 'w') {
        const SmgStatus status = check_started(c, code, need, roles);
        if (status) { return status; }
    }
#endif
    return check_overlap(c, code, need, roles, smg_kernel_inplace[number]);
}

static SmgStatus check_instruction(SmgCheck *c, const uint32_t *code) {
    SmgContext *x = c->x;
    const uint32_t params_words = smg_section_bytes(x, S_PARAMS) / 4;
    SmgRole roles[SMG_MAX_OPERANDS] = {{0, 0}};
    if (smg_code_kernel(code) >= smg_section_bytes(x, S_KERNELS) / 4) {
        return smg_refuse(c, RULE("unknown kernel number"));
    }
    const SmgKernel *kernel = smg_kernels[x->kernels[smg_code_kernel(code)]];
    c->kernel = kernel->name;
    c->flags = kernel->flags;
    if (smg_roles(kernel->signature, smg_code_operands(code), roles)) {
        return smg_refuse(c, RULE("wrong number of operands"));
    }
    if (code[1] >= params_words) { return smg_refuse(c, RULE("the parameters lie outside their section")); }
    const uint32_t *block = smg_section(x, S_PARAMS) + code[1];
    const uint32_t params = block[0] & 0xffffu, maps = block[0] >> 16 ? (params + 31) / 32 : 0;
    if (block[0] >> 16 > 1 || params > SMG_MAX_PARAMS || 1 + maps + params > params_words - code[1]) {
        return smg_refuse(c, RULE("the parameters lie outside their section"));
    }
    if (maps && params > SMG_MAX_WORDS) {
        return smg_refuse_as(c, SMG_FAULT_ROOM, "more parameters than this build has room for");
    }
    if (kernel->params >= 0 && params != (uint32_t)kernel->params) {
        return smg_refuse(c, RULE("wrong number of parameters"));
    }
#if SMG_ROWS
    if (c->rule) { return smg_check_rows(c, code, block, roles); }
#endif
    const int32_t *p = smg_scaled(x, block, c->scale);
    if (!p) { return smg_refuse(c, RULE("a size does not fit 32 bits")); }
    return smg_check_call(c, code, p, params, roles);
}

/* A loop that this runtime can run: `left` instructions are left of the one around it. */
static SmgStatus check_loop(SmgCheck *c, const uint32_t *code, uint32_t left) {
    const uint32_t words = smg_code_words(code);
    int is_samples;
    if (smg_code_flags(code) || words > 5 || words == 4) {
        return smg_refuse(c, RULE("a loop with fields it cannot have"));
    }
    if (words > 2 && code[2] > INT32_MAX) { return smg_refuse(c, RULE("a loop with a negative count")); }
    if (code[1] == 0) { return smg_refuse(c, RULE("a loop around nothing")); }
    if (left) { return smg_refuse_as(c, SMG_FAULT_LATER, "a loop inside a loop"); }
    if (words == 5) { return smg_refuse_as(c, SMG_FAULT_LATER, "a loop with a period"); }
    c->count = smg_loop_count(code, c->n, &is_samples);
    c->counted = !is_samples && c->count > 1; /* once is what the file says itself */
    c->scale = is_samples ? 1 : c->n;
    return SMG_OK;
}

/* Of an instruction that is no loop: what it says of itself beside kernel and operands. */
static SmgStatus check_flags(const SmgCheck *c, const uint32_t *code, int in_loop) {
    const uint32_t flags = smg_code_flags(code), levels = flags & FLAG_LEVELS;
    if (flags & ~(uint32_t)FLAGS_ALL) { return smg_refuse_as(c, SMG_FAULT_LATER, "flags of a later version"); }
#if SMG_ROWS
    if (flags & FLAG_ROWS && !c->rule) { return smg_refuse(c, RULE("rows outside a stream")); }
#else
    if (flags & FLAG_ROWS || smg_code_kernel(code) == SMG_STREAM) {
        return smg_refuse_as(c, SMG_FAULT_ROOM, "this build has no streams");
    }
#endif
    if (flags & FLAG_TAG && code[smg_code_words(code) - 1]) {
        return smg_refuse_as(c, SMG_FAULT_LATER, "an instruction with a guard, or for another unit");
    }
    if (levels > 1) { return smg_refuse_as(c, SMG_FAULT_LATER, "strides of a loop inside a loop"); }
    return levels && !in_loop ? smg_refuse(c, RULE("strides outside a loop")) : SMG_OK;
}

SmgStatus smg_check_entry(SmgContext *x, int entry, int32_t n) {
    const uint32_t *record = smg_entry_record(x, entry);
    const uint32_t *at = smg_section(x, S_CODE) + record[E_CODE], *end = at + record[E_WORDS];
    uint32_t left = 0; /* instructions of the loop around */
    SmgCheck c = {.x = x, .entry = entry, .kernel = "", .record = record, .n = n};
    x->checked[entry] = 0;
    for (; at < end; c.instruction++) {
        SmgStatus status;
        c.kernel = "";
        if (end - at < 2 || smg_code_words(at) > (uint64_t)(end - at)) {
            return smg_refuse(&c, RULE("the code ends within an instruction"));
        }
        if (smg_code_kernel(at) == SMG_LOOP) {
            status = check_loop(&c, at, left);
            left = at[1];
#if SMG_ROWS
        } else if (smg_code_kernel(at) == SMG_STREAM) {
            status = smg_check_stream(&c, at, left);
            left -= left ? 1 : 0;
#endif
        } else {
            if (!left) {
                c.count = 1;
                c.counted = 0;
                c.scale = n;
            }
#if SMG_PAGES
            c.in_loop = left != 0;
#endif
#if SMG_ROWS
            c.rule = c.table ? smg_stream_of(c.table).rule + c.place++ : NULL;
#endif
            status = check_flags(&c, at, left != 0);
            if (!status) { status = check_instruction(&c, at); }
            left -= left ? 1 : 0;
#if SMG_ROWS
            if (c.table && !--c.left) { c.table = NULL; }
#endif
        }
        if (status) { return status; }
        at += smg_code_words(at);
    }
    c.kernel = "";
    if (left) { return smg_refuse(&c, RULE("the code ends within a loop")); }
#if SMG_PAGES
    if (c.pending) { return smg_refuse(&c, RULE("a page was started that nobody waits for")); }
#endif
    if (c.instruction != record[E_INSTRUCTIONS]) { return smg_refuse(&c, RULE("the number of instructions is wrong")); }
    x->checked[entry] = n;
    return SMG_OK;
}
