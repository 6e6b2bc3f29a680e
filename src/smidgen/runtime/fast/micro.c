/* The micro-kernels: a tile of C in registers, and the packing of B. All tiles add in the same order: k by k within a
 * piece of the sum, then the pieces, which keeps the error of long sums small.
 *
 *                     row k of B, packed: NR floats
 *                     +------- VL ------+------- VL ------+
 *                     |     row[0]      |     row[1]      |     vectors
 *                     +-----------------+-----------------+
 *   a[0][k] --- x --> |     acc[0][0]   |     acc[0][1]   |     out[0] + column
 *   a[1][k] --- x --> |     acc[1][0]   |     acc[1][1]   |     out[1] + column
 *     ...             |        ...      |        ...      |     rows: up to ROWS2, or ROWS1 of one vector
 *                     +-----------------+-----------------+
 *
 * A is read element by element through pointers to its rows, which lie anywhere in memory (gather.c), so a
 * convolution needs no copy of its windows. With taps, the sum runs through `segments` tables of such pointers, and
 * through B on. */
#include "gemm.h"

/* Tiles that stick out of C pass through memory. */
APART void end_part(vf *acc, int rows, int vectors, const MicroTile *t) {
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            const int left = t->width - j * VL;
            float *p = t->out[i] + t->column + j * VL;
            vf sum = acc[i * vectors + j];
            if (left >= VL) {
                if (t->add) { sum += vload(p); }
                vstore(p, sum);
            } else if (left > 0) {
                if (t->add) { sum += vload_part(p, left); }
                vstore_part(p, sum, left);
            }
        }
    }
}

/* Where a tile goes when its sum, or a piece of it, is complete: the place for activations. */
INLINE void end(vf *acc, int rows, int vectors, const MicroTile *t) {
    if (UNLIKELY(t->width != vectors * VL)) {
        vf copy[16];
        UNROLL for (int i = 0; i < rows * vectors; i++) { copy[i] = acc[i]; }
        end_part(copy, rows, vectors, t);
        return;
    }
    float *out[8];
    UNROLL for (int i = 0; i < rows; i++) { out[i] = t->out[i] + t->column; }
    if (t->add) {
        UNROLL for (int i = 0; i < rows; i++) {
            UNROLL for (int j = 0; j < vectors; j++) { acc[i * vectors + j] += vload(out[i] + j * VL); }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < vectors; j++) { vstore(out[i] + j * VL, acc[i * vectors + j]); }
    }
}

/* The sum of a tile, in vectors V of L lanes. acc[rows][vectors]: sums, which the compiler keeps in registers because
 * all indices are known after inlining; each row of B is loaded once and meets one element of every row of A. */
#define DEFINE_SUM(name, V, L)                                                                       \
    INLINE void name(V *acc, int rows, int vectors, const MicroTile *t) {                            \
        UNROLL for (int j = 0; j < vectors; j++) {                                                   \
            const V start = *(const V##_any *)(t->start + j * L);                                    \
            UNROLL for (int i = 0; i < rows; i++) { acc[i * vectors + j] = start; }                  \
        }                                                                                            \
        const float *b = t->b;                                                                       \
        const ptrdiff_t ldb = t->ldb, step = t->step;                                                \
        const float *const *table = t->rows;                                                         \
        for (int32_t s = 0; s < t->segments; s++, table += t->pitch) {                               \
            const float *a[8];                                                                       \
            UNROLL for (int i = 0; i < rows; i++) { a[i] = table[i]; }                               \
            ptrdiff_t at = 0;                                                                        \
            for (int32_t k = t->run; k > 0; k--) {                                                   \
                V row[2];                                                                            \
                UNROLL for (int j = 0; j < vectors; j++) { row[j] = *(const V##_any *)(b + j * L); } \
                UNROLL for (int i = 0; i < rows; i++) {                                              \
                    const float x = a[i][at];                                                        \
                    UNROLL for (int j = 0; j < vectors; j++) { acc[i * vectors + j] += row[j] * x; } \
                }                                                                                    \
                b += ldb;                                                                            \
                at += step;                                                                          \
                __asm__("" : "+r"(at)); /* one index for all rows, not a pointer each */             \
            }                                                                                        \
        }                                                                                            \
    }
DEFINE_SUM(sum_whole, vf, VL)

INLINE void tile(int rows, int vectors, const MicroTile *t) {
    vf acc[16];
    sum_whole(acc, rows, vectors, t);
    end(acc, rows, vectors, t);
}

#if VL == 16
DEFINE_SUM(sum_half, v8, 8)

/* A tile of at most half a vector's columns: half vectors take half the time. The sums are the same. */
INLINE void half_tile(int rows, const MicroTile *t) {
    v8 acc[8];
    sum_half(acc, rows, 1, t);
    UNROLL for (int i = 0; i < rows; i++) {
        float *p = t->out[i] + t->column;
        const vf sum = __builtin_shufflevector(acc[i], acc[i], 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        vstore_part(p, t->add ? sum + vload_part(p, t->width) : sum, t->width);
    }
}
#else
INLINE void half_tile(int rows, const MicroTile *t) { /* never called */
    (void)rows;
    (void)t;
}
#endif

/* One function for each size, so that every loop over rows and vectors is unrolled. */
#define TILE(rows, vectors)                                   \
    static void tile_##rows##_##vectors(const MicroTile *t) { \
        if (VL == 16 && vectors == 1 && t->width <= VL / 2) { \
            half_tile(rows, t);                               \
        } else {                                              \
            tile(rows, vectors, t);                           \
        }                                                     \
    }
TILE(1, 1)
TILE(2, 1)
TILE(3, 1)
TILE(4, 1)
TILE(5, 1)
TILE(6, 1)
TILE(7, 1)
TILE(8, 1)
TILE(1, 2)
TILE(2, 2)
TILE(3, 2)
TILE(4, 2)
#if ROWS2 >= 6
TILE(5, 2)
TILE(6, 2)
#endif
#if ROWS2 >= 8
TILE(7, 2)
TILE(8, 2)
#endif

const Micro SMG_LOCAL(micro)[2][8] = {
    {tile_1_1, tile_2_1, tile_3_1, tile_4_1, tile_5_1, tile_6_1, tile_7_1, tile_8_1},
    {
        tile_1_2,
        tile_2_2,
        tile_3_2,
        tile_4_2,
#if ROWS2 >= 6
        tile_5_2,
        tile_6_2,
#endif
#if ROWS2 >= 8
        tile_7_2,
        tile_8_2,
#endif
    },
};

/* Columns of `from` lie side by side. */
static void pack_rows(float *to, int pitch, const float *from, ptrdiff_t b_k, int32_t k, int n) {
    if (n == NR && pitch == NR) {
        for (int32_t i = 0; i < k; i++, to += NR, from += b_k) {
            const vf a = vload(from), b = vload(from + VL);
            vstore(to, a);
            vstore(to + VL, b);
        }
        return;
    }
    for (int32_t i = 0; i < k; i++, to += pitch, from += b_k) {
        int j = 0;
        for (; j + VL <= n; j += VL) { vstore(to + j, vload(from + j)); }
        if (j < n) {
            vstore(to + j, vload_part(from + j, n - j));
            j += VL;
        }
        for (; j < pitch; j += VL) { vstore(to + j, vzero()); }
    }
}

/* Rows of `from` become columns. */
static void pack_turned(float *to, int pitch, const float *from, ptrdiff_t b_n, int32_t k, int n) {
    int j = 0;
    for (; j + TURN <= n; j += TURN, from += TURN * b_n) {
        int32_t i = 0;
        for (; i + 4 <= k; i += 4) {
            vturned out[4];
            vturn(out, from + i, b_n);
            UNROLL for (int q = 0; q < 4; q++) {
                vturned_any *row = (vturned_any *)(to + (ptrdiff_t)(i + q) * pitch + j);
                *row = out[q];
            }
        }
        for (; i < k; i++) {
            for (int l = 0; l < TURN; l++) { to[(ptrdiff_t)i * pitch + j + l] = from[l * b_n + i]; }
        }
    }
    for (; j < n; j++, from += b_n) {
        for (int32_t i = 0; i < k; i++) { to[(ptrdiff_t)i * pitch + j] = from[i]; }
    }
    for (; j < pitch; j++) {
        for (int32_t i = 0; i < k; i++) { to[(ptrdiff_t)i * pitch + j] = 0.0f; }
    }
}

void SMG_LOCAL(pack)(float *to, int pitch, const float *from, ptrdiff_t b_k, ptrdiff_t b_n, int32_t k, int n) {
    if (b_n == 1) {
        pack_rows(to, pitch, from, b_k, k, n);
    } else {
        pack_turned(to, pitch, from, b_n, k, n);
    }
}
