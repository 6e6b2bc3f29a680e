/* Changes of streams: words of their tables, rows of operands, and streams where there were none. */
#ifndef MUTATE_STREAMS_H
#define MUTATE_STREAMS_H
#include "mutate_parts.h"
#include "rows.h"

/* The head of some stream, whose table has all words that it says, or NULL. */
static uint32_t *some_stream(Parts *p) {
    static uint32_t spots[MAX_SPOTS + 1];
    const uint32_t entries = entries_of(p), first = below(entries);
    for (uint32_t e = 0; e < entries; e++) {
        const uint32_t count = instructions(p, (first + e) % entries, spots), start = below(count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t *code = p->words[S_CODE] + spots[(start + i) % count];
            if (smg_code_kernel(code) != SMG_STREAM || smg_code_words(code) != 3) { continue; }
            const uint32_t words = count_of(p, S_PARAMS);
            if (code[2] < words && block_words(p->words[S_PARAMS] + code[2]) <= words - code[2]) { return code; }
        }
    }
    return NULL;
}

/* A word of a stream's table, or what an operand of its body is part of. */
static void change_stream(Parts *p) {
    uint32_t *head = some_stream(p);
    if (!head) { return; }
    if (one_in(3)) {
        uint32_t *code = head + 3, *const end = p->words[S_CODE] + count_of(p, S_CODE);
        for (uint32_t i = below(head[1]); i && code + 2 < end; i--) { code += smg_code_words(code); }
        if (code + 2 >= end || code + smg_code_words(code) > end) { return; }
        const uint32_t *rows = smg_code_rows(code), operands = smg_code_operands(code);
        if (!rows || !operands) { return; }
        code[rows - code + below(operands)] = one_in(4) ? another(*rows) : below(8);
        return;
    }
    if (one_in(8)) {
        head[one_in(3) ? 0 : 1 + below(2)] += below(5) - 2;
        return;
    }
    uint32_t *table = p->words[S_PARAMS] + head[2];
    const uint32_t words = block_words(table), values = words > 2 ? table[2] : 0;
    if (words < 3) { return; }
    if (one_in(2) && values && values < words / VALUE_WORDS) { /* the same of two values, so that they still agree */
        const uint32_t field = below(VALUE_WORDS), change = below(9) - 4;
        for (uint32_t i = 1 + below(3); i; i--) {
            uint32_t *word = &table[3 + below(values) * VALUE_WORDS + field];
            *word = one_in(6) ? another(*word) : *word + change;
        }
    } else {
        uint32_t *word = &table[1 + below(words - 1)];
        *word = one_in(2) ? *word + below(5) - 2 : another(*word);
    }
    if (one_in(2)) { table[1] = one_in(2) ? 1 + below(40) : table[1] + below(9) - 4; }
}

/* A loop over samples and a stream around a copy of an instruction, or two. */
static void insert_stream(Parts *p) {
    uint32_t entry, at, code[64], table[64] = {0};
    const uint32_t *old = some_instruction(p, &entry, &at);
    const uint32_t operands = old ? smg_code_operands(old) : 0, body = 1 + below(2), values = 1 + below(2);
    if (!operands || operands > 8 || old[0] >> 24) { return; }
    table[0] = TABLE_VALUES + values * VALUE_WORDS + body * RULE_WORDS;
    table[2] = values;
    SmgRowValue *v = (SmgRowValue *)(void *)(table + 3);
    SmgRowRule *r = (SmgRowRule *)(void *)(v + values);
    for (uint32_t i = 0; i < values; i++) {
        const int32_t ahead = -(int32_t)(one_in(2) ? 0 : below(4)), step = 1 + (int32_t)below(3);
        v[i] = (SmgRowValue){1 + (int32_t)below(9), step, one_in(2) ? 1 : 2, ahead, ahead - (int32_t)below(3), 4};
        if (i && one_in(2)) { v[i] = v[0]; }
        if (i && one_in(3)) { v[i] = (SmgRowValue){v[0].count, 0, 1, v[0].count, 0, 4}; }
        v[i].bytes = one_in(4) ? (int32_t)below(20) : 4 * (int32_t)below(9);
        const uint32_t last = (uint32_t)(((v[i].count - v[i].ahead) * v[i].period + step - 1) / step);
        if (last > table[1]) { table[1] = one_in(16) ? another(last) : last; }
    }
    for (uint32_t i = 0; i < body; i++) {
        const int32_t kind = one_in(2) ? SMG_ROWS_EACH : (int32_t)below(SMG_ROWS_KINDS);
        const int32_t reach = 1 + (int32_t)below(4), step = 1 + (int32_t)below(2), is_placed = kind == SMG_ROWS_PLACED;
        r[i] = (SmgRowRule){kind | (one_in(2) ? SMG_ROWS_FORGETS : 0),
                            reach,
                            step,
                            is_placed && one_in(2) ? 2 : 1,
                            (int32_t)below((uint32_t)reach),
                            (int32_t)below(8),
                            (int32_t)below(8),
                            is_placed && !one_in(8) ? (one_in(2) ? SMG_TALL : SMG_WIDE) : (int32_t)below(12)};
    }
    uint32_t used = 0;
    code[used++] = SMG_LOOP;
    code[used++] = 1 + body;
    code[used++] = SMG_STREAM | 1u << 16;
    code[used++] = body;
    code[used++] = count_of(p, S_PARAMS);
    for (uint32_t i = 0; i < body; i++) {
        code[used++] = old[0] | (uint32_t)FLAG_ROWS << 24;
        for (uint32_t k = 1; k < 2 + operands; k++) { code[used++] = old[k]; }
        for (uint32_t k = 0; k < operands; k++) { code[used++] = k && one_in(3) ? 0 : 1 + below(values); }
    }
    if (!insert(p, S_PARAMS, code[4], table, 1 + table[0])) { return; }
    insert_code(p, entry, at, code, used, 2 + body);
    for (uint32_t region = R_STATE; region <= R_ARENA; region++) { /* rows lie behind each other */
        if (one_in(2)) { make_room(p, region, p->head[F_CONST + region] + 4 * below(200)); }
    }
}
#endif
