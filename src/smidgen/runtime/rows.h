/* Streams: instructions inside the loop over samples that run row by row, depth first. In iteration i each value gets
 * its next rows and forgets those that nobody will read again:
 *
 *     rows begin(i)..end(i) are there,   end(i)   = floor((i + 1) * step / period) + ahead     both within 0..count
 *                                        begin(i) = floor(i * step / period) + kept
 *
 *     image   . . . x x x . .      x: rows that are there, the oldest first in memory; new ones come behind them,
 *     conv 1    . . . x x x .         and when the oldest are no longer needed the others move to the front
 *     conv 2        . . x . .      step 0: all rows are there all the time
 *
 * A stream is SMG_STREAM | 1 << 16, body, table. The table is a block of parameters: iterations, values, a SmgRowValue
 * for each of them, a SmgRowRule for each instruction of the body. Operands say which value they are part of. Operand 0
 * is what an instruction makes, at most ceil(step / period) rows of it at a time. A sum over rows is there as a whole:
 * its rows, of 0 bytes, are those that it has taken in. */
#ifndef SMG_ROWS_H
#define SMG_ROWS_H
#include "format.h"

typedef struct {
    int32_t count, step, period, ahead, kept, bytes; /* rows of the value; bytes of a row */
} SmgRowValue;

/* How an instruction makes rows of its result from those of an input. Row r needs rows
 *     window  r * step - pad .. r * step - pad + reach - 1                         of the input
 *     spread  the inverse: those whose windows hold r
 *     placed  floor((r * by - pad) / step) .. floor((r * by - pad + reach - 1) / step)
 *     each    r, of all inputs that move; the kernel takes rows for samples
 *     sum     r of operand 1 and, if operand 2 moves, the window of r over that: they are added to operand 0, each row
 *             once and in order
 * as far as there are such. The kernel is told in its parameters how many rows it has of its input, how many to make,
 * and the padding above them; or, placed, the first row of the input that it has and the first to make. That of a sum
 * is told of its window, for the rows of operand 1, and the first of these. */
enum {
    SMG_ROWS_EACH,
    SMG_ROWS_WINDOW,
    SMG_ROWS_SPREAD,
    SMG_ROWS_PLACED,
    SMG_ROWS_SUM,
    SMG_ROWS_KINDS,
    SMG_ROWS_FORGETS = 16
};
typedef struct {
    int32_t kind; /* | SMG_ROWS_FORGETS: before it makes rows, old ones are forgotten; not where it works in place */
    int32_t reach, step, by, pad; /* by is 1 unless placed */
    int32_t in, out, above;       /* numbers of parameters; of two, one behind the other, the first */
} SmgRowRule;

#define SMG_MAX_ROWS  (1 << 15) /* of a value, in an iteration, and steps */
#define SMG_MAX_REACH 256
#define SMG_MAX_EDGE  64  /* rows of a result near either end of its input: each is checked */
#define SMG_MAX_CYCLE 256 /* turns until they are repeated: each is checked */
enum { VALUE_WORDS = sizeof(SmgRowValue) / 4, RULE_WORDS = sizeof(SmgRowRule) / 4, TABLE_VALUES = 2 };

static inline int32_t smg_rows_kind(const SmgRowRule *rule) { return rule->kind & ~SMG_ROWS_FORGETS; }
static inline int32_t smg_rows_within(int64_t row, int32_t count) {
    return row < 0 ? 0 : row > count ? count : (int32_t)row;
}
static inline int32_t smg_rows_end(const SmgRowValue *v, int32_t i) {
    return smg_rows_within(((int64_t)i + 1) * v->step / v->period + v->ahead, v->count);
}
static inline int32_t smg_rows_begin(const SmgRowValue *v, int32_t i) {
    return smg_rows_within((int64_t)i * v->step / v->period + v->kept, v->count);
}
/* Rows at a time. */
static inline int32_t smg_rows_most(const SmgRowValue *v) {
    const int32_t most = (v->step + v->period - 1) / v->period + v->ahead - v->kept;
    return most < v->count ? most : v->count;
}

/* What an instruction does in one iteration. */
typedef struct {
    int32_t from, n;     /* rows to make */
    int32_t first, rows; /* rows of the input that they need */
    int32_t above;       /* padding, where the kernel is told of it */
} SmgTurn;
/* For rows from..from+n of the result, of an input with `count` rows. */
SmgTurn smg_turn(const SmgRowRule *rule, int32_t from, int32_t n, int32_t count);
/* Parameters p, those of the block, with what the kernel is told of this turn; not for `each`. */
const int32_t *smg_put_turn(SmgContext *x, const uint32_t *block, const int32_t *p, const SmgRowRule *rule,
                            const SmgTurn *turn);

typedef struct {
    int32_t iterations, values;
    const SmgRowValue *value;
    const SmgRowRule *rule;
} SmgStream;
SmgStream smg_stream_of(const uint32_t *table);

/* The table of a stream with `body` instructions, `words` behind its start: 0, or -1 if it cannot be one. */
int smg_check_table(const uint32_t *table, uint32_t words, uint32_t body);
/* Has an instruction with this rule, in every iteration, the rows of `in`, which is this operand, that it needs for
 * those of `out`? */
int smg_check_flow(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in, unsigned operand);
/* The operand whose rows are those of the window; all others that move have rows of the result. 0: there is none. */
static inline unsigned smg_rows_windowed(const SmgRowRule *rule) {
    const int32_t kind = smg_rows_kind(rule);
    return kind == SMG_ROWS_EACH ? 0 : kind == SMG_ROWS_SUM ? 2 : 1;
}
/* So many bytes behind a result, an input that is there as a whole is not overwritten by rows that are made from it. */
int64_t smg_rows_apart(const SmgRowRule *rule, const SmgRowValue *out, const SmgRowValue *in);
/* Every different way in which an instruction makes rows of `out` from those of an input with `count` rows, one after
 * the other: `state` is zero before the first; 0 after the last. */
typedef struct {
    int32_t next, phase, middle;
} SmgTurns;
int smg_next_turn(const SmgRowRule *rule, const SmgRowValue *out, int32_t count, SmgTurns *state, SmgTurn *turn);
#endif
