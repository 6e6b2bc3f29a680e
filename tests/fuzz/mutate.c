/* Changes programs the way someone would who knows the format: takes a file apart, alters headers, tables,
 * instructions, parameters and data, puts it together again with the size and checksum that belong to it. About half
 * of what comes out opens. Besides altering, it writes instructions of its own: any kernel of this build, parameters
 * that its extent accepts, operands to the byte at the end of their region. */
#include "fuzz_program.h"
#include "mutate_streams.h"

enum { MOST_BYTES = 1 << 16 }; /* of all operands of an instruction of our own, but for large inputs */
#define MOST_READ ((uint64_t)1 << 38)

/* ---- instructions of our own ---- */

/* Kernels with any number of parameters say first, or nearly first, how many axes there are.
 * `extreme`: nothing, many times. Does it end? */
static int32_t some_params(const SmgKernel *kernel, int operands, int extreme, int32_t *p) {
    int32_t count = kernel->params;
    if (count < 0) {
        static const int32_t others[] = {1, 2, 5, 7}, lists[] = {2, 3, 4};
        const int32_t rank = (int32_t)below(5);
        count = one_in(4) ? operands : others[below(4)] + lists[below(3)] * rank;
        for (int32_t i = 0; i < count; i++) {
            p[i] = (int32_t)(extreme && one_in(4) ? 1u << (16 + below(15)) : below(4));
        }
        for (int i = 0; i < 3; i++) {
            if (one_in(2)) { p[i] = i ? rank : (int32_t)below(2) * rank; }
        }
        return count;
    }
    for (int32_t i = 0; i < count; i++) {
        const uint32_t kind = below(16);
        p[i] = (int32_t)(kind < 12 ? 1 + below(5) : kind < 14 ? numbers[below(sizeof numbers / 4)] : below(40));
        if (i && one_in(6)) { p[i] = p[i - 1]; }
    }
    for (uint32_t i = extreme ? 2 + below(3) : 0; i && count; i--) {
        const uint32_t kind = below(5);
        p[below((uint32_t)count)] = (int32_t)(kind < 2 ? 0 : kind < 4 ? 1u << (16 + below(15)) : 6 + below(12));
    }
    return count;
}

/* A new input of the entry point, large enough for an operand: its operand word, or 0. Outputs are counted after
 * inputs. */
static uint32_t new_input(Parts *p, uint32_t entry, uint64_t bytes) {
    static uint32_t spots[MAX_SPOTS + 1];
    uint32_t *e = entry_of(p, entry), record[BUFFER_WORDS] = {0}, number = e[E_INPUTS];
    const uint64_t elements = (bytes + 3) / 4, rows = elements >> 30;
    record[B_KIND] = (one_in(2) ? SMG_F32 : SMG_I32) | 2u << 16 | 0xffu << 24;
    record[B_DIMS] = (uint32_t)(rows + 1);
    record[B_DIMS + 1] = rows ? 1u << 30 : (uint32_t)elements;
    if (number > 32 || rows > 1 << 20 ||
        !insert(p, S_BUFFERS, (e[E_BUFFER] + number) * BUFFER_WORDS, record, BUFFER_WORDS)) {
        return 0;
    }
    for (uint32_t i = 0; i < entries_of(p); i++) {
        if (i != entry && entry_of(p, i)[E_BUFFER] > e[E_BUFFER]) { entry_of(p, i)[E_BUFFER]++; }
    }
    for (uint32_t i = 0, count = instructions(p, entry, spots); i < count; i++) {
        uint32_t *code = p->words[S_CODE] + spots[i];
        if (smg_code_repeats(code)) { continue; }
        for (uint32_t k = 0; k < smg_code_operands(code); k++) {
            if (code[2 + k] >> 29 == R_OUTPUT) { code[2 + k]++; }
        }
    }
    e[E_INPUTS]++;
    return (uint32_t)R_INPUT << 29 | number;
}

/* A page, in a section that is made for it. */
static uint32_t new_page(Parts *p, uint64_t need) {
    const uint32_t at = below(4) * SMG_PAGE_ALIGN, end = at + (uint32_t)(need > MOST_BYTES ? MOST_BYTES : need);
    p->head[F_SECTIONS] = SECTIONS + 1;
    if (p->bytes[S_PAGES] < PAGES_VALUES * 4) { p->bytes[S_PAGES] = PAGES_VALUES * 4; }
    if (p->words[S_PAGES][PAGES_BYTES] < end) { p->words[S_PAGES][PAGES_BYTES] = end; }
    return (uint32_t)R_PAGE << 29 | at / 4;
}

/* Operands after each other in a random order, so that each may be the one that ends with its region. */
static void place(Parts *p, uint32_t entry, const SmgRole *roles, const uint64_t *need, int operands, uint32_t *ops) {
    uint32_t ends[3] = {0, 0, 0}, used = 0;
    for (int left = operands; left > 0; left--) {
        int i = (int)below((uint32_t)operands);
        while (used >> i & 1) { i = (i + 1) % operands; }
        used |= 1u << i;
        if (roles[i].letter == 'i' && (need[i] > MOST_BYTES || one_in(12)) && (ops[i] = new_input(p, entry, need[i]))) {
            continue;
        }
        if (roles[i].letter == 'P' || roles[i].letter == 'p') {
            ops[i] = new_page(p, need[i]);
            continue;
        }
        uint32_t region = roles[i].letter == 's' ? R_ARENA : roles[i].letter == 'i' ? below(3) : 1 + below(2);
        if (one_in(2)) { region = R_ARENA; }
        if (region == R_CONST && need[i] > 4096) { region = R_ARENA; }
        ops[i] = region << 29 | ends[region] / 4;
        ends[region] += (uint32_t)(need[i] + 3) / 4 * 4;
    }
    for (uint32_t region = 0; region < 3; region++) { make_room(p, region, ends[region]); }
    if (operands > 1 && one_in(6)) { ops[0] = ops[1 + below((uint32_t)operands - 1)]; /* in place */ }
}

static void write_instruction(Parts *p, uint32_t entry) {
    static uint32_t spots[MAX_SPOTS + 1];
    const SmgKernel *kernel = smg_kernels[below((uint32_t)smg_kernel_count)];
    const int32_t n = p->head[F_BATCH] < 64 ? (int32_t)p->head[F_BATCH] : 1;
    SmgRole roles[SMG_MAX_OPERANDS];
    int operands = 0;
    const int huge = one_in(4), extreme = one_in(3);
    while (smg_roles(kernel->signature, (unsigned)operands, roles) && operands < SMG_MAX_OPERANDS) { operands++; }
    for (uint32_t more = below(3); more && !smg_roles(kernel->signature, (unsigned)operands + 1, roles); more--) {
        operands++;
    }
    smg_roles(kernel->signature, (unsigned)operands, roles);
    for (int attempt = 0; attempt < 200; attempt++) {
        int32_t words[SMG_MAX_PARAMS + 8];
        uint64_t need[SMG_MAX_OPERANDS] = {0}, total = 0;
        const int32_t count = some_params(kernel, operands, extreme, words);
        for (uint32_t i = huge ? 1 + below(2) : 0; i && count; i--) {
            words[below((uint32_t)count)] = (int32_t)(numbers[below(sizeof numbers / 4)] & 0x7fffffff);
        }
        const int scaled = n > 1 && count > 0 && words[0] > 0 && words[0] < 64 && one_in(3);
        if (scaled) { words[0] *= n; }
        if (count > SMG_MAX_PARAMS || kernel->extent(words, count, operands, (SmgRun){n, n, 0}, need)) { continue; }
        if (scaled) { words[0] /= n; }
        for (int i = 0; i < operands; i++) { /* only what is read may be large: it becomes an input */
            total = smg_add(total, roles[i].letter == 'i' && huge && need[i] <= MOST_READ ? 0 : need[i]);
        }
        if (total > MOST_BYTES) { continue; }
        uint32_t block[SMG_MAX_PARAMS + 8] = {(uint32_t)count | (scaled ? 1u << 16 : 0)}, used = 1;
        for (int32_t i = 0; scaled && i < (count + 31) / 32; i++) { block[used++] = i == 0; }
        memcpy(block + used, words, (size_t)count * 4);
        used += (uint32_t)count;
        uint32_t code[2 + SMG_MAX_OPERANDS] = {0};
        code[0] = kernel_number(p, kernel->name) | (uint32_t)operands << 16;
        code[1] = count_of(p, S_PARAMS);
        if (!insert(p, S_PARAMS, code[1], block, used)) { return; }
        place(p, entry, roles, need, operands, code + 2);
        const uint32_t last = instructions(p, entry, spots);
        insert_code(p, entry, one_in(3) ? spots[below(last + 1)] : spots[last], code, 2 + (uint32_t)operands, 1);
        return;
    }
}

/* ---- changes ---- */

static void change_instruction(Parts *p) {
    uint32_t entry, at, copy[2 + 5 * 255 + 1];
    uint32_t *code = some_instruction(p, &entry, &at);
    if (!code) { return; }
    const uint32_t words = smg_code_words(code), operands = smg_code_operands(code), op = 2 + below(operands);
    memcpy(copy, code, words * 4);
    switch (below(operands ? 11 : 7)) {
    case 0: erase_code(p, entry, at, words, 1); return;
    case 1: insert_code(p, entry, at, copy, words, 1); return;
    case 2: /* another kernel */
        code[0] = (code[0] & 0xffff0000u) | kernel_number(p, smg_kernels[below((uint32_t)smg_kernel_count)]->name);
        return;
    case 3: code[1] = count_of(p, S_PARAMS) ? below(count_of(p, S_PARAMS)) : 0; return;
    case 4: code[0] = another(code[0]); return;
    case 5: /* a loop around it and what follows, over samples or not, with or without strides */
        if (!(copy[0] >> 24) && words + operands < sizeof copy / 4) {
            for (uint32_t i = 0; i < operands; i++) { copy[words + i] = one_in(2) ? 0 : 4 * below(17); }
            copy[0] |= (uint32_t)FLAG_STRIDES << 24;
            erase_code(p, entry, at, words, 1);
            insert_code(p, entry, at, copy, words + operands, 1);
        }
        copy[0] = SMG_LOOP | (one_in(2) ? 0 : one_in(8) ? below(5) : 1) << 16;
        copy[1] = 1 + below(3);
        copy[2] = one_in(8) ? another(1) : below(5);
        copy[3] = one_in(4) ? below(4) : 0;
        copy[4] = one_in(4) ? below(4) : 0;
        copy[5] = any();
        insert_code(p, entry, at, copy, smg_code_words(copy), 1);
        return;
    case 6: /* what is reserved, or does not belong here: guard and unit, rows, strides of more loops */
        if (copy[0] >> 24) { return; }
        copy[0] |= (one_in(2) ? (uint32_t)FLAG_TAG : below(16)) << 24;
        for (uint32_t i = words; i < smg_code_words(copy); i++) { copy[i] = one_in(4) ? any() : 4 * below(3); }
        if (one_in(2)) { copy[smg_code_words(copy) - 1] = 0; }
        erase_code(p, entry, at, words, 1);
        insert_code(p, entry, at, copy, smg_code_words(copy), 1);
        return;
    case 7: code[op] = (code[op] & 0x1fffffffu) | below(8) << 29; return;
    case 8: code[op] = (code[op] & 0xe0000000u) | (another(code[op] & 0x1fffffffu) & 0x1fffffffu); return;
    case 9: code[op] = code[2 + below(operands)]; return;
    default: code[2 + below(words - 2)] += below(9) - 4; return;
    }
}

static void change_params(Parts *p) {
    uint32_t entry, at;
    uint32_t *code = some_instruction(p, &entry, &at), *block = code ? block_of(p, code) : NULL;
    if (!block) { return; }
    if (one_in(2)) { /* a block of its own, so that other instructions keep theirs */
        uint32_t copy[ROOM];
        const uint32_t words = block_words(block), end = count_of(p, S_PARAMS);
        memcpy(copy, block, words * 4);
        if (words > ROOM || !insert(p, S_PARAMS, end, copy, words)) { return; }
        code[1] = end, block = p->words[S_PARAMS] + end;
    }
    const uint32_t words = block_words(block);
    if (one_in(4)) { /* nothing, many times: does it end? */
        for (uint32_t i = 1 + below(3); i; i--) { block[below(words)] = 0; }
        for (uint32_t i = 1 + below(2); i; i--) { block[below(words)] = 1u << (16 + below(15)); }
        return;
    }
    for (uint32_t i = 1 + below(2); i; i--) {
        const uint32_t k = below(words);
        block[k] = another(block[k]);
    }
}

/* Another type, scale and offset of a buffer, or a table of types that says something else. */
static void change_types(Parts *p) {
    const uint32_t count = count_of(p, S_BUFFERS) / BUFFER_WORDS;
    if (one_in(3)) {
        const uint32_t type = below(SMG_TYPE_COUNT + 1), bytes = one_in(4) ? below(9) : smg_types[type % 7].bytes;
        const uint32_t word = type | bytes << 8;
        insert(p, S_TYPES, below(count_of(p, S_TYPES) + 1), &word, 1);
        return;
    }
    if (!count) { return; }
    uint32_t *b = p->words[S_BUFFERS] + below(count) * BUFFER_WORDS;
    if (one_in(2)) { b[B_KIND] = (b[B_KIND] & 0xffffff00u) | below(SMG_TYPE_COUNT + 1); }
    if (one_in(2)) {
        b[B_KIND] |= (uint32_t)BUFFER_SCALED << 8;
        b[B_SCALE] = numbers[below(sizeof numbers / 4)];
        b[B_OFFSET] = numbers[below(sizeof numbers / 4)];
    }
}

static void change_table(Parts *p, int section) {
    const uint32_t words = count_of(p, section);
    if (!words) { return; }
    uint32_t *word = &p->words[section][below(words)];
    *word = another(*word);
}

static void change_sizes(Parts *p) {
    const uint32_t which = below(8);
    uint32_t *arena = &p->head[F_ARENA], *held = &p->head[F_STATE];
    if (which < 2) {
        p->head[F_BATCH] = one_in(4) ? another(p->head[F_BATCH]) : 1 + below(8);
    } else if (which == 2) {
        p->head[F_ALIGN] = one_in(4) ? another(p->head[F_ALIGN]) : 4u << below(5);
    } else if (which == 3) {
        *arena = one_in(4) ? another(*arena) : *arena + 4 * below(65) - 128;
    } else if (which == 4) {
        *held = one_in(4) ? another(*held) : *held + 4 * below(65) - 128;
    } else if (which == 5) {
        make_room(p, R_CONST, 4 * below(65));
    } else if (which == 6 && p->bytes[S_STATE]) {
        p->bytes[S_STATE] -= 4 * below(1 + p->bytes[S_STATE] / 4);
    } else {
        p->head[below(F_TABLE)] ^= 1u << below(32);
    }
}

static void change_data(Parts *p) {
    const int section = one_in(2) ? S_STATE : S_CONST;
    for (uint32_t i = 1 + below(8); i && count_of(p, section); i--) {
        p->words[section][below(count_of(p, section))] = one_in(4) ? any() : numbers[below(sizeof numbers / 4)];
    }
}

static void change(Parts *p) {
    const uint32_t kind = below(32);
    if (one_in(3) && some_stream(p)) {
        change_stream(p);
    } else if (one_in(24)) {
        insert_stream(p);
    } else if (kind < 6 && entries_of(p)) {
        write_instruction(p, below(entries_of(p)));
    } else if (kind < 15) {
        change_instruction(p);
    } else if (kind < 24) {
        change_params(p);
    } else if (kind < 26) {
        change_sizes(p);
    } else if (kind < 29) {
        change_data(p);
    } else if (kind == 29) {
        change_table(p, one_in(2) ? S_ENTRIES : S_BUFFERS);
    } else if (kind == 30) {
        change_types(p);
    } else {
        change_table(p, one_in(2) ? S_KERNELS : one_in(2) ? S_STRINGS : S_CODE);
    }
}

static Parts one_parts, two_parts;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    state = seed ? seed : 1;
    if (one_in(40) && size > SMG_HEADER_BYTES) { /* anything anywhere, the table of sections included */
        for (uint32_t i = 1 + below(3); i; i--) {
            const size_t at = (one_in(2) ? below(SMG_HEADER_BYTES / 4) : below((uint32_t)size / 4)) * 4;
            uint32_t word;
            memcpy(&word, data + at, 4);
            word = another(word);
            memcpy(data + at, &word, 4);
        }
        if (one_in(4)) { size -= below((uint32_t)size / 2); }
        if (!one_in(8)) { seal(data, size); }
        return size;
    }
    if (!take_apart(&one_parts, data, size) || one_in(8)) {
        begin(&one_parts);
        for (uint32_t i = 1 + below(3); i; i--) { write_instruction(&one_parts, 0); }
    } else {
        for (uint32_t i = 1 + below(3); i; i--) { change(&one_parts); }
    }
    const size_t made = put_together(&one_parts, data, max_size);
    if (made) { return made; }
    begin(&one_parts);
    write_instruction(&one_parts, 0);
    return put_together(&one_parts, data, max_size);
}

/* An instruction of the second program, with its parameters, put into the first one. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two, size_t two_size, uint8_t *out,
                                 size_t max_size, unsigned seed) {
    static uint32_t spots[MAX_SPOTS + 1];
    uint32_t entry, at;
    state = seed ? seed : 1;
    if (!take_apart(&one_parts, one, one_size) || !take_apart(&two_parts, two, two_size)) { return 0; }
    uint32_t *code = some_instruction(&two_parts, &entry, &at), *block = code ? block_of(&two_parts, code) : NULL;
    if (!block || !entries_of(&one_parts) || smg_code_kernel(code) >= count_of(&two_parts, S_KERNELS)) { return 0; }
    const uint32_t name = two_parts.words[S_KERNELS][smg_code_kernel(code)], words = smg_code_words(code);
    const uint32_t params = count_of(&one_parts, S_PARAMS);
    two_parts.words[S_STRINGS][ROOM - 1] = 0; /* whatever the file says, strings end */
    if (name >= two_parts.bytes[S_STRINGS] || !insert(&one_parts, S_PARAMS, params, block, block_words(block))) {
        return 0;
    }
    code[0] = (code[0] & 0xffff0000u) | kernel_number(&one_parts, (const char *)two_parts.words[S_STRINGS] + name);
    code[1] = params;
    for (uint32_t region = R_CONST; region <= R_ARENA; region++) {
        if (one_parts.head[F_CONST + region] < two_parts.head[F_CONST + region]) {
            make_room(&one_parts, region, two_parts.head[F_CONST + region]);
        }
    }
    entry = below(entries_of(&one_parts));
    const uint32_t last = instructions(&one_parts, entry, spots);
    insert_code(&one_parts, entry, one_in(2) ? spots[below(last + 1)] : spots[last], code, words, 1);
    return put_together(&one_parts, out, max_size);
}
