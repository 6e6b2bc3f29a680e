/* Products of matrices, block by block. The sum over K is cut into pieces that depend on the shape alone; a thread
 * takes some rows and columns of C, so that every element is summed in the same order whoever does it.
 *
 *                                columns
 *                          +----+----+----+----+
 *                          |    | NR | NR |    | piece        B[K][N]: a piece by `columns` of it is packed, as panels
 *                          +----+----+----+----+              of NR columns: [panel][k][NR]
 *                          |         B         | K
 *                          +-------------------+
 *         piece                      N
 *       +-------+------+   +----+----+----+----+
 *       | ROWS2 |      |   |    |tile|    |    | BLOCK_ROWS   C[M][N]; tile: ROWS2 by NR of it, in registers
 *       | ROWS2 |      |   |    |    |    |    |
 *       +-------+------+   +----+----+----+----+
 *       |      A       | M |         C         | M
 *       +--------------+   +-------------------+
 *              K                                              A[M][K]: read in place, through a table of pointers to
 *                                                             its rows (gather.c); never packed
 *
 * Loops, from outside in (by_pieces), and where lives what the loops within use again and again:
 *   n       `columns` of C: as many as their packed pieces have room for
 *   piece   of at most K_PIECE terms; B[piece][columns] is packed      second cache: 64 KB, or 256 KB (SMG_WIDE)
 *   m       blocks of BLOCK_ROWS rows of A and C                       second cache: BLOCK_ROWS * K_PIECE floats, 60 KB
 *   j       panels of NR columns                                       first cache: K_PIECE * NR floats, AVX2 20 KB
 *   i       strips of ROWS2 rows of A, ROWS1 beside a narrow panel     first cache: ROWS2 * K_PIECE floats, 8 KB
 *   k       the micro-kernel (micro.c)                                 registers: the tile of C, a row of B
 * Where a sum has several pieces and all of them fit packed for enough columns, `piece` is the loop within m (by_rows):
 * a block of C is then complete before it leaves the cache.
 *
 * Two other ways: few rows of A use whole panels of B where they are (IN_PLACE_ROWS); and if B would have to be
 * turned for few rows, A is turned in its place: A and B change roles, and tiles of C are turned on their way out
 * (`turned`). */
#include "gemm.h"
#include "threads.h"

#define K_PIECE       320   /* terms of the sum: a panel of B, K_PIECE by NR, and a strip of A share the first cache */
#define PACKED_FLOATS 16384 /* of B, at least: four panels of 256 */
#define SIDE_BY_SIDE  4     /* panels that are packed at once */
#define SIDE_FLOATS   (BLOCK_ROWS * (NR > 20 ? NR : 20)) /* C on its way to be turned, or windows that stick out */
#define IN_PLACE_ROWS 24                                 /* so few rows of A do not repay packing */
#define WHOLE_COLUMNS (2 * NR)                           /* whose packed sum repays to be kept whole, */
#define WHOLE_ROWS    96                                 /* if so many rows use it */
#define B_IN_CACHE    (1 << 16)                          /* floats of B that stay in the second cache */

/* The part of B that is packed next, as rows of memory: with every strip of A some cache lines of it are prefetched, so
 * that they arrive while we multiply. */
typedef struct {
    const float *at; /* the row that is being prefetched */
    ptrdiff_t row;   /* floats from one to the next */
    int32_t rows;    /* left */
    int32_t width;   /* floats of a row */
    int32_t done;    /* floats of this row */
    int32_t each;    /* floats at a time, */
    int32_t times;   /* of so many rows */
} PanelPrefetch;

typedef struct {
    PanelPrefetch prefetch;
    const float *table[SEGMENTS * BLOCK_ROWS]; /* [segment][row]: rows of A */
    float *out[BLOCK_ROWS];                    /* rows of C */
    float side[SIDE_FLOATS], zero[K_PIECE > NR ? K_PIECE : NR], bias[NR];
    _Alignas(64) float b[]; /* packed B, [panel][k][NR]: all that is left of the thread's memory */
} ProductWorkspace;
_Static_assert(sizeof(ProductWorkspace) + PACKED_FLOATS * sizeof(float) <= SMG_WORK_BYTES,
               "the thread's memory is too small");
_Static_assert(BLOCK_ROWS <= K_PIECE, "zeros stand in for the bias of a block");
_Static_assert(K_PIECE <= SIDE_FLOATS, "a window that sticks out does not fit");

/* How the sum is cut, and one piece of it: taps tap.. with channels depth0.. each. */
typedef struct {
    int32_t taps, depth;
} Pieces;
typedef struct {
    int32_t tap, taps, depth0, depth;
} Piece;

static inline int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

static int32_t taps_of(const Product *p) {
    if (!p->grid) { return 1; }
    return p->grid->whole_rows ? p->grid->h.taps : p->grid->h.taps * p->grid->w.taps;
}
static ptrdiff_t tap_offset(const Product *p, int32_t t) {
    const Grid *g = p->grid;
    if (!g) { return 0; }
    if (g->whole_rows) { return t * g->tap_line; }
    const int32_t i = t / g->w.taps, j = t % g->w.taps;
    return (g->h.first + i * g->h.stride) * g->tap_line + (g->w.first + j * g->w.stride) * g->tap;
}

static Pieces pieces_of(const Product *p) {
    const int32_t taps = taps_of(p);
    if (p->depth > K_PIECE) { return (Pieces){1, (ceil_div(p->depth, ceil_div(p->depth, K_PIECE)) + 3) & ~3}; }
    const int32_t most = least(K_PIECE / p->depth, SEGMENTS);
    return (Pieces){ceil_div(taps, ceil_div(taps, most)), p->depth};
}

/* The piece behind the first `done` elements of the sum. */
static Piece piece_at(const Product *p, Pieces cut, int32_t done) {
    const int32_t tap = done / p->depth, depth0 = done % p->depth;
    return (Piece){tap, (int32_t)least(taps_of(p) - tap, cut.taps), depth0,
                   (int32_t)least(p->depth - depth0, cut.depth)};
}

/* Panels side by side, row by row: of rows that are a power of two apart, the lines of one panel would push each other
 * out of the cache before their neighbours are wanted. */
static void pack_panels(float *to, ptrdiff_t panel, const float *from, ptrdiff_t b_k, int32_t k) {
    for (int32_t i = 0; i < k; i++, to += NR, from += b_k) {
        UNROLL for (int j = 0; j < SIDE_BY_SIDE; j++) {
            UNROLL for (int v = 0; v < NR; v += VL) { vstore(to + j * panel + v, vload(from + j * NR + v)); }
        }
    }
}

/* Columns n0..n0 + n of one piece of B, which is stored otherwise than in f32. */
static void pack_stored(const Product *p, float *to, int32_t n0, int32_t n, Piece at) {
    for (int32_t j = 0; j < n; j += NR) {
        const int width = (int)least(n - j, NR), pitch = width > VL ? NR : VL;
        float *panel = to + (ptrdiff_t)j * at.taps * at.depth;
        for (int32_t s = 0; s < at.taps; s++, panel += (ptrdiff_t)at.depth * pitch) {
            const ptrdiff_t tap = tap_offset(p, at.tap + s);
            if (p->b_k == 1) {
                SMG_LOCAL(pack_outputs)(panel, pitch, p->stored, p->o + n0 + j, width, tap + at.depth0, at.depth);
            } else {
                SMG_LOCAL(pack_inputs)(panel, pitch, p->stored, p->o + at.depth0, at.depth, tap + n0 + j, width);
            }
        }
    }
}

/* Columns n0..n0 + n of one piece of B. */
static void pack_piece(const Product *p, float *to, int32_t n0, int32_t n, Piece at) {
    const ptrdiff_t k = (ptrdiff_t)at.taps * at.depth;
    if (!p->b) {
        pack_stored(p, to, n0, n, at);
        return;
    }
    const float *b = p->b + at.depth0 * p->b_k + n0 * p->b_n;
    for (int32_t j = 0, panels; j < n; j += panels * NR) {
        const int width = (int)least(n - j, NR), pitch = width > VL ? NR : VL;
        panels = p->b_n == 1 && n - j >= SIDE_BY_SIDE * NR ? SIDE_BY_SIDE : 1;
        for (int32_t s = 0; s < at.taps; s++) {
            const float *from = b + tap_offset(p, at.tap + s) + j * p->b_n;
            float *panel = to + j * k + (ptrdiff_t)s * at.depth * pitch;
            if (panels > 1) {
                pack_panels(panel, k * NR, from, p->b_k, at.depth);
            } else {
                SMG_LOCAL(pack)(panel, pitch, from, p->b_k, p->b_n, at.depth, width);
            }
        }
    }
}

/* Columns n..n + columns of B, within `strips` calls of prefetch_some. */
static PanelPrefetch next_columns(const Product *p, int32_t n, int32_t columns, ptrdiff_t strips) {
    const int32_t K = taps_of(p) * p->depth;
    PanelPrefetch s = {.rows = 0};
    if (!p->b || columns < 1 || (ptrdiff_t)p->N * K < B_IN_CACHE || (p->grid && p->b_n != K)) { return s; }
    s.at = p->b + n * p->b_n;
    s.row = p->b_n == 1 ? p->b_k : p->b_n;
    s.rows = p->b_n == 1 ? K : columns;
    s.width = p->b_n == 1 ? columns : K;
    const int32_t parts = (int32_t)(strips > s.rows ? strips / s.rows : 1);
    s.each = (ceil_div(s.width, parts) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    s.times = (int32_t)((s.rows + strips - 1) / strips);
    return s;
}
static void prefetch_some(PanelPrefetch *s) {
    for (int32_t i = 0; i < s->times && s->rows; i++) {
        const int32_t end = (int32_t)least(s->done + s->each, s->width);
        for (int32_t k = s->done; k < end; k += CACHE_LINE) { __builtin_prefetch(s->at + k, 0, 2); }
        s->done = end;
        if (end < s->width) { continue; }
        s->done = 0;
        if (--s->rows) { s->at += s->row; }
    }
}

/* All rows of a block against one panel. */
static void panel(MicroTile *t, int vectors, const float *const *rows, float *const *out, int count,
                  PanelPrefetch *prefetch) {
    const int most = vectors == 2 ? ROWS2 : ROWS1;
    for (int strips = (count + most - 1) / most, i = 0; strips > 0; strips--) {
        const int height = (count - i + strips - 1) / strips;
        t->rows = rows + i;
        t->out = out + i;
        for (int r = 0; r < height; r++) { __builtin_prefetch(t->out[r] + t->column, 1); /* comes while we multiply */ }
        prefetch_some(prefetch);
        SMG_LOCAL(micro)[vectors - 1][height - 1](t);
        i += height;
    }
}

/* c[j][i] = from[i][j] + bias[i], or c[j][i] += from[i][j] */
static void turn(float *c, ptrdiff_t row, const float *from, int pitch, int rows, int columns, const float *bias,
                 int add) {
    int i = 0;
    for (; i + TURN <= rows; i += TURN) {
        const vturned start = *(const vturned_any *)(bias + i);
        int j = 0;
        for (; j + 4 <= columns; j += 4) {
            vturned out[4];
            vturn(out, from + i * pitch + j, pitch);
            UNROLL for (int q = 0; q < 4; q++) {
                vturned_any *to = (vturned_any *)(c + (j + q) * row + i);
                *to = out[q] + (add ? (vturned)*to : start);
            }
        }
        for (; j < columns; j++) {
            for (int l = i; l < i + TURN; l++) {
                c[j * row + l] = from[l * pitch + j] + (add ? c[j * row + l] : bias[l]);
            }
        }
    }
    for (; i < rows; i++) {
        for (int j = 0; j < columns; j++) { c[j * row + i] = from[i * pitch + j] + (add ? c[j * row + i] : bias[i]); }
    }
}

typedef struct {
    const Product *p;
    const SmgWork *work;
    int turned;                  /* C is written column by column, and the bias belongs to the rows */
    int32_t by_rows, by_columns; /* threads along each axis */
} Job;

/* Columns n0..n0 + n of rows from..to: one piece of the sum. `packed` is NULL if B is used where it is. */
APART void multiply(const Job *job, ProductWorkspace *r, const float *packed, ptrdiff_t from, ptrdiff_t to, int32_t n0,
                    int32_t n, Piece at) {
    const Product *p = job->p;
    const ptrdiff_t k = (ptrdiff_t)at.taps * at.depth;
    MicroTile t = {.pitch = BLOCK_ROWS,
                   .step = p->a_step,
                   .segments = at.taps,
                   .run = at.depth,
                   .add = (at.tap || at.depth0) && !job->turned};
    int count;
    for (ptrdiff_t m = from; m < to; m += count) {
        count = SMG_LOCAL(gather)(p, r->table, r->out, m, (int)least(to - m, BLOCK_ROWS), at.tap, at.taps, at.depth0,
                                  r->zero, r->side, SIDE_FLOATS);
        for (int32_t j = 0; j < n; j += NR) {
            const int width = (int)least(n - j, NR), vectors = width > VL ? 2 : 1;
            t.b = packed ? packed + j * k : p->b + at.depth0 * p->b_k + tap_offset(p, at.tap) + n0 + j;
            t.ldb = packed ? vectors * VL : p->b_k;
            t.width = width;
            t.column = n0 + j;
            t.start = r->zero;
            if (job->turned) {
                for (int i = 0; i < count; i++) { r->out[i] = r->side + i * vectors * VL; }
                t.column = 0;
                t.width = vectors * VL;
            } else if (t.add || !p->bias) { /* starts from zero */
            } else if (width == vectors * VL) {
                t.start = p->bias + n0 + j;
            } else {
                memcpy(r->bias, p->bias + n0 + j, (size_t)width * sizeof(float));
                t.start = r->bias;
            }
            panel(&t, vectors, r->table, r->out, count, &r->prefetch);
            if (job->turned) {
                turn(p->c + (ptrdiff_t)(n0 + j) * p->c_row + m, p->c_row, r->side, vectors * VL, count, width,
                     p->bias ? p->bias + m : r->zero, at.tap || at.depth0);
            }
        }
    }
}

/* Some columns of rows from..to, piece by piece. Few rows do not repay packing: they use whole panels where they are,
 * and only the columns beyond, where a vector would be read behind the end of B, are packed. */
static void by_pieces(const Job *job, ProductWorkspace *r, ptrdiff_t from, ptrdiff_t to, int32_t n0, int32_t n,
                      Pieces cut) {
    const Product *p = job->p;
    const int32_t all = taps_of(p) * p->depth;
    Piece at;
    for (int32_t done = 0; done < all; done += at.taps * at.depth) {
        at = piece_at(p, cut, done);
        const int in_place = p->b && p->b_n == 1 && at.taps == 1 && to - from <= IN_PLACE_ROWS;
        const int32_t whole = in_place ? n / NR * NR : 0;
        if (whole) { multiply(job, r, NULL, from, to, n0, whole, at); }
        if (whole == n) { continue; }
        pack_piece(p, r->b, n0 + whole, n - whole, at);
        multiply(job, r, r->b, from, to, n0 + whole, n - whole, at);
    }
}

/* Some columns of rows from..to, B being packed for all pieces: a block of C stays in the cache till its sum is
 * complete, and A is read row after row. */
static void by_rows(const Job *job, ProductWorkspace *r, ptrdiff_t from, ptrdiff_t to, int32_t n0, int32_t n,
                    Pieces cut) {
    const Product *p = job->p;
    const int32_t all = taps_of(p) * p->depth;
    const ptrdiff_t width = (n + NR - 1) / NR * NR;
    Piece at;
    for (int32_t done = 0; done < all; done += at.taps * at.depth) {
        at = piece_at(p, cut, done);
        pack_piece(p, r->b + done * width, n0, n, at);
    }
    for (ptrdiff_t m = from; m < to; m += BLOCK_ROWS) {
        for (int32_t done = 0; done < all; done += at.taps * at.depth) {
            at = piece_at(p, cut, done);
            multiply(job, r, r->b + done * width, m, least(to, m + BLOCK_ROWS), n0, n, at);
        }
    }
}

static void part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const Product *p = job->p;
    ProductWorkspace *r = (ProductWorkspace *)smg_work_of(job->work, thread);
    const ptrdiff_t row = i / job->by_columns, column = i % job->by_columns;
    const ptrdiff_t unit = (p->N + NR - 1) / NR >= job->by_columns ? NR : VL, units = (p->N + unit - 1) / unit;
    const ptrdiff_t from = p->M * row / job->by_rows, to = p->M * (row + 1) / job->by_rows;
    const int32_t begin = (int32_t)(units * column / job->by_columns * unit);
    const int32_t end = (int32_t)least(units * (column + 1) / job->by_columns * unit, p->N);
    const Pieces cut = pieces_of(p);
    const ptrdiff_t room = (ptrdiff_t)((job->work->each - sizeof(ProductWorkspace)) / sizeof(float));
    const ptrdiff_t whole = room / ((ptrdiff_t)taps_of(p) * p->depth) / NR * NR;
    const int long_sum = cut.taps < taps_of(p) || cut.depth < p->depth;
    const int at_once = long_sum && !job->turned && whole >= WHOLE_COLUMNS && to - from >= WHOLE_ROWS;
    const int32_t columns = (int32_t)(at_once ? least(whole, p->N + NR) : room / (cut.taps * cut.depth) / NR * NR);
    if (from >= to) { return; }
    memset(r->zero, 0, sizeof r->zero);
    memset(r->bias, 0, sizeof r->bias);
    const ptrdiff_t pieces = ceil_div(taps_of(p), cut.taps) * ceil_div(p->depth, cut.depth);
    const ptrdiff_t strips = (to - from + ROWS2 - 1) / ROWS2 * ceil_div(columns, NR) * pieces;
    for (int32_t n = begin; n < end; n += columns) {
        r->prefetch = next_columns(p, n + columns, (int32_t)least(end - n - columns, columns), strips);
        (at_once ? by_rows : by_pieces)(job, r, from, to, n, (int32_t)least(end - n, columns), cut);
    }
}

static void thin(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const Product *p = job->p;
    const ptrdiff_t units = (p->N + NR - 1) / NR;
    const int32_t from = (int32_t)(units * i / job->by_columns * NR);
    const int32_t to = (int32_t)least(units * (i + 1) / job->by_columns * NR, p->N);
    (void)thread;
    if (from >= to) { return; }
    if (p->b_k == 1) {
        SMG_LOCAL(thin_dot)(p, from, to);
    } else {
        SMG_LOCAL(thin_sum)(p, from, to);
    }
}

/* For few rows it is cheaper to turn A than B: then B's rows are read in place, and C is turned on its way out.
 * Costs in cycles per element of the sum and column: turning about a quarter, and a product 1/16 for each row. */
static int better_turned(const Product *p) {
    if (!p->b || p->grid || p->b_k != 1 || p->b_n == 1 || p->a_step != 1 || p->M > 64) { return 0; }
    const int64_t M = p->M, N = p->N, K = p->depth;
    const int64_t straight = N * K * 4 + N * K * M, turned = M * K * 4 + N * K * ((M + VL - 1) / VL * VL) + 8 * M * N;
    return turned < straight;
}

/* No tap meets these positions, or K is 0. */
APART void blank(const Product *p) {
    const float *table[BLOCK_ROWS];
    float *out[BLOCK_ROWS];
    int count;
    for (ptrdiff_t m = 0; m < p->M; m += count) {
        count = SMG_LOCAL(gather)(p, table, out, m, (int)least(p->M - m, BLOCK_ROWS), 0, 0, 0, NULL, NULL, 0);
        for (int i = 0; i < count; i++) {
            for (int32_t j = 0; j < p->N; j++) { out[i][j] = p->bias ? p->bias[j] : 0.0f; }
        }
    }
}

void SMG_LOCAL(product)(const SmgWork *work, const Product *p) {
    if (p->M < 1 || p->N < 1) { return; }
    const int64_t per_element = (int64_t)taps_of(p) * p->depth;
    if (per_element < 1) {
        blank(p);
        return;
    }
    const int threads = p->M * p->N * per_element < SMG_ALONE ? 1 : work->threads;
    Job job = {.p = p, .work = work, .by_rows = 1, .by_columns = threads};
    Product swapped = *p;
    const int few =
        p->b && !p->grid && ((p->b_k == 1 && p->a_step == 1 && p->M <= THIN_DOT) || (p->b_n == 1 && p->M == 1));
    if (few) {
        smg_parallel(work, thin, &job, threads);
        return;
    }
    if (better_turned(p)) {
        swapped.M = p->N;
        swapped.N = (int32_t)p->M;
        swapped.a = p->b;
        swapped.a_row = p->b_n;
        swapped.b = p->a;
        swapped.b_k = 1;
        swapped.b_n = p->a_row;
        job.p = &swapped;
        job.turned = 1;
    }
    if (job.p->M >= 48 * (ptrdiff_t)threads || job.p->N < VL * threads) {
        job.by_rows = threads;
        job.by_columns = 1;
    }
    smg_parallel(work, part, &job, threads);
}
