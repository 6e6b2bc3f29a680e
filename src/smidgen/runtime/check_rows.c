/* The part of the proof that concerns streams: every instruction finds its rows, and stays inside its memory in every
 * way in which it makes some. */
#include "check.h"

#if SMG_ROWS
SmgStatus smg_check_stream(SmgCheck *c, const uint32_t *code, uint32_t left) {
    const uint32_t params_words = smg_section_bytes(c->x, S_PARAMS) / 4;
    if (smg_code_flags(code) || smg_code_words(code) != 3) {
        return smg_refuse(c, RULE("a stream with fields it cannot have"));
    }
    if (!left || c->counted || c->table) { return smg_refuse(c, RULE("a stream outside a loop over samples")); }
    if (!code[1] || code[1] >= left) { return smg_refuse(c, RULE("a stream that ends behind its loop")); }
    if (code[2] >= params_words ||
        smg_check_table(smg_section(c->x, S_PARAMS) + code[2], params_words - code[2], code[1])) {
        return smg_refuse(c, RULE("the table of the stream is wrong"));
    }
    c->table = smg_section(c->x, S_PARAMS) + code[2];
    c->left = code[1];
    c->place = 0;
    return SMG_OK;
}

static const SmgRowValue *row_value(const SmgCheck *c, const uint32_t *code, unsigned operand) {
    const uint32_t *numbers = smg_code_rows(code), number = numbers ? numbers[operand] : 0;
    return number ? &smg_stream_of(c->table).value[number - 1] : NULL;
}

SmgStatus smg_check_moves(const SmgCheck *c, const uint32_t *code, unsigned operand, uint64_t *need) {
    const SmgRowValue *v = row_value(c, code, operand);
    if (!v || *need == SMG_TOO_MUCH) { return SMG_OK; }
    if (!operand && smg_rows_kind(c->rule) == SMG_ROWS_SUM) { return SMG_OK; } /* there as a whole */
    /* Words are read at multiples of four bytes. */
    if (v->bytes % 4 && !(c->single >> operand & 1)) {
        return smg_refuse_operand(c, operand, RULE("has rows of an odd size"));
    }
    const int is_windowed = operand && operand == smg_rows_windowed(c->rule);
    const int32_t before = smg_rows_most(v) - (is_windowed ? c->turn.rows : c->turn.n);
    if (before > 0) { *need = smg_add(*need, (uint64_t)before * (uint64_t)v->bytes); }
    /* Forgetting moves whole rows, whatever the kernel touches of them. */
    const uint64_t rows = (uint64_t)smg_rows_most(v) * (uint64_t)v->bytes;
    if (!operand && *need < rows) { *need = rows; }
    return SMG_OK;
}

int smg_check_behind(const SmgCheck *c, const uint32_t *code, unsigned j, uint64_t made, int64_t behind, int inplace) {
    const SmgRowValue *out = row_value(c, code, 0), *in = row_value(c, code, j);
    if (!out || !in || in->step) { return 0; }
    /* All rows stay where they are made, and the kernel writes nothing behind them. */
    const int32_t last = smg_stream_of(c->table).iterations - 1;
    if (smg_rows_begin(out, last) || made > (uint64_t)out->count * (uint64_t)out->bytes) { return 0; }
    const int is_each = smg_rows_kind(c->rule) == SMG_ROWS_EACH;
    if (inplace && is_each && !behind && in->bytes == out->bytes) { return 1; }
    return c->turn.from || behind >= smg_rows_apart(c->rule, out, in); /* of all turns, when the first is looked at */
}

/* Every operand finds its rows in every iteration. */
static SmgStatus check_flow(const SmgCheck *c, const uint32_t *code, uint32_t params, const SmgRole *roles) {
    const SmgStream s = smg_stream_of(c->table);
    const SmgRowRule *rule = c->rule;
    const uint32_t *numbers = smg_code_rows(code);
    const unsigned operands = smg_code_operands(code);
    const int is_each = smg_rows_kind(rule) == SMG_ROWS_EACH, is_sum = smg_rows_kind(rule) == SMG_ROWS_SUM;
    if (!operands || !numbers || !numbers[0] || roles[0].letter != 'o') {
        return smg_refuse(c, RULE("a stream around what makes no rows"));
    }
    if (!is_each && (operands < 2 || !numbers[1])) { return smg_refuse(c, RULE("a window over no rows")); }
    for (unsigned i = 0; i < operands; i++) {
        if (numbers[i] > (uint32_t)s.values) {
            return smg_refuse_operand(c, i, RULE("is a value that does not exist"));
        }
        if (!i) { continue; }
        if (roles[i].letter != 'i' && (roles[i].letter != 's' || numbers[i])) {
            return smg_refuse_operand(c, i, RULE("cannot be in a stream"));
        }
        const int may = is_each || i == 1 || (is_sum && i == 2);
        const int fits =
            !numbers[i] || (may && smg_check_flow(rule, &s.value[numbers[0] - 1], &s.value[numbers[i] - 1], i));
        if (!fits) { return smg_refuse_operand(c, i, RULE("does not have the rows that are needed")); }
    }
    if (is_sum && s.value[numbers[0] - 1].bytes) { return smg_refuse(c, RULE("a sum that moves by rows")); }
    if (!s.value[numbers[0] - 1].step) { return smg_refuse(c, RULE("makes rows that are there already")); }
    if (!is_each && params > SMG_MAX_WORDS) {
        return smg_refuse_as(c, SMG_FAULT_ROOM, "more parameters than this build has room for");
    }
    const uint32_t in = (uint32_t)rule->in, out = (uint32_t)rule->out, above = (uint32_t)rule->above;
    if (smg_rows_kind(rule) == SMG_ROWS_PLACED &&
        !(c->flags & SMG_PLACED && (above == SMG_TALL || above == SMG_WIDE))) {
        return smg_refuse(c, RULE("is not told so where its rows are"));
    }
    if (!is_each && (in >= params || out >= params || above >= params || (is_sum && above + 1 >= params))) {
        return smg_refuse(c, RULE("a window with parameters that do not exist"));
    }
    return SMG_OK;
}

SmgStatus smg_check_rows(SmgCheck *c, const uint32_t *code, const uint32_t *block, const SmgRole *roles) {
    const uint32_t params = block[0] & 0xffffu;
    const int is_each = smg_rows_kind(c->rule) == SMG_ROWS_EACH;
    SmgStatus status = check_flow(c, code, params, roles);
    if (status) { return status; }
    c->single = smg_single_bytes(c, code, block);
    const unsigned windowed = smg_rows_windowed(c->rule);
    const SmgRowValue *out = row_value(c, code, 0);
    const SmgRowValue *in = windowed < smg_code_operands(code) ? row_value(c, code, windowed) : NULL;
    if (!in) { in = out; } /* nothing but rows of its own */
    SmgTurns state = {0, 0, 0};
    while (!status && smg_next_turn(c->rule, out, in->count, &state, &c->turn)) {
        if (c->turn.n < 1) { return smg_refuse(c, RULE("a stream that makes no rows")); }
        const int32_t *p = smg_scaled(c->x, block, is_each ? c->turn.n : 1);
        if (!p) { return smg_refuse(c, RULE("a size does not fit 32 bits")); }
        if (!is_each) { p = smg_put_turn(c->x, block, p, c->rule, &c->turn); }
        status = smg_check_call(c, code, p, params, roles);
    }
    return status;
}
#endif
