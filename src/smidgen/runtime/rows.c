/* Geometry of streams: what each instruction does in an iteration, and the proof that it finds its rows. */
#include "rows.h"

#if SMG_ROWS
static int32_t floor_div(int32_t a, int32_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static int32_t ceil_div(int32_t a, int32_t b) { return -floor_div(-a, b); }
static int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

SmgTurn smg_turn(const SmgRowRule *rule, int32_t from, int32_t n, int32_t count) {
    SmgTurn t = {from, n, from, n, 0};
    int32_t end;
    switch (smg_rows_kind(rule)) {
    case SMG_ROWS_WINDOW:
        t.first = largest(0, from * rule->step - rule->pad);
        end = least(count, (from + n - 1) * rule->step - rule->pad + rule->reach);
        t.rows = end - t.first;
        t.above = largest(0, rule->pad - from * rule->step);
        break;
    case SMG_ROWS_SPREAD:
        t.first = largest(0, ceil_div(from + rule->pad - (rule->reach - 1), rule->step));
        end = least(count, floor_div(from + n - 1 + rule->pad, rule->step) + 1);
        t.rows = end - t.first;
        t.above = rule->pad + from - t.first * rule->step;
        break;
    default: break;
    }
    return t;
}

const int32_t *smg_put_turn(SmgContext *x, const uint32_t *block, const int32_t *p, const SmgRowRule *rule,
                            const SmgTurn *turn) {
    if (p != x->words) { memcpy(x->words, p, (block[0] & 0xffffu) * sizeof *p); }
    x->words[rule->in] = turn->rows;
    x->words[rule->out] = turn->n;
    x->words[rule->above] = turn->above;
    return x->words;
}

SmgStream smg_stream_of(const uint32_t *table) {
    const int32_t *words = (const int32_t *)(const void *)(table + 1);
    const SmgRowValue *value = (const SmgRowValue *)(const void *)(words + TABLE_VALUES);
    return (SmgStream){words[0], words[1], value, (const SmgRowRule *)(const void *)(value + words[1])};
}

static int is_value(const SmgRowValue *v) {
    const int32_t most = SMG_MAX_ROWS;
    if (v->count < 1 || v->count > most || v->step < 0 || v->step > most || v->period < 1 || v->period > most) {
        return 0;
    }
    if (v->bytes < 0 || v->bytes > 1 << 28) { return 0; }
    if (!v->step) { return v->ahead == v->count && v->kept == 0; } /* all rows are there */
    /* Rows of iteration 0 are the first, and none is forgotten before it is made. */
    return v->ahead <= 0 && v->ahead >= -most && v->kept <= v->ahead && v->kept >= -4 * most && smg_rows_most(v) > 0;
}

static int is_rule(const SmgRowRule *r) {
    const int32_t kind = smg_rows_kind(r);
    if (kind < 0 || kind >= SMG_ROWS_KINDS || r->in < 0 || r->out < 0 || r->above < 0) { return 0; }
    const int32_t most = kind == SMG_ROWS_SPREAD ? SMG_MAX_EDGE : SMG_MAX_REACH;
    if (r->reach < 1 || r->reach > most || r->step < 1 || r->step > most) { return 0; }
    return r->pad >= -SMG_MAX_REACH && r->pad < r->reach && r->pad <= SMG_MAX_EDGE;
}

/* The iteration in which the last row of a value is made, and one more. */
static int64_t done_after(const SmgRowValue *v) {
    return v->step ? (((int64_t)v->count - v->ahead) * v->period + v->step - 1) / v->step : 0;
}

int smg_check_table(const uint32_t *table, uint32_t words, uint32_t body) {
    const uint32_t count = table[0] & 0xffffu;
    if (table[0] >> 16 || count < TABLE_VALUES || count > words - 1) { return -1; }
    const SmgStream s = smg_stream_of(table);
    if (s.iterations < 1 || s.iterations > 4 * SMG_MAX_ROWS || s.values < 0 || s.values > 0xffff || body > 0xffff) {
        return -1;
    }
    if (count != TABLE_VALUES + VALUE_WORDS * (uint64_t)s.values + RULE_WORDS * (uint64_t)body) { return -1; }
    int64_t last = 0; /* no iteration in which nothing is left to do */
    for (int32_t i = 0; i < s.values; i++) {
        if (!is_value(&s.value[i])) { return -1; }
        const int64_t done = done_after(&s.value[i]);
        last = done > last ? done : last;
    }
    for (uint32_t i = 0; i < body; i++) {
        if (!is_rule(&s.rule[i])) { return -1; }
    }
    return s.iterations > last ? -1 : 0;
}

/* By rows alone, whatever the iterations are: `most` rows from any row on. Where neither edge matters the distance
 * changes by as much from `step` rows to the next, so that it is largest at one of the ends of that. */
int64_t smg_rows_apart(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in) {
    enum { TOP = 2 * SMG_MAX_EDGE };
    const int32_t most = least((out->step + out->period - 1) / out->period, out->count), last = out->count - most;
    int64_t apart = 0;
    for (int32_t from = 0; from <= last; from++) {
        if (from == TOP && last - TOP > SMG_MAX_EDGE) { from = last - SMG_MAX_EDGE; }
        const int64_t end = (int64_t)(from + most) * out->bytes;
        const int64_t first = (int64_t)smg_turn(rule, from, most, in->count).first * in->bytes;
        apart = end - first > apart ? end - first : apart;
    }
    return apart;
}

/* The first row of a result for which a window looks over the end of an input with `count` rows. */
static int32_t window_bottom(const SmgRowRule *rule, int32_t count) {
    return floor_div(count + rule->pad - rule->reach, rule->step) + 1;
}

/* Conditions for all iterations at once: both ends move with the same rate, so that they stay as far apart. */
int smg_check_flow(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in) {
    const int32_t kind = smg_rows_kind(rule), s = rule->step, pad = rule->pad, reach = rule->reach;
    const int64_t fast = (int64_t)in->step * out->period, slow = (int64_t)out->step * in->period;
    if (!out->step) { return 0; }
    if (kind == SMG_ROWS_EACH) {
        if (in->count != out->count) { return 0; }
        return !in->step || (fast == slow && in->ahead >= out->ahead && in->kept <= out->ahead);
    }
    if (kind == SMG_ROWS_WINDOW) { /* every window sees a part of the input, and few look over its end */
        const int32_t last = s * (out->count - 1) - pad;
        if (last >= in->count || out->count - window_bottom(rule, in->count) > SMG_MAX_EDGE) { return 0; }
        if (!in->step) { return 1; }
        const int32_t late = s * (out->period - 1) / out->period; /* floor(i s r) - s floor(i r) at most */
        return fast == s * slow && in->ahead >= s * out->ahead + reach - s - pad &&
               in->kept <= s * out->ahead - pad - late;
    }
    if (reach < s || pad < 0 || out->count + pad - reach > s * (in->count - 1) || out->period != 1) { return 0; }
    if (!in->step) { return 1; }
    return in->period == 1 && s * fast == slow && in->ahead >= floor_div(out->ahead - 1 + pad, s) + 1 &&
           in->kept <= ceil_div(out->ahead + pad - reach + 1, s);
}

/* The end of the rows that are made together with row `from`. */
static int32_t end_of(const SmgRowValue *v, int32_t from) {
    const int64_t wanted = (int64_t)from - v->ahead + 1; /* floor((i + 1) step / period) at least */
    const int64_t i = (wanted * v->period + v->step - 1) / v->step;
    return smg_rows_within(i * v->step / v->period + v->ahead, v->count);
}

/* The last end of rows that are made together, at most `row`. */
static int32_t end_until(const SmgRowValue *v, int32_t row) {
    const int64_t i = (((int64_t)row - v->ahead + 1) * v->period - 1) / v->step;
    return smg_rows_within(i * v->step / v->period + v->ahead, v->count);
}

/* All turns from the first row on to where the edge of the input no longer matters, `top`; of those in the middle each
 * kind once; and all from where the other edge does, `bottom`. In the middle a turn depends on the number of rows
 * alone, of which there are two; with a spread on the first row as well, which is repeated after `step` turns. */
int smg_next_turn(const SmgRowRule *rule, const SmgRowValue *out, int32_t count, SmgTurns *state, SmgTurn *turn) {
    enum { TOP, MIDDLE, BOTTOM };
    const int32_t kind = smg_rows_kind(rule), s = rule->step, from = state->next;
    const int32_t few = out->step / out->period, most = (out->step + out->period - 1) / out->period;
    int32_t top = 0, bottom = out->count;
    if (kind == SMG_ROWS_WINDOW) {
        top = ceil_div(rule->pad, s);
        bottom = window_bottom(rule, count);
    } else if (kind == SMG_ROWS_SPREAD) {
        top = rule->reach - rule->pad - s;
        bottom = count * s - rule->pad;
    }
    bottom = smg_rows_within(bottom, out->count);
    if (from >= out->count) { return 0; }
    int32_t n = end_of(out, from) - from;
    if (state->phase == MIDDLE && kind != SMG_ROWS_SPREAD) {
        n = state->middle ? few : most;
    } else {
        state->next = from + n;
    }
    *turn = smg_turn(rule, from, n, count);
    if (state->phase == MIDDLE && --state->middle < 0) {
        state->next = end_until(out, bottom);
        state->phase = BOTTOM;
    } else if (state->phase == TOP && state->next >= top) {
        state->middle = kind == SMG_ROWS_SPREAD ? s - 1 : few && few != most;
        const int64_t enough = (int64_t)most * (state->middle + 1);
        state->phase = state->next + enough <= bottom ? MIDDLE : BOTTOM;
    }
    return 1;
}
#endif
