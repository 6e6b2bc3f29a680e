/* Weight gradients dw[O][J] = sum over positions m of dy[m][O] x[m][J], block by block in the thread's memory and then
 * into the sink. Positions are cut into pieces that depend on the shape alone; threads take rows or columns of dw. */
#include "conv.h"
#include "gemm.h"
#include "pool.h"
#include "sink.h"

#define HIGH                (ROWS2 == 6 ? 66 : 64) /* rows of a block */
#define LOW                 (ROWS2 == 6 ? 60 : 56) /* with long pieces */
#define WIDE                96                     /* its columns */
#define LARGE               192   /* both, where there is memory for it: what is packed is used more often */
#define STRIP               ROWS2 /* rows of packed dy that lie side by side */
#define LINE                16    /* floats */
/* Strips are a line further apart, or those of 128 positions would push each other out of the cache. */
#define STRIP_FLOATS(count) ((count) * STRIP + LINE)
#define PIECE               96    /* positions of an image */
#define LONG                128   /* those of plain matrices, if dw has more than HIGH rows */
#define FLAT                12288 /* elements of a block when dy need not be packed: there are few positions */
#define FLAT_WIDE           512
#define FLAT_HIGH           96 /* if x is packed */
#define TALLEST             LARGE
#define FEW                 64        /* positions that need no packing */
#define NEAR                64        /* rows that are so close need no packing, and come by themselves */
#define NEARBY              (1 << 17) /* floats that stay in the second cache */
#define THIN                3         /* so few positions are summed row by row */

/* With packed dy behind it. */
#define BLOCK_FLOATS(high, wide, piece) ((high) * (wide) + (high) / STRIP * STRIP_FLOATS(piece))

typedef struct {
    float b[PIECE * (NR + VL)], zero[NR];      /* windows are packed a vector further apart than matrices */
    const float *rows[TALLEST], *pixel[PIECE]; /* pixel: of positions m.. at one tap */
    float *out[TALLEST];
    ptrdiff_t m, packed_m; /* whose pixels and whose dy are at hand */
    int32_t tap, packed_o;
    _Alignas(64) float flat[]; /* the block */
} Room;
_Static_assert(LONG *NR <= PIECE * (NR + VL), "a piece of a matrix does not fit");
_Static_assert(HIGH % ROWS2 == 0 && LOW % ROWS2 == 0 && LARGE % ROWS2 == 0, "strips must be whole");
_Static_assert(sizeof(Room) + FLAT * sizeof(float) <= SMG_WORK_BYTES, "the thread's memory is too small");
_Static_assert(sizeof(Room) + BLOCK_FLOATS(HIGH, WIDE, PIECE) * sizeof(float) <= SMG_WORK_BYTES, "the same");
_Static_assert(sizeof(Room) + BLOCK_FLOATS(LOW, WIDE, LONG) * sizeof(float) <= SMG_WORK_BYTES, "the same");
_Static_assert(sizeof(Room) + BLOCK_FLOATS(LARGE, LARGE, LONG) * sizeof(float) <= SMG_WIDE_BYTES, "the same");

typedef struct {
    const Gradient *g;
    const Sink *sink;
    const SmgWork *work;
    int by_rows, by_columns;
} Job;

static inline ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline int piece_of(const Gradient *g) { return g->v || g->O <= HIGH ? PIECE : LONG; }

/* `count` runs of `length` floats, at most NR, in whole vectors as long as the line of the image, which ends at `end`,
 * goes on. What is written too much falls on columns that are written later, or on the vector between rows. */
INLINE void copy_runs(float *to, int pitch, const float *from, ptrdiff_t step, const float *end, int length,
                      int count) {
    int k = 0;
    if (length <= VL) {
        for (; k < count && end - from >= VL; k++, to += pitch, from += step) { vstore(to, vload(from)); }
    } else {
        for (; k < count && end - from >= NR; k++, to += pitch, from += step) {
            const vf a = vload(from), b = vload(from + VL);
            vstore(to, a), vstore(to + VL, b);
        }
    }
    for (; k < count; k++, to += pitch, from += step) {
        for (int l = 0; l < length; l += VL) {
            vstore(to + l, length - l < VL ? vload_part(from + l, length - l) : vload(from + l));
        }
    }
}

/* `length` columns of a panel for positions m..m+count: neighbours in a line of the image, the first of which lies
 * `offset` floats after the window's left edge. Later columns of the panel must be written after these. */
static void pack_run(const Gradient *g, float *to, int pitch, int length, ptrdiff_t m, int count, int32_t kh,
                     ptrdiff_t offset) {
    const Conv *v = g->v;
    const ptrdiff_t line = m / v->OW, row = (ptrdiff_t)v->W * v->C, step = (ptrdiff_t)v->SW * v->C;
    ptrdiff_t n = line / v->OH;
    int32_t ow = (int32_t)(m % v->OW), oh = (int32_t)(line % v->OH);
    offset -= (ptrdiff_t)v->PL * v->C;
    for (int left = count, run; left > 0; left -= run, ow = 0) {
        run = (int)least(left, v->OW - ow);
        const int32_t ih = oh * v->SH - v->PT + kh * v->DH;
        const float *x = g->x + (n * v->H + ih) * row;
        const ptrdiff_t at = ow * step + offset, room_x = row - length - at;
        /* positions whose run lies wholly in the line: 0 <= at + k * step <= row - length */
        int lo = at >= 0 ? 0 : (int)least((step - 1 - at) / step, run);
        int hi = room_x < 0 ? 0 : (int)least(room_x / step + 1, run);
        if (ih < 0 || ih >= v->H) { lo = hi = run; }
        if (hi < lo) { hi = lo; }
        for (int k = 0; k < run; k++) {
            float *t = to + (ptrdiff_t)k * pitch;
            if (k == lo && hi > lo) {
                copy_runs(t, pitch, x + at + k * step, step, x + row, length, hi - lo);
                k = hi - 1;
                continue;
            }
            const ptrdiff_t q = at + k * step, left_out = q < 0 ? -q : 0;
            const ptrdiff_t length_in = ih < 0 || ih >= v->H ? 0 : least(row - q, length);
            for (int l = 0; l < length; l += VL) {
                const ptrdiff_t first = left_out > l ? left_out : l, end = least(length_in, l + VL);
                vstore(t + l, first < end ? vload_lanes(x + q + first, (int)(first - l), (int)(end - l)) : vzero());
            }
        }
        to += (ptrdiff_t)run * pitch;
        if (++oh == v->OH) { oh = 0, n++; }
    }
}

/* `length` channels from c on of the pixels under tap (kh, kw); the pixels are looked up once for all channels. */
static void pack_tap(const Gradient *g, Room *r, float *to, int pitch, int length, ptrdiff_t m, int count, int32_t tap,
                     int32_t c) {
    const ptrdiff_t ends = (ptrdiff_t)g->v->C - g->channel - c; /* of a pixel */
    if (r->tap != tap || r->m != m) {
        SMG_LOCAL(tap_rows)(g->grid, g->x + g->channel, r->pixel, m, count, tap / g->v->KW, tap % g->v->KW, NULL);
        r->tap = tap, r->m = m;
    }
    if (length == NR) {
        for (int k = 0; k < count; k++, to += pitch) {
            const float *from = r->pixel[k] ? r->pixel[k] + c : r->zero;
            const vf a = vload(from), b = vload(from + VL);
            vstore(to, a), vstore(to + VL, b);
        }
    } else if (length <= VL && ends >= VL) {
        for (int k = 0; k < count; k++, to += pitch) { vstore(to, vload(r->pixel[k] ? r->pixel[k] + c : r->zero)); }
    } else {
        for (int k = 0; k < count; k++, to += pitch) {
            const float *from = r->pixel[k] ? r->pixel[k] + c : r->zero;
            for (int l = 0; l < length; l++) { to[l] = from[l]; }
        }
    }
}

/* Columns j..j+width of x for positions m..m+count. */
APART void pack_x(const Gradient *g, Room *r, float *to, int pitch, ptrdiff_t m, int count, int32_t j, int width) {
    const Conv *v = g->v;
    if (!v) {
        SMG_LOCAL(pack)(to, pitch, g->x + m * g->x_row + j, g->x_row, 1, count, width);
        return;
    }
    /* With neighbouring taps and one group, a row of the window is one run of memory: worth it for few channels. */
    const int32_t Cg = v->C / v->G, taps = v->DW == 1 && v->G == 1 && v->C < NR ? v->KW : 1, unit = Cg * taps;
    for (int k = 0; k < count && width % VL; k++) { vstore(to + k * pitch + pitch - 2 * VL, vzero()); }
    for (int done = 0; done < width;) {
        const int32_t tap = (j + done) / unit * taps, within = (j + done) % unit;
        const int length = (int)least(width - done, unit - within);
        if (taps == 1) {
            pack_tap(g, r, to + done, pitch, length, m, count, tap, within);
        } else {
            pack_run(g, to + done, pitch, length, m, count, tap / v->KW, within);
        }
        done += length;
    }
}

/* to[strip][k][STRIP] = from[k * row + i], i counting through the strips of a block. What is copied too much lies in the
 * same row of dy, which has `length` floats from here on. */
static void pack_strips(float *to, const float *from, ptrdiff_t row, int count, int high, ptrdiff_t length) {
    for (int k = 0; k < count; k++, to += STRIP, from += row) {
        float *t = to;
        int i = 0;
        for (; i < high && length - i >= STRIP; i += STRIP, t += STRIP_FLOATS(count)) {
            memcpy(t, from + i, STRIP * sizeof(float));
        }
        for (; i < high; i++) { t[i % STRIP] = from[i]; }
    }
}

/* What is wanted soon, asked for a little with every strip, so that it comes while we multiply: rows of the next piece of x
 * and dy, and after the last piece the elements that the gradient goes into. */
typedef struct {
    const float *x, *dy, *into[3];
    ptrdiff_t x_row, dy_row, into_row;
    int rows, wide, high, targets;
} Soon;

INLINE void look_ahead(Soon *s, int i, int height, ptrdiff_t column, int width) {
    if (s->rows > 0) {
        for (int k = 0; k < s->wide; k += LINE) { __builtin_prefetch(s->x + k, 0, 2); }
        for (int k = 0; k < s->high; k += LINE) { __builtin_prefetch(s->dy + k, 0, 2); }
        if (--s->rows) { s->x += s->wide ? s->x_row : 0, s->dy += s->high ? s->dy_row : 0; }
    }
    for (int n = 0; n < s->targets; n++) {
        const float *into = s->into[n] + i * s->into_row + column;
        for (int k = 0; k < height; k++, into += s->into_row) {
            for (int l = 0; l < width; l += LINE) { __builtin_prefetch(into + l, 1, 2); }
        }
    }
}

/* All rows of a block against columns q.. of it, in strips. */
static void panel(Tile2 *t, Room *r, Soon *soon, int width, int high) {
    const int vectors = width > VL ? 2 : 1, most = vectors == 2 ? ROWS2 : ROWS1;
    t->width = vectors * VL;
    for (int strips = (high + most - 1) / most, i = 0; strips > 0; strips--) {
        const int height = (high - i + strips - 1) / strips;
        t->rows = r->rows + i, t->out = r->out + i;
        look_ahead(soon, i, height, t->column, width);
        SMG_LOCAL(micro)[vectors - 1][height - 1](t);
        i += height;
    }
}

/* Rows o..o+high and columns j..j+wide of dw, in r->flat with `pitch` floats a row, at most `tallest` rows. */
APART void block(const Job *job, Room *r, int32_t o, int high, int32_t j, int wide, int pitch, int tallest) {
    const Gradient *g = job->g;
    const Sink *sink = job->sink;
    const size_t first = g->at + (size_t)o * (size_t)g->J + (size_t)j;
    Tile2 t = {.segments = 1, .start = r->zero};
    const int few = g->M <= FEW;
    const int far = g->M * (g->O + g->J) > NEARBY;
    for (int i = 0; i < high; i++) { r->out[i] = r->flat + (ptrdiff_t)i * pitch; }
    const ptrdiff_t most = piece_of(g), pieces = (g->M + most - 1) / most,
                    each = pieces ? (g->M + pieces - 1) / pieces : 0;
    const int into_far = (ptrdiff_t)g->O * g->J > NEARBY / 2;
    for (ptrdiff_t m = 0; m < g->M; m += each) {
        const int count = (int)least(g->M - m, each), more = (int)least(g->M - m - count, each);
        const float *dy = g->dy + m * g->dy_row + o, *x = g->v ? NULL : g->x + m * g->x_row + j;
        Soon soon = {.rows = 0};
        t.run = count, t.add = m > 0, t.step = g->dy_row;
        if (more && far) {
            soon.rows = more, soon.x_row = g->x_row, soon.dy_row = g->dy_row;
            if (!g->v && g->x_row > NEAR) { soon.x = x + each * g->x_row, soon.wide = wide; }
            if (g->dy_row > NEAR) { soon.dy = dy + each * g->dy_row, soon.high = high; }
        } else if (!more && into_far) {
            soon.into_row = g->J;
            soon.into[soon.targets++] = sink->w + first;
            if (sink->m) { soon.into[soon.targets++] = sink->m + first; }
            if (sink->v) { soon.into[soon.targets++] = sink->v + first; }
        }
        if (!few && wide > NR && g->dy_row > NEAR) {
            float *a = r->flat + (ptrdiff_t)tallest * pitch;
            t.step = STRIP;
            if (r->packed_o != o || r->packed_m != m) { pack_strips(a, dy, g->dy_row, count, high, g->O - o); }
            for (int i = 0; i < high; i++) {
                r->rows[i] = a + (ptrdiff_t)(i / STRIP) * STRIP_FLOATS(count) + i % STRIP;
            }
            r->packed_o = o, r->packed_m = m;
        } else {
            for (int i = 0; i < high; i++) { r->rows[i] = dy + i; }
        }
        for (int q = 0; q < wide; q += NR) {
            const int width = (int)least(wide - q, NR), vectors = width > VL ? 2 : 1;
            if (!g->v && width == NR && (few || high <= 2 * ROWS2)) {
                t.b = x + q, t.ldb = g->x_row;
            } else {
                t.b = r->b, t.ldb = (g->v ? vectors + 1 : vectors) * VL;
                pack_x(g, r, r->b, (int)t.ldb, m, count, j + q, width);
            }
            t.column = q;
            panel(&t, r, &soon, width, high);
        }
    }
    for (int i = 0; i < high; i++) { fast_sink(sink, r->out[i], first + (size_t)i * (size_t)g->J, (size_t)wide); }
}

/* One to three positions: row by row of dw, along memory. */
APART void thin(const Job *job, Room *r, int32_t o0, int32_t o1, int32_t j0, int32_t j1) {
    const Gradient *g = job->g;
    const int32_t most = 1024;
    for (int32_t j = j0; j < j1; j += most) {
        const int32_t wide = (int32_t)least(j1 - j, most);
        const float *x0 = g->x + j, *x1 = x0 + (g->M > 1 ? g->x_row : 0), *x2 = x0 + (g->M > 2 ? 2 * g->x_row : 0);
        for (int32_t o = o0; o < o1; o++) {
            const float *dy = g->dy + o, a = dy[0];
            const float b = g->M > 1 ? dy[g->dy_row] : 0.0f, d = g->M > 2 ? dy[2 * g->dy_row] : 0.0f;
            float *restrict sum = r->flat;
            if (g->M == 1) {
                for (int32_t l = 0; l < wide; l++) { sum[l] = a * x0[l]; }
            } else if (g->M == 2) {
                for (int32_t l = 0; l < wide; l++) { sum[l] = a * x0[l] + b * x1[l]; }
            } else {
                for (int32_t l = 0; l < wide; l++) { sum[l] = a * x0[l] + b * x1[l] + d * x2[l]; }
            }
            fast_sink(job->sink, sum, g->at + (size_t)o * (size_t)g->J + (size_t)j, (size_t)wide);
        }
    }
}

static void part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const Gradient *g = job->g;
    Room *r = (Room *)smg_work_of(job->work, thread);
    const ptrdiff_t row = i / job->by_columns, column = i % job->by_columns, units = (g->J + VL - 1) / VL;
    const int32_t o0 = (int32_t)(g->O * row / job->by_rows), o1 = (int32_t)(g->O * (row + 1) / job->by_rows);
    const int32_t j0 = (int32_t)(units * column / job->by_columns * VL);
    const int32_t j1 = (int32_t)least(units * (column + 1) / job->by_columns * VL, g->J);
    if (g->M > 0 && g->M <= THIN && !g->v) {
        thin(job, r, o0, o1, j0, j1);
        return;
    }
    memset(r->zero, 0, sizeof r->zero);
    r->tap = r->packed_o = -1;
    if (!g->M) { memset(r->flat, 0, FLAT * sizeof(float)); }
    const int few = g->M <= FEW, flat_high = g->v ? FLAT_HIGH : FLAT / FLAT_WIDE;
    const int large = job->work->each >= SMG_WIDE_BYTES;
    const int wide = few ? FLAT / flat_high : large ? LARGE : WIDE;
    const int tallest = few ? flat_high : large ? LARGE : piece_of(g) == LONG ? LOW : HIGH;
    /* Blocks of about the same height, in whole strips. */
    const int32_t blocks = (o1 - o0 + tallest - 1) / tallest, each = blocks ? (o1 - o0 + blocks - 1) / blocks : 0;
    const int32_t high = (int32_t)least((each + STRIP - 1) / STRIP * STRIP, tallest);
    for (int32_t o = o0; o < o1; o += high) {
        for (int32_t j = j0; j < j1; j += wide) {
            block(job, r, o, (int)least(o1 - o, high), j, (int)least(j1 - j, wide), wide, tallest);
        }
    }
}

void SMG_LOCAL(gradient)(const SmgWork *work, const Gradient *g, const Sink *sink) {
    const int threads = g->M * g->O * g->J < SMG_ALONE ? 1 : work->threads;
    Job job = {g, sink, work, threads, 1};
    if (g->O < ROWS2 * threads && g->J > g->O) { job.by_rows = 1, job.by_columns = threads; }
    smg_parallel(work, part, &job, threads);
}

static SmgFault linear_dw(const SmgCall *c, const Sink *sink) {
    const int32_t O = P(3), K = P(4);
    const Gradient g = {.M = (ptrdiff_t)P(0) * P(1) * P(2),
                        .O = O,
                        .J = K,
                        .dy = SINK_IN(sink, 0),
                        .x = SINK_IN(sink, 1),
                        .dy_row = O,
                        .x_row = K};
    SMG_LOCAL(gradient)(smg_work(c), &g, sink);
    return SMG_NO_FAULT;
}
FAST_SINK_KERNELS(linear_dw, 2, 5)

static SmgFault conv2d_dw(const SmgCall *c, const Sink *sink) {
    const Conv v = conv_of(c->p);
    const float *dy = SINK_IN(sink, 0), *x = SINK_IN(sink, 1);
    if (conv_is_depthwise(&v)) {
        SMG_LOCAL(depthwise_dw)(smg_work(c), &v, sink, dy, x);
        return SMG_NO_FAULT;
    }
    const int32_t Cg = v.C / v.G, Og = v.O / v.G;
    const Grid grid = SMG_LOCAL(conv_grid)(&v);
    Gradient g = {.v = conv_is_plain(&v) ? NULL : &v,
                  .grid = &grid,
                  .M = (ptrdiff_t)v.N * v.OH * v.OW,
                  .O = Og,
                  .J = v.KH * v.KW * Cg,
                  .x = x,
                  .dy_row = v.O,
                  .x_row = v.C};
    for (int32_t i = 0; i < v.G; i++) {
        g.dy = dy + (ptrdiff_t)i * Og, g.at = (size_t)i * (size_t)Og * (size_t)g.J;
        g.channel = i * Cg;
        if (!g.v) { g.x = x + (ptrdiff_t)i * Cg; }
        SMG_LOCAL(gradient)(smg_work(c), &g, sink);
    }
    return SMG_NO_FAULT;
}
FAST_SINK_KERNELS(conv2d_dw, 2, CONV_PARAMS)
