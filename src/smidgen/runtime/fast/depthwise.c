/* Depthwise convolution and its input gradient: both gather, tap by tap, eight or four neighbouring pixels at a time.
 * The gradient at stride 2 is four gathers at stride 1, one for each kind of pixel, with some of the taps each.
 *
 *   column[0] [1] [2] [3] ...          x: pointers to the pixels under a block of windows, one row of taps
 *     |        |   |   |
 *     w0 ----- w1- w2                  packed taps [tap][channel]: KW vectors of a row, in registers
 *     acc[0]   w0- w1- w2              acc[p]: pixel p of the block, in registers; every pixel of x is loaded
 *              acc[1]  ...             once for all windows that it lies under
 *
 * Loops, from outside in:
 *   c       runs of channels whose packed taps fit PACKED floats       first cache: 24 KB
 *   lines   of the grid; threads take lines
 *   pixels  blocks of 8 (one vector), 4 (two vectors) or 1 (four vectors)
 *   lanes   vectors of channels                                        registers: 8 sums, KW taps
 *   rows    of the kernel, then columns of the image under them */
#include "depthwise.h"

/* One block of pixels, all channels of a run. columns: [rows][(pixels - 1) * S + KW] pointers. */
typedef struct {
    const float *column[MOST_ROWS * COLUMNS];
    const float *w[MOST_ROWS]; /* first tap of each row */
    ptrdiff_t w_tap, out_step;
    const float *start; /* bias or zeros */
    float *out;
    int rows, channels;
} Block;

INLINE void lanes(int KW, int S, int pixels, int vectors, const Block *t, int c) {
    const int width = (pixels - 1) * S + KW;
    vf acc[8];
    UNROLL for (int v = 0; v < vectors; v++) {
        const vf start = vload(t->start + c + v * VL);
        UNROLL for (int p = 0; p < pixels; p++) { acc[v * pixels + p] = start; }
    }
    const float *const *column = t->column;
    for (int r = 0; r < t->rows; r++, column += width) {
        UNROLL for (int v = 0; v < vectors; v++) {
            vf w[7];
            UNROLL for (int k = 0; k < KW; k++) { w[k] = vload(t->w[r] + k * t->w_tap + c + v * VL); }
            UNROLL for (int q = 0; q < width; q++) {
                const vf x = vload(column[q] + c + v * VL);
                UNROLL for (int p = 0; p < pixels; p++) {
                    if (q - p * S >= 0 && q - p * S < KW) { acc[v * pixels + p] += x * w[q - p * S]; }
                }
            }
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        UNROLL for (int p = 0; p < pixels; p++) { vstore(t->out + p * t->out_step + c + v * VL, acc[v * pixels + p]); }
    }
}

/* The last vectors overlap those before where fewer lanes are left, and compute the same again. */
INLINE void block(int KW, int S, int pixels, int vectors, const Block *t) {
    if (vectors > 1 && t->channels >= vectors * VL) {
        for (int c = 0; c < t->channels; c += vectors * VL) {
            lanes(KW, S, pixels, vectors, t, c <= t->channels - vectors * VL ? c : t->channels - vectors * VL);
        }
    } else {
        for (int c = 0; c < t->channels; c += VL) {
            lanes(KW, S, pixels, 1, t, c <= t->channels - VL ? c : t->channels - VL);
        }
    }
}

typedef void (*BlockFn)(const Block *t);
#define BLOCKS(KW, S)                                                       \
    static void eight_##KW##_##S(const Block *t) { block(KW, S, 8, 1, t); } \
    static void four_##KW##_##S(const Block *t) { block(KW, S, 4, 2, t); }  \
    static void one_##KW##_##S(const Block *t) { block(KW, S, 1, 4, t); }
BLOCKS(1, 1)
BLOCKS(2, 1)
BLOCKS(3, 1)
BLOCKS(4, 1)
BLOCKS(5, 1)
BLOCKS(7, 1)
BLOCKS(3, 2)
BLOCKS(5, 2)
BLOCKS(7, 2)
#define ENTRY(KW, S) {eight_##KW##_##S, four_##KW##_##S, one_##KW##_##S}
static const BlockFn blocks[2][8][3] = {
    {[1] = ENTRY(1, 1), [2] = ENTRY(2, 1), [3] = ENTRY(3, 1), [4] = ENTRY(4, 1), [5] = ENTRY(5, 1), [7] = ENTRY(7, 1)},
    {[3] = ENTRY(3, 2), [5] = ENTRY(5, 2), [7] = ENTRY(7, 2)},
};

/* A gather over one grid of positions; x and y start at channel 0. */
typedef struct {
    const SmgWork *work;
    Grid g;
    const Weights *w;
    const float *x, *bias;
    float *y;
    ptrdiff_t filter, lines;
    int32_t channels, KW, most, parts;
    const BlockFn *fn; /* NULL: any other kernel */
} Job;

typedef struct {
    float taps[PACKED], zero[MOST_CHANNELS];
    Block block;
} DepthwiseWorkspace;
_Static_assert(sizeof(DepthwiseWorkspace) <= SMG_WORK_BYTES, "the thread's memory is too small");

/* One pixel, any kernel, `vectors` vectors of lanes: x and w point at the first tap inside the image. */
INLINE void any_lanes(int vectors, float *out, const float *start, const float *x, const float *w, int32_t rows,
                      int32_t taps, ptrdiff_t x_row, ptrdiff_t x_tap, ptrdiff_t w_row, ptrdiff_t w_tap) {
    vf acc[4];
    UNROLL for (int v = 0; v < vectors; v++) { acc[v] = vload(start + v * VL); }
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < taps; j++) {
            const float *a = x + i * x_row + j * x_tap, *b = w + i * w_row + j * w_tap;
            UNROLL for (int v = 0; v < vectors; v++) { acc[v] += vload(a + v * VL) * vload(b + v * VL); }
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) { vstore(out + v * VL, acc[v]); }
}

/* A line of the grid; taps lo..hi of the kernel's rows lie inside the image, and x is their first line. */
static void any_line(const Job *job, const float *start, float *y, const float *x, const float *w, int channels,
                     int32_t lo, int32_t hi, ptrdiff_t w_row, ptrdiff_t w_tap) {
    const Axis *across = &job->g.w;
    const ptrdiff_t x_row = job->g.h.tap_step * job->g.line, x_tap = across->tap_step * job->g.pixel;
    for (int32_t p = 0; p < across->count; p++) {
        float *out = y + p * (across->out_step * job->g.out_pixel);
        const int32_t from = p * across->step + across->from;
        int32_t l = 0, r = 0;
        if (across->taps) { conv_clip(from, across->taps, across->tap_step, across->size, &l, &r); }
        const int inside = l < r && lo < hi;
        const float *a = inside ? x + from * job->g.pixel + l * x_tap : start, *b = inside ? w + l * w_tap : start;
        int c = 0;
        for (; c + 4 * VL <= channels; c += 4 * VL) {
            any_lanes(4, out + c, start + c, a + c, b + c, inside ? hi - lo : 0, r - l, x_row, x_tap, w_row, w_tap);
        }
        for (; c < channels; c += VL) {
            if (c > channels - VL) { c = channels - VL; }
            any_lanes(1, out + c, start + c, a + c, b + c, inside ? hi - lo : 0, r - l, x_row, x_tap, w_row, w_tap);
        }
    }
}

/* Pixels of the blocks of a line, and which of a kernel's three functions does them. */
INLINE int32_t block_pixels(int32_t count) {
    if (count >= 8) { return 8; }
    return count >= 4 ? 4 : 1;
}
INLINE int block_kind(int32_t pixels) {
    if (pixels == 8) { return 0; }
    return pixels == 4 ? 1 : 2;
}

/* The same with a loop for this kernel: blocks of 8, 4 or 1 pixels, of which the last may overlap the one before. */
static void line_of_blocks(const Job *job, DepthwiseWorkspace *room, float *y, const float *x, int32_t lo, int32_t hi) {
    const Axis *across = &job->g.w;
    Block *t = &room->block;
    const ptrdiff_t step = across->out_step * job->g.out_pixel;
    const int32_t pixels = block_pixels(across->count);
    const BlockFn fn = job->fn[block_kind(pixels)];
    const int width = (int)((pixels - 1) * across->step + across->taps);
    t->rows = hi - lo;
    t->out_step = step;
    for (int32_t next = 0; next < across->count; next += pixels) {
        const int32_t p = least32(next, across->count - pixels);
        for (int32_t i = 0; i < hi - lo; i++) {
            columns(t->column + i * width, width, x + i * (job->g.h.tap_step * job->g.line),
                    p * across->step + across->from, 1, across->size, job->g.pixel, room->zero);
        }
        t->out = y + p * step;
        fn(t);
    }
}

static void part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    const Grid *g = &job->g;
    DepthwiseWorkspace *room = (DepthwiseWorkspace *)smg_work_of(job->work, thread);
    Block *t = &room->block;
    const ptrdiff_t first = job->lines * i / job->parts, last = job->lines * (i + 1) / job->parts;
    memset(room->zero, 0, sizeof room->zero);
    if (first == last) { return; }
    for (int32_t c = 0, count; c < job->channels; c += count) {
        count = lanes_from(&c, job->channels, job->most);
        const ptrdiff_t pitch = (count + VL - 1) / VL * VL, w_row = g->h.stride * job->KW * pitch;
        if (job->w->f) {
            const float *w = job->w->f + c * job->filter;
            SMG_LOCAL(pack)(room->taps, (int)pitch, w, 1, job->filter, (int32_t)job->filter, count);
        } else {
            SMG_LOCAL(pack_outputs)(room->taps, (int)pitch, job->w, c, count, 0, (int32_t)job->filter);
        }
        const float *taps = room->taps + (g->h.first * job->KW + g->w.first) * pitch;
        const float *start = job->bias ? job->bias + c : room->zero;
        t->start = start;
        t->channels = count;
        t->w_tap = g->w.stride * pitch;
        for (ptrdiff_t l = first; l < last; l++) {
            const ptrdiff_t n = l / g->h.count;
            const int32_t h = (int32_t)(l % g->h.count), from = h * g->h.step + g->h.from;
            int32_t lo = 0, hi = 0;
            if (g->h.taps) { conv_clip(from, g->h.taps, g->h.tap_step, g->h.size, &lo, &hi); }
            if (hi < lo) { hi = lo = 0; }
            const float *x = lo < hi ? job->x + n * g->image + (from + lo * g->h.tap_step) * g->line + c : NULL;
            float *y = job->y + n * g->out_image + (g->h.out_from + h * g->h.out_step) * g->out_line +
                       g->w.out_from * g->out_pixel + c;
            if (job->fn) {
                for (int32_t k = lo; k < hi; k++) { t->w[k - lo] = taps + k * w_row; }
                line_of_blocks(job, room, y, x, lo, hi);
            } else {
                any_line(job, start, y, x, taps + lo * w_row, count, lo, hi, w_row, t->w_tap);
            }
        }
    }
}

/* Few channels, several filters a channel, or a huge kernel: one output after the other. Channels from..to, whose
 * filters are `filters`. */
static void plain(const Job *job, int32_t M, const float *filters, int32_t from, int32_t to) {
    const Grid *g = &job->g;
    const int forward = g->out_pixel >= g->pixel;
    for (ptrdiff_t l = 0; l < job->lines; l++) {
        for (int32_t p = 0; p < g->w.count; p++) {
            const ptrdiff_t n = l / g->h.count;
            const int32_t h = (int32_t)(l % g->h.count), h0 = h * g->h.step + g->h.from;
            const int32_t w0 = p * g->w.step + g->w.from;
            float *y = job->y + n * g->out_image + (g->h.out_from + h * g->h.out_step) * g->out_line +
                       (g->w.out_from + p * g->w.out_step) * g->out_pixel;
            const int32_t outs = forward ? M : 1;
            for (int32_t o = from * outs; o < to * outs; o++) { y[o] = job->bias ? job->bias[o] : 0.0f; }
            for (int32_t i = 0; i < g->h.taps; i++) {
                for (int32_t j = 0; j < g->w.taps; j++) {
                    const int32_t a = h0 + i * g->h.tap_step, b = w0 + j * g->w.tap_step;
                    if (a < 0 || a >= g->h.size || b < 0 || b >= g->w.size) { continue; }
                    const float *x = job->x + n * g->image + a * g->line + b * g->pixel;
                    const float *w = filters + (g->h.first + i * g->h.stride) * job->KW + g->w.first + j * g->w.stride;
                    for (int32_t c = from; c < to; c++) {
                        for (int32_t m = 0; m < M; m++, w += job->filter) {
                            const ptrdiff_t o = (ptrdiff_t)c * M + m;
                            if (forward) {
                                y[o] += x[c] * *w;
                            } else {
                                y[c] += x[o] * *w;
                            }
                        }
                    }
                }
            }
        }
    }
}

/* The same with filters that have to be made, of as many channels as the thread's memory has room for. */
static void plain_stored(const Job *job, int32_t M) {
    float *filters = (float *)smg_work_of(job->work, 0);
    const ptrdiff_t each = M * job->filter, fit = (ptrdiff_t)(job->work->each / sizeof(float)) / each;
    const int32_t most = (int32_t)least(fit, job->channels);
    for (int32_t c = 0, to; c < job->channels; c = to) {
        to = least32(job->channels - c, most) + c;
        job->w->stored->read(job->w, filters, job->filter, 1, (ptrdiff_t)c * M, (ptrdiff_t)(to - c) * M, 0,
                             job->filter);
        plain(job, M, filters, c, to);
    }
}

static void gather(Job *job, int32_t M) {
    const Axis *w = &job->g.w;
    job->lines *= job->g.h.count;
    job->most = M == 1 ? lanes_at_a_time(job->channels, job->filter) : 0;
    const int fits = w->tap_step == 1 && w->step <= 2 && w->taps <= 7 && job->g.h.taps <= MOST_ROWS;
    job->fn = fits && blocks[w->step - 1][w->taps][0] ? blocks[w->step - 1][w->taps] : NULL;
    const int64_t macs = (int64_t)job->lines * w->count * job->channels * w->taps * job->g.h.taps;
    job->parts = macs < SMG_ALONE_THIN ? 1 : job->work->threads;
    if (job->most) {
        smg_parallel(job->work, part, job, job->parts);
    } else if (job->w->f) {
        plain(job, M, job->w->f, 0, job->channels);
    } else {
        plain_stored(job, M);
    }
}

void SMG_LOCAL(depthwise)(const SmgWork *work, const Conv *v, float *y, const float *x, const Weights *w,
                          const float *b) {
    Job job = {
        .work = work,
        .x = x,
        .w = w,
        .bias = b,
        .y = y,
        .channels = v->C,
        .KW = v->KW,
        .lines = v->N,
        .filter = (ptrdiff_t)v->KH * v->KW,
        .g = SMG_LOCAL(conv_grid)(v),
    };
    gather(&job, v->O / v->C);
}

/* Taps in the order of the outputs that they meet. */
static Axis ascending(Axis a) {
    if (!a.taps) { return a; }
    a.from += (a.taps - 1) * a.tap_step;
    a.first += (a.taps - 1) * a.stride;
    a.tap_step = -a.tap_step;
    a.stride = -a.stride;
    return a;
}

void SMG_LOCAL(depthwise_dx)(const SmgWork *work, const Conv *v, float *dx, const float *dy, const Weights *w,
                             const float *b) {
    for (int32_t h = 0; h < v->SH && h < v->H; h++) {
        for (int32_t u = 0; u < v->SW && u < v->W; u++) {
            Job job = {
                .work = work,
                .x = dy,
                .w = w,
                .bias = b,
                .y = dx,
                .channels = v->C,
                .KW = v->KW,
                .lines = v->N,
                .filter = (ptrdiff_t)v->KH * v->KW,
                .g =
                    {
                        .h = ascending(SMG_LOCAL(phase_of)(h, v->H, v->OH, v->PT, v->KH, v->SH, v->DH)),
                        .w = ascending(SMG_LOCAL(phase_of)(u, v->W, v->OW, v->PL, v->KW, v->SW, v->DW)),
                        .pixel = v->O,
                        .line = (ptrdiff_t)v->OW * v->O,
                        .image = (ptrdiff_t)v->OH * v->OW * v->O,
                        .out_pixel = v->C,
                        .out_line = (ptrdiff_t)v->W * v->C,
                        .out_image = (ptrdiff_t)v->H * v->W * v->C,
                    },
            };
            gather(&job, v->O / v->C);
        }
    }
}
