/* Blocks of parameters that the exact kernels and the fast ones of the same names both read: each order of fields is
 * written down here and in the op's record (`params`), nowhere else. */
#ifndef SMG_PARAMS_H
#define SMG_PARAMS_H
#include "../kernel.h"

/* N elements, then as many of the constants a, b as the kernel has. */
typedef struct {
    int32_t N;
} Map;
typedef struct {
    Map map;
    float a;
} MapA;
typedef struct {
    Map map;
    float a, b;
} MapAB;
UNPACK(map_of, Map)
UNPACK(map_a_of, MapA)
UNPACK(map_ab_of, MapAB)

/* Bits lie in rows of whole bytes, least significant bit first; unused bits of a row's last byte are 0. */
typedef struct {
    int32_t rows, per_row;
} BitRows;
typedef struct {
    BitRows shape;
    float lo, hi;
    int32_t closed; /* the bounds count */
} RangeBits;
typedef struct {
    BitRows shape;
    float inside, outside; /* factors of dy */
} BitsDx;
UNPACK(range_bits_of, RangeBits)
UNPACK(bits_dx_of, BitsDx)

/* [outer][L][inner]; the elements of a line are `inner` apart. */
typedef struct {
    int32_t outer, L, inner;
} Lines;
UNPACK(lines_of, Lines)

/* A tensor [A][B][P][C] whose samples lie along B: row ((a*B + b)*P + p) of C channels belongs to sample b. */
typedef struct {
    int32_t A, B, P, C;
} Rows;
/* What the gradient of gamma reads. */
typedef struct {
    Rows rows;
    float eps;
} RowsNorm;
UNPACK(rows_norm_of, RowsNorm)

/* A matrix x[R][C], normalised with eps. */
typedef struct {
    int32_t R, C;
} Matrix;
typedef struct {
    Matrix matrix;
    float eps;
} Affine;
UNPACK(matrix_of, Matrix)
UNPACK(affine_of, Affine)

/* R rows of K inputs and O outputs: x[R][K], w[O][K], b[O], y[R][O] */
typedef struct {
    int32_t R, O, K;
} Linear;
UNPACK(linear_of, Linear)

/* y = a b for B pairs: y[B][M][N], a[B][M][K], or [B][K][M] if ta; b[B][K][N], or [B][N][K] if tb */
typedef struct {
    int32_t B, M, K, N, ta, tb;
} Matmul;
UNPACK(matmul_of, Matmul)

/* Rows of N samples along the middle of three axes: row r of sample n under outer index a is (a * N + n) * R + r. */
typedef struct {
    int32_t A, N, R;
} Samples;
/* dw[O][K] = sum over rows of dy[row][O] x[row][K] */
typedef struct {
    Samples rows;
    int32_t O, K;
} LinearDw;
UNPACK(linear_dw_of, LinearDw)
/* db[C] = sum over rows of dy[row][C] */
typedef struct {
    Samples rows;
    int32_t C;
} BiasDw;
UNPACK(bias_dw_of, BiasDw)
/* A gradient's tile of the weight w[of_o][of_k], of which O and K are sizes. */
typedef struct {
    Linear own;
    int32_t at_o, of_o, at_k, of_k;
} LinearDxTile;
UNPACK(linear_dx_tile_of, LinearDxTile)
/* The same for some rows of one sample, `width` positions each: row `first` of `count` is the first (going.h). */
typedef struct {
    int32_t rows, width, O, K, count, above, first;
} LinearDwRows;
UNPACK(linear_dw_rows_of, LinearDwRows)
typedef struct {
    int32_t rows, width, C, count, above, first;
} BiasDwRows;
UNPACK(bias_dw_rows_of, BiasDwRows)
#endif
