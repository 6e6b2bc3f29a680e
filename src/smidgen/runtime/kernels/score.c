/* Scores of channels (ops/score.py). */
#include "params.h"
#include "rows.h"

CHANNEL_SUMS(sum_products, d[l] * x[l])

UNPACK(rows_of, Rows)

/* s[C], dy and y [A][B][P][C] */
EXTENT(channel_dots_f32) {
    const Rows g = rows_of(p);
    uint64_t rows, all;
    if (rows_need(g, &rows, &all)) { return -1; }
    need[0] = smg_mul((uint64_t)g.C, 4);
    need[1] = need[2] = smg_mul(all, 4);
    return 0;
}
KERNEL(channel_dots_f32, "oii", PARAMS(Rows)) {
    const Rows g = rows_of(c->p);
    for (int32_t c0 = 0; c0 < g.C; c0 += LANES) {
        const int32_t count = lanes_at(c0, g.C);
        float tile[LANES] = {0};
        sum_products(tile, IN(2), IN(1), IN(2), IN(2), g, c0, count);
        memcpy(OUT(0) + c0, tile, (size_t)count * sizeof(float));
    }
    return SMG_NO_FAULT;
}

typedef struct {
    int32_t all, N, at;
    float by;
} Squares;
UNPACK(squares_of, Squares)

/* acc[all], x[N] */
EXTENT(add_squares_f32) {
    const Squares v = squares_of(p);
    if (v.N < 0 || v.at < 0 || v.all < v.N || v.at > v.all - v.N) { return -1; }
    need[0] = smg_mul((uint64_t)v.all, 4);
    need[1] = smg_mul((uint64_t)v.N, 4);
    return 0;
}
KERNEL(add_squares_f32, "ui", PARAMS(Squares)) {
    const Squares v = squares_of(c->p);
    float *acc = OUT(0) + v.at;
    for (int32_t i = 0; i < v.N; i++) { acc[i] += v.by * (IN(1)[i] * IN(1)[i]); }
    return SMG_NO_FAULT;
}
