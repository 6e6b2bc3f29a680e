/* See fleet.h. An answer to SMG_FLEET_HELLO: version of the messages, most bytes of a payload, checksum of the program
 * file, its bytes, bytes of STATE, checksum of STATE, flags (below), bytes of a row, number of rows, batch, room for
 * another program, bytes of the line that were no part of a frame.
 *
 * fleet_rows.c runs the program on rows; this file takes requests apart and keeps the order. */
#include "fleet.h"
#include "crc.h"
#include "fleet_rows.h"
#include "format.h"

enum { WHOLE = 1, RESTORED = 2, SLOTS = 4, RECIPES = 8, OWN = 16 };
enum { UNIT = 32 }; /* of writes of a recipe */

static int is_whole_program(const SmgFleetRecipes *r, uint32_t *bytes) {
    uint32_t head[F_TOTAL + 1];
    if (r->bytes < sizeof head) { return 0; }
    memcpy(head, r->memory, sizeof head);
    *bytes = head[F_TOTAL];
    return head[F_MAGIC] == SMG_MAGIC && *bytes <= r->bytes;
}

static SmgStatus open_program(SmgFleet *f, const void *program, uint32_t bytes) {
    const SmgFleetParts *p = f->parts;
    f->total = f->done = f->is_whole = f->is_restored = 0;
    const SmgStatus status = smg_open(p->context, program, bytes, p->state, p->state_bytes, p->arena, p->arena_bytes);
    if (status) { return status; }
    f->is_own = program == p->program;
    f->is_restored = p->slots && !smg_restore(p->context, p->slots);
    f->is_whole = 1;
    return SMG_OK;
}

static SmgStatus open_own(SmgFleet *f) { return open_program(f, f->parts->program, f->parts->program_bytes); }

SmgStatus smg_fleet_open(SmgFleet *f, const SmgFleetParts *parts) {
    uint32_t bytes;
    *f = (SmgFleet){.parts = parts};
    if (parts->frames_bytes < SMG_FLEET_FRAMES_BYTES(SMG_FLEET_LEAST_PAYLOAD)) {
        return smg_say(parts->context, SMG_FAULT_CALL, "a fleet's frames need more memory");
    }
    const uint32_t half = parts->frames_bytes / 2, most = half - SMG_FRAME_EXTRA_BYTES;
    f->most = most < 0xffffu ? most : 0xffffu;
    f->answer = (uint8_t *)parts->frames + half;
    smg_frame_reader(&f->reader, parts->frames, half);
    const SmgFleetRecipes *r = parts->recipes;
    if (r && is_whole_program(r, &bytes) && !open_program(f, r->memory, bytes)) { return SMG_OK; }
    return open_own(f);
}

/* ---- answers: two bytes of error, two of fault, and what was asked for ---- */

enum { ANSWER_HEAD = 4 };

typedef struct {
    SmgFleet *f;
    const uint8_t *at; /* of the request's payload, what is not read yet */
    uint32_t bytes;
    uint8_t *to; /* of the answer, behind its head; of an error, a text */
    uint32_t room, written;
    SmgFault fault;
} Ask;

/* Why the runtime says no. */
static void add_reason(Ask *a) {
    const SmgContext *x = a->f->parts->context;
    const char *text = smg_error(x);
    a->fault = smg_fault(x, NULL);
    for (a->written = 0; text[a->written]; a->written++) { a->to[a->written] = (uint8_t)text[a->written]; }
}

static uint32_t state_crc(const SmgFleet *f) {
    const SmgContext *x = f->parts->context;
    return smg_crc32(0, x->state, smg_state_bytes(x));
}

static void add(Ask *a, uint32_t word) {
    smg_put32(a->to + a->written, word);
    a->written += 4;
}

static uint32_t take(Ask *a) {
    const uint32_t word = smg_get32(a->at);
    a->at += 4;
    a->bytes -= 4;
    return word;
}

static SmgFleetError hello(Ask *a) {
    const SmgFleet *f = a->f;
    const SmgFleetParts *p = f->parts;
    const SmgContext *x = p->context;
    const uint32_t row = smg_fleet_row_bytes(x);
    const uint32_t flags = (f->is_whole ? WHOLE : 0) | (f->is_restored ? RESTORED : 0) | (p->slots ? SLOTS : 0) |
                           (p->recipes ? RECIPES : 0) | (f->is_own ? OWN : 0);
    add(a, SMG_FLEET_VERSION);
    add(a, f->most);
    add(a, smg_words(x)[F_CRC]);
    add(a, smg_words(x)[F_TOTAL]);
    add(a, smg_state_bytes(x));
    add(a, state_crc(f));
    add(a, flags);
    add(a, row);
    add(a, row ? p->rows_bytes / row : 0);
    add(a, (uint32_t)smg_batch(x));
    add(a, p->recipes ? p->recipes->bytes : 0);
    add(a, f->reader.dropped);
    return SMG_FLEET_OK;
}

/* Are these bytes within so many? */
static int within(uint32_t offset, uint32_t bytes, uint32_t all) { return offset <= all && bytes <= all - offset; }

static SmgFleetError state_in(Ask *a) {
    SmgContext *x = a->f->parts->context;
    const uint32_t offset = take(a);
    if (!within(offset, a->bytes, smg_state_bytes(x))) { return SMG_FLEET_RANGE; }
    a->f->is_whole = a->f->is_restored = 0;
    a->f->total = a->f->done = 0;
    memcpy(x->state + offset, a->at, a->bytes);
    return SMG_FLEET_OK;
}

static SmgFleetError state_set(Ask *a) {
    if (take(a) != state_crc(a->f)) { return SMG_FLEET_CHECKSUM; }
    a->f->is_whole = 1;
    return SMG_FLEET_OK;
}

static SmgFleetError state_out(Ask *a) {
    const SmgContext *x = a->f->parts->context;
    const uint32_t offset = take(a), bytes = take(a);
    if (!a->f->is_whole) { return SMG_FLEET_NOT_WHOLE; }
    if (!within(offset, bytes, smg_state_bytes(x)) || bytes > a->room) { return SMG_FLEET_RANGE; }
    memcpy(a->to, x->state + offset, bytes);
    a->written = bytes;
    return SMG_FLEET_OK;
}

static SmgFleetError samples_in(Ask *a) {
    const SmgFleetParts *p = a->f->parts;
    const uint32_t offset = take(a);
    if (!within(offset, a->bytes, p->rows_bytes)) { return SMG_FLEET_RANGE; }
    memcpy((uint8_t *)p->rows + offset, a->at, a->bytes);
    return SMG_FLEET_OK;
}

static SmgFleetError step(Ask *a) {
    SmgFleet *f = a->f;
    const SmgSamples s = {(int32_t)smg_get16(a->at), (int32_t)smg_get16(a->at + 2), (int32_t)smg_get16(a->at + 4)};
    const SmgRows rows = {f->parts->context, (const uint8_t *)f->parts->rows, a->at + 6, f->parts->rows_bytes, s.n};
    float loss = 0;
    if (a->bytes != 6 + 2 * (uint32_t)s.n) { return SMG_FLEET_LENGTH; }
    if (!f->is_whole) { return SMG_FLEET_NOT_WHOLE; }
    const int is_first = s.first == 0;
    if (s.first + s.n > s.total || (!is_first && (s.first != f->done || s.total != f->total))) {
        return SMG_FLEET_PART;
    }
    f->total = f->done = 0;
    SmgFleetError error = smg_fleet_rows_fit(&rows);
    if (!error) { error = smg_fleet_step(&rows, s, &loss, &f->is_whole); }
    if (error) { return error; }
    if (s.first + s.n < s.total) {
        f->total = (uint16_t)s.total;
        f->done = (uint16_t)(s.first + s.n);
    }
    uint32_t word;
    memcpy(&word, &loss, sizeof word);
    add(a, word);
    return SMG_FLEET_OK;
}

static SmgFleetError infer(Ask *a) {
    SmgFleet *f = a->f;
    const uint32_t offset = take(a), bytes = take(a);
    const int32_t n = (int32_t)smg_get16(a->at);
    const SmgRows rows = {f->parts->context, (const uint8_t *)f->parts->rows, a->at + 2, f->parts->rows_bytes, n};
    if (a->bytes != 2 + 2 * (uint32_t)n) { return SMG_FLEET_LENGTH; }
    if (!f->is_whole) { return SMG_FLEET_NOT_WHOLE; }
    if (bytes > a->room) { return SMG_FLEET_RANGE; }
    const SmgFleetError error = smg_fleet_rows_fit(&rows);
    if (error) { return error; }
    f->total = f->done = 0; /* the arena is another's now */
    const SmgWanted wanted = {a->to, offset, bytes};
    const SmgFleetError stopped = smg_fleet_infer(&rows, &wanted);
    a->written = stopped ? 0 : bytes;
    return stopped;
}

static SmgFleetError hash(Ask *a) {
    if (!a->f->is_whole) { return SMG_FLEET_NOT_WHOLE; }
    add(a, state_crc(a->f));
    return SMG_FLEET_OK;
}

static SmgFleetError save(Ask *a) {
    const SmgFleetParts *p = a->f->parts;
    if (!p->slots) { return SMG_FLEET_NO_SLOTS; }
    if (!a->f->is_whole) { return SMG_FLEET_NOT_WHOLE; }
    const SmgStatus status = smg_save(p->context, p->slots);
    if (status) { return status == SMG_STOPPED ? SMG_FLEET_STORAGE : SMG_FLEET_NO_ROOM; }
    return hash(a);
}

/* ---- another program ---- */

static SmgFleetError recipe(Ask *a) {
    SmgFleet *f = a->f;
    const SmgFleetRecipes *r = f->parts->recipes;
    const uint32_t bytes = take(a);
    f->recipe_bytes = f->recipe_have = 0;
    if (!r) { return SMG_FLEET_NO_RECIPES; }
    if (bytes > r->bytes || bytes < SMG_HEADER_BYTES) { return SMG_FLEET_NO_ROOM; }
    if (!f->is_own && open_own(f)) { return SMG_FLEET_STOPPED; } /* what is erased must not be open */
    if (r->erase(r->self)) { return SMG_FLEET_STORAGE; }
    f->recipe_bytes = bytes;
    return SMG_FLEET_OK;
}

static SmgFleetError recipe_in(Ask *a) {
    SmgFleet *f = a->f;
    const SmgFleetRecipes *r = f->parts->recipes;
    const uint32_t offset = take(a);
    if (!r) { return SMG_FLEET_NO_RECIPES; }
    const int is_last = a->bytes && within(offset, a->bytes, f->recipe_bytes) && offset + a->bytes == f->recipe_bytes;
    if (offset != f->recipe_have || !within(offset, a->bytes, f->recipe_bytes)) { return SMG_FLEET_RANGE; }
    if (a->bytes % UNIT && !is_last) { return SMG_FLEET_LENGTH; }
    if (r->write(r->self, offset, a->at, a->bytes)) { return SMG_FLEET_STORAGE; }
    f->recipe_have += a->bytes;
    return SMG_FLEET_OK;
}

static SmgFleetError recipe_use(Ask *a) {
    SmgFleet *f = a->f;
    const SmgFleetParts *p = f->parts;
    const SmgFleetRecipes *r = p->recipes;
    const uint32_t crc = take(a), bytes = f->recipe_bytes;
    if (!r) { return SMG_FLEET_NO_RECIPES; }
    if (!bytes || f->recipe_have != bytes) { return SMG_FLEET_NOT_WHOLE; }
    if (smg_crc32(0, r->memory, bytes) != crc) { return SMG_FLEET_CHECKSUM; }
    if (!open_program(f, r->memory, bytes)) { return hello(a); }
    add_reason(a); /* before opening the other one takes it away */
    if (open_own(f)) { return SMG_FLEET_STOPPED; }
    return a->fault == SMG_FAULT_CALL || a->fault == SMG_FAULT_ROOM ? SMG_FLEET_NO_ROOM : SMG_FLEET_BAD_RECIPE;
}

/* ---- requests ---- */

typedef struct {
    SmgFleetError (*answer)(Ask *a);
    uint8_t least, is_exact; /* bytes of the payload */
} Rule;

static const Rule rules[] = {
    [SMG_FLEET_HELLO] = {hello, 0, 1},
    [SMG_FLEET_STATE_IN] = {state_in, 5, 0},
    [SMG_FLEET_STATE_SET] = {state_set, 4, 1},
    [SMG_FLEET_STATE_OUT] = {state_out, 8, 1},
    [SMG_FLEET_SAMPLES_IN] = {samples_in, 5, 0},
    [SMG_FLEET_STEP] = {step, 8, 0},
    [SMG_FLEET_INFER] = {infer, 12, 0},
    [SMG_FLEET_HASH] = {hash, 0, 1},
    [SMG_FLEET_SAVE] = {save, 0, 1},
    [SMG_FLEET_RECIPE] = {recipe, 4, 1},
    [SMG_FLEET_RECIPE_IN] = {recipe_in, 5, 0},
    [SMG_FLEET_RECIPE_USE] = {recipe_use, 4, 1},
};

static SmgFleetError done(Ask *a, const SmgFrame *frame) {
    smg_say(a->f->parts->context, SMG_NO_FAULT, ""); /* what it says next is of this request */
    if (!frame->type || frame->type >= sizeof rules / sizeof *rules) { return SMG_FLEET_NO_REQUEST; }
    const Rule *rule = &rules[frame->type];
    if (a->bytes < rule->least || (rule->is_exact && a->bytes != rule->least)) { return SMG_FLEET_LENGTH; }
    return rule->answer(a);
}

/* Number and fault before what was written. */
static uint32_t put_answer(SmgFleet *f, const SmgFrame *frame, SmgFleetError error, const Ask *a) {
    uint8_t *payload = f->answer + SMG_FRAME_HEADER_BYTES;
    smg_put16(payload, (uint32_t)error);
    smg_put16(payload + 2, (uint32_t)a->fault);
    return smg_frame_write(f->answer, (uint8_t)(frame->type | SMG_FLEET_ANSWER), frame->session, frame->sequence,
                           (uint16_t)(ANSWER_HEAD + a->written));
}

static void take_request(SmgFleet *f, const SmgFrame *frame) {
    const SmgFleetParts *p = f->parts;
    if (frame->type & SMG_FLEET_ANSWER || !frame->session) { return; } /* an echo of the line */
    const int is_same = frame->session == f->session;
    if (!is_same || frame->sequence != f->sequence) {
        SmgFleetError error = SMG_FLEET_OK;
        if (!is_same && frame->type != SMG_FLEET_HELLO) { error = SMG_FLEET_NO_SESSION; }
        if (is_same && frame->sequence != f->sequence + 1) { error = SMG_FLEET_NOT_NEXT; }
        if (error) { /* from a small answer of its own: the last one is kept */
            uint8_t own[SMG_FRAME_EXTRA_BYTES + ANSWER_HEAD];
            smg_put32(own + SMG_FRAME_HEADER_BYTES, (uint32_t)error);
            p->write(p->self, own,
                     smg_frame_write(own, (uint8_t)(frame->type | SMG_FLEET_ANSWER), frame->session, frame->sequence,
                                     ANSWER_HEAD));
            return;
        }
        f->session = frame->session;
        f->sequence = frame->sequence;
        Ask a = {.f = f,
                 .at = frame->payload,
                 .bytes = frame->bytes,
                 .to = f->answer + SMG_FRAME_HEADER_BYTES + ANSWER_HEAD,
                 .room = f->most - ANSWER_HEAD};
        const SmgFleetError found = done(&a, frame);
        if (found && !a.fault) { add_reason(&a); }
        f->answered = put_answer(f, frame, found, &a);
    }
    p->write(p->self, f->answer, f->answered);
}

int smg_fleet_byte(SmgFleet *f, uint8_t byte) {
    SmgFrame frame;
    int answers = 0;
    smg_frame_byte(&f->reader, byte);
    for (; smg_frame_next(&f->reader, &frame); answers++) { take_request(f, &frame); }
    return answers;
}
