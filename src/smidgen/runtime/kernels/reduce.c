/* Reductions over any set of axes.
 *
 * Order of a sum: each run of the last reduced group of axes in chunks of 512, a chunk in eight lanes (sum.h), chunks
 * and runs one after the other. Which loop does the work depends on strides, the order of additions never. */
#include "../exact_math.h"
#include "groups.h"
#include "sink.h"
#include "sum.h"

enum { TILE = 8, CHUNK = 512 };

/* Up to TILE neighbouring outputs: y + 0..w-1, from inputs x + (0..w-1)*step. */
typedef struct {
    int32_t at[SMG_MAX_RANK], i, w;
    size_t row, x, y, step;
} Tile;

static int32_t last_dim(const int32_t *dims, int n) { return n ? dims[n - 1] : 1; }

static void tile_place(const Groups *g, Tile *t) {
    const int32_t left = last_dim(g->kd, g->kept) - t->i;
    t->w = left < TILE
    ? left : TILE;
    t->x = t->row + (size_t)t->i * t->step;
}
static Tile tile_first(const Groups *g) {
    Tile t = {.w = 0};
    if (smg_product(g->kd, g->kept) == 0) { return t; }
    t.step = g->kept ? (size_t)g->ks[g->kept - 1] : 0;
    tile_place(g, &t);
    return t;
}
static void tile_next(const Groups *g, Tile *t) {
    t->y += (size_t)t->w;
    t->i += t->w;
    if (t->i == last_dim(g->kd, g->kept)) {
        t->i = 0;
        if (!smg_walk_next(t->at, g->kd, g->kept - 1, g->ks, g->kept, &t->row, 1)) {
            t->w = 0;
            return;
        }
    }
    tile_place(g, t);
}
#define EACH_TILE(g, t) for (Tile t = tile_first(&(g)); t.w; tile_next(&(g), &t))

/* Runs along the last reduced group that together make up one output. */
typedef struct {
    int32_t at[SMG_MAX_RANK], len;
    size_t off, step;
    int more;
} Run;

static Run run_first(const Groups *g) {
    Run r = {.len = last_dim(g->rd, g->reduced), .step = g->reduced ? (size_t)g->rs[g->reduced - 1] : 0};
    r.more = smg_product(g->rd, g->reduced) != 0;
    return r;
}
static void run_next(const Groups *g, Run *r) {
    r->more = smg_walk_next(r->at, g->rd, g->reduced - 1, g->rs, g->reduced, &r->off, 1);
}
#define EACH_RUN(g, r) for (Run r = run_first(&(g)); r.more; run_next(&(g), &r))

/* smg_sum8 with a stride. */
static float sum8_strided(const float *x, size_t step, int32_t len) {
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int32_t k = 0; k < len; k++) { acc[k & 7] += x[(size_t)k * step]; }
    return smg_lanes8(acc);
}

/* Eight contiguous outputs at once, lane by lane; the same additions as sum8_strided on each. */
static void sum8_tile(const float *x, size_t step, int32_t len, float *total) {
    float acc[8][TILE] = {{0}};
    int32_t k = 0;
    for (; k + 8 <= len; k += 8) {
        for (int l = 0; l < 8; l++) {
            for (int w = 0; w < TILE; w++) { acc[l][w] += x[(size_t)(k + l) * step + (size_t)w]; }
        }
    }
    for (int l = 0; k + l < len; l++) {
        for (int w = 0; w < TILE; w++) { acc[l][w] += x[(size_t)(k + l) * step + (size_t)w]; }
    }
    for (int w = 0; w < TILE; w++) {
        total[w] +=
            ((acc[0][w] + acc[4][w]) + (acc[2][w] + acc[6][w])) + ((acc[1][w] + acc[5][w]) + (acc[3][w] + acc[7][w]));
    }
}

/* Adds a run to the totals of a tile. */
static void sum_run(const float *x, const Tile *t, const Run *r, float *total) {
    for (int32_t left = r->len; left > 0; left -= CHUNK) {
        const int32_t len = left < CHUNK ? left : CHUNK;
        const float *from = x + t->x + r->off + (size_t)(r->len - left) * r->step;
        if (len == 1) {
            for (int w = 0; w < t->w; w++) { total[w] += from[(size_t)w * t->step]; }
        } else if (t->w == TILE && t->step == 1) {
            sum8_tile(from, r->step, len, total);
        } else if (r->step == 1) {
            for (int w = 0; w < t->w; w++) { total[w] += smg_sum8(from + (size_t)w * t->step, len); }
        } else {
            for (int w = 0; w < t->w; w++) { total[w] += sum8_strided(from + (size_t)w * t->step, r->step, len); }
        }
    }
}

/* The best of a run for each output of a tile. NaN, once met, stays. */
#define EXTREME(name, BETTER)                                                             \
    static void name##_run(const float *x, const Tile *t, const Run *r, float *best) {    \
        const float *from = x + t->x + r->off;                                            \
        if (t->w == TILE && t->step == 1) {                                               \
            for (int32_t k = 0; k < r->len; k++) {                                        \
                for (int w = 0; w < TILE; w++) {                                          \
                    const float v = from[(size_t)k * r->step + (size_t)w];                \
                    best[w] = ((v BETTER best[w]) | (v != v)) ? v : best[w];              \
                }                                                                         \
            }                                                                             \
            return;                                                                       \
        }                                                                                 \
        for (int w = 0; w < t->w; w++) {                                                  \
            const float v = smg_line_##name(from + (size_t)w * t->step, r->step, r->len); \
            best[w] = ((v BETTER best[w]) | (v != v)) ? v : best[w];                      \
        }                                                                                 \
    }
EXTREME(max, >)
EXTREME(min, <)

static int reduce_need(const int32_t *p, int params, uint64_t *need) {
    uint64_t in, out;
    if (groups_need(p, params, 1, 0, &in, &out)) { return -1; }
    need[0] = smg_mul(out, 4);
    need[1] = smg_mul(in, 4);
    return 0;
}
#define REDUCE(name, start, add_run, FINISH)                                                     \
    EXTENT(name) { return reduce_need(p, params, need); }                                        \
    KERNEL(name, "oi", -1) {                                                                     \
        const Groups g = groups_of(c->p);                                                        \
        const float count = (float)(double)(int64_t)smg_product(g.rd, g.reduced);                \
        EACH_TILE(g, t) {                                                                        \
            float total[TILE];                                                                   \
            for (int w = 0; w < TILE; w++) { total[w] = start; }                                 \
            EACH_RUN(g, r) { add_run(IN(1), &t, &r, total); }                                    \
            for (int w = 0; w < t.w; w++) { OUT(0)[t.y + (size_t)w] = FINISH(total[w], count); } \
        }                                                                                        \
        return SMG_NO_FAULT;                                                                     \
    }
#define TOTAL(x, count)   ((void)(count), (x))
#define AVERAGE(x, count) ((x) / (count))
REDUCE(sum_f32, 0.0f, sum_run, TOTAL)
REDUCE(mean_f32, 0.0f, sum_run, AVERAGE)
REDUCE(amax_f32, smg_from_bits(0xff800000u), max_run, TOTAL)
REDUCE(amin_f32, smg_from_bits(0x7f800000u), min_run, TOTAL)

/* dx = dy / ties where x = y. Operands dx, dy, x, y; p as above. A tile of x is read whole before dx is written. */
EXTENT(amax_dx_f32) {
    uint64_t in, out;
    if (groups_need(p, params, 1, 0, &in, &out) || in > INT32_MAX) { return -1; /* ties are counted in int32 */ }
    need[0] = need[2] = smg_mul(in, 4);
    need[1] = need[3] = smg_mul(out, 4);
    return 0;
}
KERNEL(amax_dx_f32, "oiii", -1) {
    const Groups g = groups_of(c->p);
    float *dx = OUT(0);
    const float *dy = IN(1), *x = IN(2), *y = IN(3);
    EACH_TILE(g, t) {
        int32_t ties[TILE] = {0};
        EACH_RUN(g, r) {
            for (int32_t k = 0; k < r.len; k++) {
                for (int w = 0; w < t.w; w++) {
                    ties[w] += x[t.x + r.off + (size_t)k * r.step + (size_t)w * t.step] == y[t.y + (size_t)w];
                }
            }
        }
        float best[TILE], share[TILE];
        for (int w = 0; w < t.w; w++) {
            best[w] = y[t.y + (size_t)w];
            share[w] = dy[t.y + (size_t)w] / (float)ties[w];
        }
        EACH_RUN(g, r) {
            for (int32_t k = 0; k < r.len; k++) {
                for (int w = 0; w < t.w; w++) {
                    const size_t i = t.x + r.off + (size_t)k * r.step + (size_t)w * t.step;
                    dx[i] = x[i] == best[w] ? share[w] : 0.0f;
                }
            }
        }
    }
    return SMG_NO_FAULT;
}

/* Over samples as well, one sample after the other: p: samples, stride of a sample, then as above with four groups
 * each. */
enum { BATCH_GROUPS = 4 };
typedef struct {
    int32_t samples, stride;
} BatchHead;
typedef struct {
    BatchHead batch;
    GroupsHead groups;
    int32_t kept[2][BATCH_GROUPS], reduced[2][BATCH_GROUPS]; /* dims, strides */
} Batch;
UNPACK(batch_of, Batch)
UNPACK(batch_head_of, BatchHead)

static int batch_need(const int32_t *p, uint64_t *in, uint64_t *out) {
    const Batch v = batch_of(p);
    if (v.batch.samples < 0 || v.batch.stride < 0) { return -1; }
    if (v.groups.kept != BATCH_GROUPS || v.groups.reduced != BATCH_GROUPS) { return -1; }
    return groups_need(p + PARAMS(BatchHead), PARAMS(Batch) - PARAMS(BatchHead), (uint64_t)v.batch.samples,
                       (uint64_t)v.batch.stride, in, out);
}
static void batch_tile(BatchHead v, const Groups *g, const Tile *t, const float *x, float *total) {
    const uint64_t each = smg_product(g->rd, g->reduced);
    if (each == 0) { return; /* any number of samples of nothing */ }
    for (int32_t s = 0; s < v.samples; s++) {
        const float *from = x + (size_t)s * (size_t)v.stride;
        float sample[TILE] = {0};
        if (each == 1) {
            for (int w = 0; w < t->w; w++) { total[w] += from[t->x + (size_t)w * t->step]; }
            continue;
        }
        EACH_RUN(*g, r) { sum_run(from, t, &r, sample); }
        for (int w = 0; w < t->w; w++) { total[w] += sample[w]; }
    }
}

/* Operands dw, dy. */
static int batch_sum_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    uint64_t in;
    if (batch_need(p, &in, elements)) { return -1; }
    own[0] = smg_mul(in, 4);
    return 0;
}
static SmgFault batch_sum(const SmgCall *c, const Sink *sink) {
    const Groups g = groups_of(c->p + PARAMS(BatchHead));
    EACH_TILE(g, t) {
        float total[TILE];
        smg_sink_begin(sink, total, t.y, (size_t)t.w);
        batch_tile(batch_head_of(c->p), &g, &t, SINK_IN(sink, 0), total);
        smg_sink_end(sink, total, t.y, (size_t)t.w);
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(batch_sum, 1, "i", PARAMS(Batch), "")

/* Divides by the count of the whole batch, so that the means of micro-batches add up. */
EXTENT(batch_mean_f32) {
    uint64_t in, out;
    if (batch_need(p, &in, &out)) { return -1; }
    need[0] = smg_mul(out, 4);
    need[1] = smg_mul(in, 4);
    return 0;
}
KERNEL(batch_mean_f32, "oi", PARAMS(Batch)) {
    const Groups g = groups_of(c->p + PARAMS(BatchHead));
    const float count = (float)((double)(int64_t)smg_product(g.rd, g.reduced) * (double)c->run.total);
    EACH_TILE(g, t) {
        float total[TILE] = {0};
        batch_tile(batch_head_of(c->p), &g, &t, IN(1), total);
        for (int w = 0; w < t.w; w++) { OUT(0)[t.y + (size_t)w] = total[w] / count; }
    }
    return SMG_NO_FAULT;
}

/* Both go on with the sums of the micro-batches before. Operands y, sums so far, x. */
static int running_need(const int32_t *p, uint64_t *need) {
    uint64_t in, out;
    if (batch_need(p, &in, &out)) { return -1; }
    need[0] = need[1] = smg_mul(out, 4);
    need[2] = smg_mul(in, 4);
    return 0;
}
static void running(const SmgCall *c, const Groups *g, float count) {
    EACH_TILE(*g, t) {
        float *total = OUT(1) + t.y;
        float tile[TILE];
        memcpy(tile, total, (size_t)t.w * sizeof(float));
        batch_tile(batch_head_of(c->p), g, &t, IN(2), tile);
        memcpy(total, tile, (size_t)t.w * sizeof(float));
        for (int w = 0; w < t.w; w++) { OUT(0)[t.y + (size_t)w] = tile[w] / count; }
    }
}
EXTENT(batch_sum_running_f32) { return running_need(p, need); }
KERNEL(batch_sum_running_f32, "oui", PARAMS(Batch)) {
    const Groups g = groups_of(c->p + PARAMS(BatchHead));
    running(c, &g, 1.0f);
    return SMG_NO_FAULT;
}
EXTENT(batch_mean_running_f32) { return running_need(p, need); }
KERNEL(batch_mean_running_f32, "oui", PARAMS(Batch)) {
    const Groups g = groups_of(c->p + PARAMS(BatchHead));
    running(c, &g, (float)((double)(int64_t)smg_product(g.rd, g.reduced) * (double)c->run.total));
    return SMG_NO_FAULT;
}

/* dx = dy / count, dy repeated; dx is dense. p: count per sample, rank, then dims[rank], dy_strides[rank]. */
typedef struct {
    int32_t count, rank;
} MeanDx;
UNPACK(mean_dx_of, MeanDx)

static int mean_dx_need(const int32_t *p, int params, uint64_t *need) {
    if (params < PARAMS(MeanDx)) { return -1; }
    const MeanDx v = mean_dx_of(p);
    if (v.count < 1 || v.rank < 0 || v.rank > SMG_MAX_RANK || params != PARAMS(MeanDx) + 2 * v.rank) { return -1; }
    const int32_t *dims = p + PARAMS(MeanDx);
    const uint64_t total = smg_product(dims, v.rank);
    if (total == SMG_TOO_MUCH) { return -1; }
    need[0] = smg_mul(total, 4);
    need[1] = smg_mul(smg_span(dims, dims + v.rank, v.rank), 4);
    return 0;
}
static SmgFault mean_dx(const SmgCall *c, float count) {
    const int32_t rank = mean_dx_of(c->p).rank, *dims = c->p + PARAMS(MeanDx), *steps = dims + rank;
    if (smg_product(dims, rank) == 0) { return SMG_NO_FAULT; }
    float *dx = OUT(0);
    int32_t at[SMG_MAX_RANK] = {0};
    size_t off = 0;
    const int32_t len = last_dim(dims, rank);
    const size_t step = rank ? (size_t)steps[rank - 1] : 0;
    do {
        const float *dy = IN(1) + off;
        if (step == 0) {
            const float same = dy[0] / count;
            for (int32_t i = 0; i < len; i++) { dx[i] = same; }
        } else {
            for (int32_t i = 0; i < len; i++) { dx[i] = dy[(size_t)i * step] / count; }
        }
        dx += len;
    } while (smg_walk_next(at, dims, rank - 1, steps, rank, &off, 1));
    return SMG_NO_FAULT;
}

EXTENT(mean_dx_f32) { return mean_dx_need(p, params, need); }
KERNEL(mean_dx_f32, "oi", -1) { return mean_dx(c, (float)mean_dx_of(c->p).count); }

EXTENT(batch_mean_dx_f32) { return mean_dx_need(p, params, need); }
KERNEL(batch_mean_dx_f32, "oi", -1) {
    return mean_dx(c, (float)((double)mean_dx_of(c->p).count * (double)c->run.total));
}
