/* A tile of a weight gradient: four rows of eight columns, summed over positions as outer products. Sums are kept at
 * three levels, so that their error stays small and a batch can be split anywhere between samples:
 *   part     about SMG_BLOCK positions      sample   one sample      tile   all samples, one after the other */
#ifndef SMG_TILE_H
#define SMG_TILE_H
#include "../exact_math.h"
#include "sink.h"
#include "sum.h"

typedef struct {
    float tile[32], sample[32], part[32]; /* row i, column l at 8 * i + l */
    int32_t pending;                      /* positions in `part` */
    int rows, columns;
    int old_rows, old_columns; /* those that an earlier tile, overlapping this one, has ended */
} Tile;

/* The tile's next four rows start at *o of O, its next eight columns at *k of K; where fewer are left, it starts
 * earlier and overlaps the tile before. */
static inline void tile_rows(Tile *t, int32_t *o, int32_t O) {
    const int32_t last = O >= 4 ? O - 4 : 0;
    t->rows = O >= 4 ? 4 : (int)O;
    t->old_rows = *o > last ? (int)(*o - last) : 0;
    *o -= t->old_rows;
}
static inline void tile_columns(Tile *t, int32_t *k, int32_t K) {
    const int32_t last = K >= 8 ? K - 8 : 0;
    t->columns = K >= 8 ? 8 : (int)K;
    t->old_columns = *k > last ? (int)(*k - last) : 0;
    *k -= t->old_columns;
}

/* `at` is the place of the tile's first element in the gradient, `step` the distance between its rows. */
SMG_INLINE void tile_begin(Tile *t, const Sink *sink, size_t at, size_t step) {
    memset(t->tile, 0, sizeof t->tile);
    if (sink->mode != SMG_ACC) { return; /* all others begin with zeros */ }
    for (int i = t->old_rows, j = t->old_columns; i < t->rows; i++) {
        smg_sink_begin(sink, t->tile + 8 * i + j, at + (size_t)i * step + (size_t)j, (size_t)(t->columns - j));
    }
}
SMG_INLINE void tile_end(Tile *t, const Sink *sink, size_t at, size_t step) {
    for (int i = t->old_rows, j = t->old_columns; i < t->rows; i++) {
        smg_sink_end(sink, t->tile + 8 * i + j, at + (size_t)i * step + (size_t)j, (size_t)(t->columns - j));
    }
}

/* All 32 sums. */
SMG_INLINE void tile_flush(float *total, float *part) {
    smg_flush_sixteen(total, part);
    smg_flush_sixteen(total + 16, part + 16);
}
SMG_INLINE void tile_sample_begin(Tile *t) {
    memset(t->sample, 0, sizeof t->sample);
    memset(t->part, 0, sizeof t->part);
    t->pending = 0;
}
SMG_INLINE void tile_sample_end(Tile *t) {
    if (t->pending) { tile_flush(t->sample, t->part); }
    tile_flush(t->tile, t->sample);
}
/* Another `count` positions have been added to `part`. */
SMG_INLINE void tile_count(Tile *t, int32_t count) {
    t->pending += count;
    if (t->pending < SMG_BLOCK) { return; }
    tile_flush(t->sample, t->part);
    t->pending = 0;
}
#endif
