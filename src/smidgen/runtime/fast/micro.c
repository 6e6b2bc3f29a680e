/* The micro-kernels: a tile of C in registers, and the packing of B. All tiles add in the same order: k by k within a
 * piece of the sum, then the pieces, which keeps the error of long sums small. */
#include "gemm.h"

/* Tiles that stick out of C pass through memory. */
APART void end_part(vf *acc, int rows, int vectors, const Tile2 *t) {
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
INLINE void end(vf *acc, int rows, int vectors, const Tile2 *t) {
    if (UNLIKELY(t->width != vectors * VL)) {
        vf copy[16];
        UNROLL for (int i = 0; i < rows * vectors; i++) copy[i] = acc[i];
        end_part(copy, rows, vectors, t);
        return;
    }
    float *out[8];
    UNROLL for (int i = 0; i < rows; i++) out[i] = t->out[i] + t->column;
    if (t->add) {
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i * vectors + j] +=
            vload(out[i] + j * VL);
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
        vstore(out[i] + j * VL, acc[i * vectors + j]);
}

INLINE void tile(int rows, int vectors, const Tile2 *t) {
    vf acc[16];
    UNROLL for (int j = 0; j < vectors; j++) {
        const vf start = vload(t->start + j * VL);
        UNROLL for (int i = 0; i < rows; i++) acc[i * vectors + j] = start;
    }
    const float *b = t->b;
    const ptrdiff_t ldb = t->ldb, step = t->step;
    const float *const *table = t->rows;
    for (int32_t s = 0; s < t->segments; s++, table += t->pitch) {
        const float *a[8];
        UNROLL for (int i = 0; i < rows; i++) a[i] = table[i];
        ptrdiff_t at = 0;
        for (int32_t k = t->run; k > 0; k--) {
            vf row[2];
            UNROLL for (int j = 0; j < vectors; j++) row[j] = vload(b + j * VL);
            UNROLL for (int i = 0; i < rows; i++) {
                const float x = a[i][at];
                UNROLL for (int j = 0; j < vectors; j++) acc[i * vectors + j] += row[j] * x;
            }
            b += ldb, at += step;
            __asm__("" : "+r"(at)); /* one index for all rows, not a pointer each */
        }
    }
    end(acc, rows, vectors, t);
}

#if VL == 16
/* A tile of few columns, one vector wide: in half vectors, which take half the time. The same sums. */
INLINE void half_tile(int rows, const Tile2 *t) {
    v8 acc[8];
    const v8 start = *(const v8_any *)t->start;
    UNROLL for (int i = 0; i < rows; i++) acc[i] = start;
    const float *b = t->b;
    const ptrdiff_t ldb = t->ldb, step = t->step;
    const float *const *table = t->rows;
    for (int32_t s = 0; s < t->segments; s++, table += t->pitch) {
        const float *a[8];
        UNROLL for (int i = 0; i < rows; i++) a[i] = table[i];
        ptrdiff_t at = 0;
        for (int32_t k = t->run; k > 0; k--) {
            const v8 row = *(const v8_any *)b;
            UNROLL for (int i = 0; i < rows; i++) acc[i] += row * a[i][at];
            b += ldb, at += step;
            __asm__("" : "+r"(at));
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        float *p = t->out[i] + t->column;
        const vf sum = __builtin_shufflevector(acc[i], acc[i], 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        vstore_part(p, t->add ? sum + vload_part(p, t->width) : sum, t->width);
    }
}
#else
INLINE void half_tile(int rows, const Tile2 *t) { (void)rows, (void)t; }
#endif

#define TILE(rows, vectors)                                                     \
    static void tile_##rows##_##vectors(const Tile2 *t) {                       \
        if (VL == 16 && vectors == 1 && t->width <= VL / 2) half_tile(rows, t); \
        else tile(rows, vectors, t);                                            \
    }
TILE(1, 1)
TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1) TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2)
#if ROWS2 >= 6
    TILE(5, 2) TILE(6, 2)
#endif
#if ROWS2 >= 8
        TILE(7, 2) TILE(8, 2)
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
            vstore(to, a), vstore(to + VL, b);
        }
        return;
    }
    for (int32_t i = 0; i < k; i++, to += pitch, from += b_k) {
        int j = 0;
        for (; j + VL <= n; j += VL) { vstore(to + j, vload(from + j)); }
        if (j < n) { vstore(to + j, vload_part(from + j, n - j)), j += VL; }
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
            UNROLL for (int q = 0; q < 4; q++) * (vturned_any *)(to + (ptrdiff_t)(i + q) * pitch + j) = out[q];
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
