/* Rows of a table by their numbers, and the gradient of the table. */
#include "samples.h"
#include "sink.h"
#include "sum.h"

/* R rows of a table of V rows of D numbers: y[R][D], w[V][D], index[R] */
typedef struct {
    int32_t R, V, D;
} Embedding;
UNPACK(embedding_of, Embedding)

EXTENT(embedding_f32) {
    const Embedding v = embedding_of(p);
    if (!batch_ok(v.R) || !size_ok(v.V) || !size_ok(v.D)) { return -1; }
    need[0] = floats(v.R, v.D, 1);
    need[1] = floats(v.V, v.D, 1);
    need[2] = floats(v.R, 1, 1);
    return 0;
}
KERNEL(embedding_f32, "oii", PARAMS(Embedding)) {
    const Embedding g = embedding_of(c->p);
    float *y = OUT(0);
    const float *w = IN(1);
    const int32_t *index = IN_AS(int32_t, 2), R = g.R, V = g.V, D = g.D;
    for (int32_t r = 0; r < R; r++) {
        if (index[r] < 0 || index[r] >= V) { return SMG_FAULT_EMBEDDING_INDEX; }
        memcpy(y + (ptrdiff_t)r * D, w + (ptrdiff_t)index[r] * D, (size_t)D * sizeof(float));
    }
    return SMG_NO_FAULT;
}

/* dw[V][D] = sum of the rows of dy[row][D] whose index[row] is v */
typedef struct {
    Samples rows;
    int32_t V, D;
} EmbeddingDw;
UNPACK(embedding_dw_of, EmbeddingDw)

static int embedding_dw_need(const int32_t *p, uint64_t *own, uint64_t *elements) {
    const EmbeddingDw g = embedding_dw_of(p);
    if (!samples_ok(g.rows) || !size_ok(g.V) || !size_ok(g.D)) { return -1; }
    own[0] = rows_bytes(g.rows, g.D);
    own[1] = rows_bytes(g.rows, 1);
    *elements = smg_mul((uint64_t)g.V, (uint64_t)g.D);
    return 0;
}
static SmgFault embedding_dw(const SmgCall *c, const Sink *sink) {
    const float *dy = SINK_IN(sink, 0);
    const EmbeddingDw g = embedding_dw_of(c->p);
    const int32_t *index = SINK_IN_AS(int32_t, sink, 1);
    const int32_t A = g.rows.A, N = g.rows.N, R = g.rows.R, V = g.V, D = g.D;
    const size_t rows = (size_t)A * (size_t)N * (size_t)R;
    for (size_t i = 0; i < rows; i++) { /* before the first row is updated */
        if (index[i] < 0 || index[i] >= V) { return SMG_FAULT_EMBEDDING_INDEX; }
    }
    float tile[32], sample[32] = {0};
    for (int32_t v = 0; v < V; v++) {
        int hits = 0; /* most rows of a large table do not occur */
        for (size_t i = 0; i < rows; i++) { hits |= index[i] == v; }
        for (int32_t d = 0; d < D; d += 32) {
            const int32_t width = D - d < 32 ? D - d : 32;
            const size_t at = (size_t)v * (size_t)D + (size_t)d;
            smg_sink_begin(sink, tile, at, (size_t)width);
            for (int32_t n = 0; n < N && hits; n++) {
                for (int32_t a = 0; a < A; a++) {
                    const ptrdiff_t first = first_row(N, R, a, n);
                    for (int32_t r = 0; r < R; r++) {
                        if (index[first + r] != v) { continue; }
                        const float *row = dy + (first + r) * D + d;
                        for (int l = 0; l < width; l++) { sample[l] += row[l]; }
                    }
                }
                smg_flush(tile, sample, width);
            }
            smg_sink_end(sink, tile, at, (size_t)width);
        }
    }
    return SMG_NO_FAULT;
}
SINK_KERNELS(embedding_dw, 2, "ii", PARAMS(EmbeddingDw), "")
