/* Geometry of streams: what each instruction does in an iteration, and the proof that it finds its rows. */
#include "rows.h"

#if SMG_ROWS
static int32_t floor_div(int32_t a, int32_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static int32_t ceil_div(int32_t a, int32_t b) { return -floor_div(-a, b); }
static int64_t divisor(int64_t a, int64_t b) { /* the greatest common one */
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Row r of the result needs rows floor((r * by + low) / over) .. floor((r * by + high) / over) of the input. */
typedef struct {
    int32_t by, over, low, high;
} Needs;

static Needs needs_of(const SmgRowRule *r) {
    const int32_t last = r->reach - 1 - r->pad;
    switch (smg_rows_kind(r)) {
    case SMG_ROWS_SUM:
    case SMG_ROWS_WINDOW: return (Needs){r->step, 1, -r->pad, last};
    case SMG_ROWS_SPREAD: return (Needs){1, r->step, r->step - 1 - last, r->pad};
    case SMG_ROWS_PLACED: return (Needs){r->by, r->step, -r->pad, last};
    default: return (Needs){1, 1, 0, 0};
    }
}

SmgTurn smg_turn(const SmgRowRule *rule, int32_t from, int32_t n, int32_t count) {
    if (smg_rows_kind(rule) == SMG_ROWS_EACH) { return (SmgTurn){from, n, from, n, 0}; }
    const Needs v = needs_of(rule);
    const int32_t end = floor_div((from + n - 1) * v.by + v.high, v.over) + 1;
    SmgTurn t = {from, n, smg_rows_within(floor_div(from * v.by + v.low, v.over), count), 0, 0};
    t.rows = smg_rows_within(end, count) - t.first; /* none in the padding alone */
    if (smg_rows_kind(rule) == SMG_ROWS_SPREAD) {
        t.above = rule->pad + from - t.first * rule->step;
    } else if (smg_rows_kind(rule) != SMG_ROWS_PLACED && from * v.by + v.low < 0) {
        t.above = rule->pad - from * rule->step;
    }
    return t;
}

const int32_t *smg_put_turn(SmgContext *x, const uint32_t *block, const int32_t *p, const SmgRowRule *rule,
                            const SmgTurn *turn) {
    if (p != x->words) { memcpy(x->words, p, (block[0] & 0xffffu) * sizeof *p); }
    x->words[rule->in] = turn->rows;
    x->words[rule->out] = turn->n;
    if (smg_rows_kind(rule) == SMG_ROWS_PLACED) {
        x->words[rule->above] = turn->first;
        x->words[rule->above + 1] = turn->from;
    } else {
        x->words[rule->above] = turn->above;
        if (smg_rows_kind(rule) == SMG_ROWS_SUM) { x->words[rule->above + 1] = turn->from; }
    }
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
    const int32_t reach = kind == SMG_ROWS_SPREAD ? SMG_MAX_EDGE : SMG_MAX_REACH;
    const int32_t step = kind == SMG_ROWS_PLACED ? SMG_MAX_EDGE : reach;
    if (r->reach < 1 || r->reach > reach || r->step < 1 || r->step > step) { return 0; }
    if (r->by < 1 || r->by > (kind == SMG_ROWS_PLACED ? SMG_MAX_REACH : 1)) { return 0; }
    return r->pad >= -SMG_MAX_REACH && r->pad <= SMG_MAX_EDGE;
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
 * changes by as much from `over` rows to the next, so that it is largest within that many of one of the ends. */
int64_t smg_rows_apart(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in) {
    enum { TOP = 2 * SMG_MAX_EDGE };
    const int32_t most = smg_rows_within((out->step + out->period - 1) / out->period, out->count);
    const int32_t last = out->count - most;
    int64_t apart = 0;
    for (int32_t from = 0; from <= last; from++) {
        if (from == TOP && last - TOP > TOP) { from = last - TOP; }
        const int64_t end = (int64_t)(from + most) * out->bytes;
        const int64_t first = (int64_t)smg_turn(rule, from, most, in->count).first * in->bytes;
        apart = end - first > apart ? end - first : apart;
    }
    return apart;
}

/* From this row of the result on, the end of an input with `count` rows matters. */
static int32_t bottom_of(const Needs *v, int32_t count) { return ceil_div(count * v->over - v->high, v->by); }

/* Turns until those before are repeated: the result moves by whole rows, to where a row of the input begins. */
static int32_t cycle_of(const Needs *v, const SmgRowValue *out) {
    const int64_t common = divisor(out->step, out->period);
    return (int32_t)(out->period / common * (v->over / divisor(v->over, out->step / common * v->by)));
}

/* Conditions for all iterations at once: both ends move with the same rate, so that they stay as far apart. Where the
 * result is at X, a multiple of step / period, the input is at X * by / over. The last row that is needed is
 * floor(((floor(X) + ahead - 1) * by + high) / over), and X * by / over has a rest of rest / whole at most; the first
 * one is floor(((floor(X) + ahead) * by + low) / over), and floor(X) * by is `late` behind floor(X * by) at most. */
int smg_check_flow(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in, unsigned operand) {
    if (!out->step) { return 0; }
    const int is_each = operand != smg_rows_windowed(rule);
    const Needs v = is_each ? (Needs){1, 1, 0, 0} : needs_of(rule);
    if (is_each) {
        if (in->count != out->count) { return 0; }
    } else if (out->count - bottom_of(&v, in->count) > SMG_MAX_EDGE) {
        return 0;
    }
    if (v.over > 1 && cycle_of(&v, out) > SMG_MAX_CYCLE) { return 0; }
    if (!in->step) { return 1; }
    const int64_t period = out->period, whole = v.over * period, fast = in->step * whole;
    if (fast != (int64_t)out->step * in->period * v.by) { return 0; }
    const int64_t rest = whole - divisor((int64_t)out->step * v.by, whole), late = v.by * (period - 1) / period;
    return in->ahead * whole > ((out->ahead - 1) * v.by + v.high) * period + rest &&
           in->kept * (int64_t)v.over <= out->ahead * v.by + v.low - late;
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
 * alone, of which there are two; or, if several rows come from one, on where the first is too, until turns are
 * repeated. */
int smg_next_turn(const SmgRowRule *rule, const SmgRowValue *out, int32_t count, SmgTurns *state, SmgTurn *turn) {
    enum { TOP, MIDDLE, BOTTOM };
    const Needs v = needs_of(rule);
    const int32_t from = state->next, few = out->step / out->period, most = (out->step + out->period - 1) / out->period;
    const int is_each = smg_rows_kind(rule) == SMG_ROWS_EACH, is_whole = v.over == 1;
    const int32_t top = is_each ? 0 : ceil_div(-v.low, v.by);
    const int32_t bottom = is_each ? out->count : smg_rows_within(bottom_of(&v, count), out->count);
    if (from >= out->count) { return 0; }
    int32_t n = end_of(out, from) - from;
    if (state->phase == MIDDLE && is_whole) {
        n = state->middle ? few : most;
    } else {
        state->next = from + n;
    }
    *turn = smg_turn(rule, from, n, count);
    if (state->phase == MIDDLE && --state->middle < 0) {
        state->next = end_until(out, bottom);
        state->phase = BOTTOM;
    } else if (state->phase == TOP && state->next >= top) {
        state->middle = is_whole ? few && few != most : cycle_of(&v, out) - 1;
        const int64_t enough = (int64_t)most * (state->middle + 1);
        state->phase = state->next + enough <= bottom ? MIDDLE : BOTTOM;
    }
    return 1;
}
#endif
