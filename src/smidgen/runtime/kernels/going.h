/* Sums over the rows of one sample that go on from call to call (runtime/rows.h): a stream hands over a few rows at a
 * time, each once and in order. `sum` is the result, `part` what has not moved there yet, in the same order of
 * elements; the first call finds anything in both. The bits are those of one call with all rows. */
#ifndef SMG_GOING_H
#define SMG_GOING_H
#include "sum.h"
#include "tile.h"

typedef struct {
    float *sum, *part;
    int is_first, is_last; /* call */
} Going;

/* `rows` rows of a sum, the first of which is row `first` of `count`. */
static inline Going going_of(float *sum, float *part, int32_t first, int32_t rows, int32_t count) {
    return (Going){sum, part, first == 0, rows >= count - first};
}

/* Positions in `part`, if it moved on whenever there were SMG_BLOCK of them. */
static inline int32_t going_pending(int32_t first, int32_t width) {
    return (int32_t)((int64_t)first * width % SMG_BLOCK);
}

/* `count` elements at `at`. */
static inline void going_begin(const Going *g, float *sum, float *part, size_t at, size_t count) {
    if (g->is_first) {
        memset(sum, 0, count * sizeof(float));
        memset(part, 0, count * sizeof(float));
    } else {
        memcpy(sum, g->sum + at, count * sizeof(float));
        memcpy(part, g->part + at, count * sizeof(float));
    }
}
static inline void going_end(const Going *g, const float *sum, const float *part, size_t at, size_t count) {
    memcpy(g->sum + at, sum, count * sizeof(float));
    memcpy(g->part + at, part, count * sizeof(float));
}

/* A tile whose rows are `step` elements apart. */
static inline void tile_go_on(Tile *t, const Going *g, size_t at, size_t step, int32_t pending) {
    tile_sample_begin(t);
    for (int i = 0; i < t->rows; i++) {
        going_begin(g, t->sample + 8 * i, t->part + 8 * i, at + (size_t)i * step, (size_t)t->columns);
    }
    t->pending = pending;
}
static inline void tile_stop(Tile *t, const Going *g, size_t at, size_t step) {
    if (g->is_last && t->pending) { smg_flush(t->sample, t->part, 32); }
    for (int i = t->old_rows, j = t->old_columns; i < t->rows; i++) {
        going_end(g, t->sample + 8 * i + j, t->part + 8 * i + j, at + (size_t)i * step + (size_t)j,
                  (size_t)(t->columns - j));
    }
}
#endif
