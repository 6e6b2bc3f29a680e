/* Products of matrices, C[M][N] = A[M][K] B[K][N] (+ bias[N]), where A may be gathered from an image. product.c draws
 * how they are blocked. The micro-kernel (micro.c) holds a tile of C in registers: it reads elements of A in place,
 * one by one, and rows of B as vectors. B is packed into panels of NR columns in the thread's memory, piece by piece,
 * unless few rows of A are to use it. */
#ifndef SMG_GEMM_H
#define SMG_GEMM_H
#include "../kernels/weights.h"
#include "fast.h"
#include "vector.h"

/* Rows of a tile that is two, or one, vectors wide: as many as the registers allow. Two vectors by ROWS2 sums, two
 * vectors of B and an element of A: 15 of the 16 registers of AVX2, 11 of those of SSE2 (which has no fused
 * multiply-add and needs more for products), 19 of the 32 of AVX-512 and NEON. */
#if VL == 8
#define ROWS2 6
#define ROWS1 8
#elif defined(__SSE2__) && VL == 4
#define ROWS2 4
#define ROWS1 8
#else
#define ROWS2 8
#define ROWS1 8
#endif
#define NR         (2 * VL)
#define BLOCK_ROWS (VL > 8 ? 32 : 48) /* rows of A that pass a packed panel while it is in the first cache */
#define SEGMENTS   16                 /* runs of A, one for each tap, in one piece of the sum */
#define CACHE_LINE 16                 /* floats */

static inline ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline int32_t least32(int32_t a, int32_t b) { return a < b ? a : b; }

/* One tile: out[i][column + j] = start[j] + sum over segments s and k < run of rows[s * pitch + i][k * step] * b[k'][j]
 * where k' counts through all segments; plus what out[i] holds if `add`. */
typedef struct {
    const float *const *rows;
    ptrdiff_t pitch, step;
    int32_t segments, run;
    const float *b;
    ptrdiff_t ldb;
    float *const *out;
    ptrdiff_t column;
    int width, add; /* width: valid columns; b and start can be read to the end of the vector all the same */
    const float *start;
} MicroTile;
typedef void (*Micro)(const MicroTile *t);
/* micro[vectors - 1][rows - 1] */
extern const Micro SMG_LOCAL(micro)[2][8];

/* to[k * pitch + j] = from[k * b_k + j * b_n], zero for n <= j < pitch. One of b_k and b_n is 1. */
void SMG_LOCAL(pack)(float *to, int pitch, const float *from, ptrdiff_t b_k, ptrdiff_t b_n, int32_t k, int n);

/* The same of weights that are stored otherwise than whole and in f32: columns are outputs o.., rows are numbers at..
 * of each; or rows are outputs and columns are numbers. */
void SMG_LOCAL(pack_outputs)(float *to, int pitch, const Weights *w, ptrdiff_t o, int n, ptrdiff_t at, int32_t k);
void SMG_LOCAL(pack_inputs)(float *to, int pitch, const Weights *w, ptrdiff_t o, int32_t k, ptrdiff_t at, int n);

/* Along one axis, position p of C and tap t of the kernel meet source coordinate p * step + from + t * tap_step, and
 * weight tap first + t * stride; the position's own coordinate is out_from + p * out_step. */
typedef struct {
    int32_t count, size, step, from, taps, tap_step, first, stride, out_from, out_step;
} Axis;
/* The gradient of an axis of a convolution: input coordinates phase, phase + stride, … meet the same taps. */
Axis SMG_LOCAL(phase_of)(int32_t phase, int32_t in, int32_t out, int32_t pad, int32_t taps, int32_t stride,
                         int32_t dilation);
/* Rows of C are the positions of `images` grids; K runs over taps and `depth` channels of the source's pixels. */
typedef struct {
    Axis h, w;
    ptrdiff_t pixel, line, image;             /* of the source, in floats */
    ptrdiff_t out_pixel, out_line, out_image; /* of C */
    ptrdiff_t tap, tap_line;                  /* of the weights B */
    int whole_rows; /* a row of taps is one run of memory; where it sticks out of the image it is copied */
} Grid;

typedef struct {
    ptrdiff_t M;
    int32_t N, depth;
    const float *a;
    ptrdiff_t a_row, a_step; /* element (m, k) at m * a_row + k * a_step; with a grid only the step within a run */
    const float *b;
    ptrdiff_t b_k, b_n;    /* one of them is 1 */
    const Weights *stored; /* if b is NULL: B is made of weights from output `o` on, one a column if b_k is 1 */
    ptrdiff_t o;
    float *c;
    ptrdiff_t c_row;
    const float *bias;
    const Grid *grid; /* NULL: plain matrices */
} Product;
void SMG_LOCAL(product)(const SmgWork *work, const Product *p);

/* B is the weights from output o on, of `length` numbers each. */
static inline void product_weights(Product *p, const Weights *w, ptrdiff_t o, ptrdiff_t length) {
    p->b = w->f ? w->f + o * length : NULL;
    p->stored = w;
    p->o = o;
}

/* Where rows m.. of A and C are: table[s * BLOCK_ROWS + i] for taps t.., out[i]. Returns the number of rows, at most
 * `count`: fewer if `side`, for copies of windows that stick out, is full. */
int SMG_LOCAL(gather)(const Product *p, const float **table, float **out, ptrdiff_t m, int count, int32_t t,
                      int32_t segments, int32_t depth0, const float *zero, float *side, int32_t side_floats);

/* The pixels that positions m..m+count meet at one tap, or `zero` outside the image. */
void SMG_LOCAL(tap_rows)(const Grid *g, const float *image, const float **table, ptrdiff_t m, int count, int32_t th,
                         int32_t tw, const float *zero);

/* Few rows: dot products (b_k = 1), or a sum of rows of B (b_n = 1). Columns from..to. */
#define THIN_DOT 3
void SMG_LOCAL(thin_dot)(const Product *p, int32_t from, int32_t to);
void SMG_LOCAL(thin_sum)(const Product *p, int32_t from, int32_t to);
#endif
