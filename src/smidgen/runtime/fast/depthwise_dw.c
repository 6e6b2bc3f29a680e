/* The weight gradient of depthwise convolution: sums [tap][channel] in the thread's memory, to which eight, four, two or
 * one neighbouring outputs add at a time. A thread takes some of the channels. */
#include "depthwise.h"
#include "sink.h"

/* One block of outputs of a line, all channels of a run. */
typedef struct {
    const float *column[MOST_ROWS * COLUMNS];
    const float *dy;
    ptrdiff_t dy_step, pitch; /* of the sums, from tap to tap */
    float *sum[MOST_ROWS];    /* first tap of each row */
    int rows, channels;
} Block;

/* Lanes c.. of the run; their sums are at `slot`. */
INLINE void lanes(int KW, int S, int pixels, const Block *t, int c, int slot) {
    const int width = (pixels - 1) * S + KW, twice = KW <= 3 && pixels >= 4; /* two chains of additions for a tap */
    vf d[8];
    UNROLL for (int p = 0; p < pixels; p++) d[p] = vload(t->dy + p * t->dy_step + c);
    const float *const *column = t->column;
    for (int r = 0; r < t->rows; r++, column += width) {
        float *sum = t->sum[r] + slot;
        vf acc[14];
        UNROLL for (int k = 0; k < KW; k++) acc[k] = acc[KW + k] = vzero();
        UNROLL for (int q = 0; q < width; q++) {
            const vf x = vload(column[q] + c);
            UNROLL for (int p = 0; p < pixels; p++) if (q - p * S >= 0 && q - p * S < KW)
                acc[q - p * S + (twice && p % 2 ? KW : 0)] += x * d[p];
        }
        UNROLL for (int k = 0; k < KW; k++) {
            if (twice) { acc[k] += acc[KW + k]; }
            vstore(sum + k * t->pitch, vload(sum + k * t->pitch) + acc[k]);
        }
    }
}

INLINE void block(int KW, int S, int pixels, const Block *t) {
    for (int c = 0; c < t->channels; c += VL) {
        lanes(KW, S, pixels, t, c <= t->channels - VL ? c : t->channels - VL, c);
    }
}

typedef void (*BlockFn)(const Block *t);
#define BLOCKS(KW, S)                                                    \
    static void eight_##KW##_##S(const Block *t) { block(KW, S, 8, t); } \
    static void four_##KW##_##S(const Block *t) { block(KW, S, 4, t); }  \
    static void two_##KW##_##S(const Block *t) { block(KW, S, 2, t); }   \
    static void one_##KW##_##S(const Block *t) { block(KW, S, 1, t); }
BLOCKS(3, 1)
BLOCKS(5, 1) BLOCKS(7, 1) BLOCKS(3, 2) BLOCKS(5, 2) BLOCKS(7, 2)
#define ENTRY(KW, S) {eight_##KW##_##S, four_##KW##_##S, two_##KW##_##S, one_##KW##_##S}
    static const BlockFn blocks[2][8][4] = {
        {[3] = ENTRY(3, 1), [5] = ENTRY(5, 1), [7] = ENTRY(7, 1)},
        {[3] = ENTRY(3, 2), [5] = ENTRY(5, 2), [7] = ENTRY(7, 2)},
};

typedef struct {
    const SmgWork *work;
    const Conv *v;
    const Sink *sink;
    const float *dy, *x;
    int32_t most, parts; /* most: vectors of channels at a time */
    const BlockFn *fn;
} Job;

typedef struct {
    float sum[PACKED], turned[PACKED], zero[MOST_CHANNELS + VL];
    Block block;
} Room;
_Static_assert(sizeof(Room) <= SMG_WORK_BYTES, "the thread's memory is too small");

/* A line of outputs, any kernel, one by one; x is the line of the image under kernel row kh, sum its first tap. */
static void any_line(const Conv *v, const Block *t, float *sum, const float *dy, const float *x) {
    for (int32_t ow = 0; ow < v->OW; ow++, dy += v->C) {
        const int32_t iw = ow * v->SW - v->PL;
        int32_t lo, hi;
        conv_clip(iw, v->KW, v->DW, v->W, &lo, &hi);
        for (int slot = 0; slot < t->channels; slot += VL) {
            const int c = slot <= t->channels - VL ? slot : t->channels - VL;
            const vf d = vload(dy + c);
            for (int32_t k = lo; k < hi; k++) {
                float *s = sum + k * t->pitch + slot;
                vstore(s, vload(s) + d * vload(x + (ptrdiff_t)(iw + k * v->DW) * v->C + c));
            }
        }
    }
}

/* The outputs of one line, in blocks; kernel rows lo..hi lie inside the image. */
static void line(const Job *job, Room *room, const float *dy, const float *x, int32_t ih, int32_t lo, int32_t hi) {
    static const int size[4] = {8, 4, 2, 1};
    const Conv *v = job->v;
    Block *t = &room->block;
    t->rows = hi - lo, t->dy_step = v->C;
    for (int32_t k = lo; k < hi; k++) { t->sum[k - lo] = room->sum + (ptrdiff_t)k * v->KW * t->pitch; }
    for (int32_t ow = 0, kind = 0; ow < v->OW; ow += size[kind]) {
        while (size[kind] > v->OW - ow) { kind++; }
        const int width = (size[kind] - 1) * (int)v->SW + (int)v->KW;
        for (int32_t k = lo; k < hi; k++) {
            columns(t->column + (k - lo) * width, width, x + (ptrdiff_t)(ih + k * v->DH) * v->W * v->C,
                    ow * v->SW - v->PL, 1, v->W, v->C, room->zero);
        }
        t->dy = dy + (ptrdiff_t)ow * v->C;
        job->fn[kind](t);
    }
}

/* Channels c..c+count, at least one vector. */
static void run(const Job *job, Room *room, int32_t c, int32_t count) {
    const Conv *v = job->v;
    Block *t = &room->block;
    const ptrdiff_t filter = (ptrdiff_t)v->KH * v->KW;
    t->channels = count, t->pitch = (count + VL - 1) / VL * VL;
    memset(room->sum, 0, (size_t)(filter * t->pitch) * sizeof(float));
    for (int32_t n = 0; n < v->N; n++) {
        for (int32_t oh = 0; oh < v->OH; oh++) {
            const float *dy = job->dy + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->C + c;
            const float *x = job->x + (ptrdiff_t)n * v->H * v->W * v->C + c;
            const int32_t ih = oh * v->SH - v->PT;
            int32_t lo, hi;
            conv_clip(ih, v->KH, v->DH, v->H, &lo, &hi);
            if (lo >= hi) { continue; }
            if (job->fn) {
                line(job, room, dy, x, ih, lo, hi);
            } else {
                for (int32_t k = lo; k < hi; k++) {
                    any_line(v, t, room->sum + k * v->KW * t->pitch, dy, x + (ptrdiff_t)(ih + k * v->DH) * v->W * v->C);
                }
            }
        }
    }
    if (count % VL) { /* the last vector overlaps the one before */
        for (ptrdiff_t k = 0; k < filter; k++) {
            float *end = room->sum + k * t->pitch + count - VL;
            vstore(end, vload(room->sum + (k + 1) * t->pitch - VL));
        }
    }
    SMG_LOCAL(pack)(room->turned, (int)filter, room->sum, 1, t->pitch, count, (int)filter);
    fast_sink(job->sink, room->turned, (size_t)c * (size_t)filter, (size_t)count * (size_t)filter);
}

static void part(void *arg, ptrdiff_t i, int thread) {
    const Job *job = (const Job *)arg;
    Room *room = (Room *)smg_work_of(job->work, thread);
    const int32_t units = job->v->C / VL, parts = job->parts;
    const int32_t first = (int32_t)((int64_t)units * i / parts), last = (int32_t)((int64_t)units * (i + 1) / parts);
    memset(room->zero, 0, sizeof room->zero);
    for (int32_t u = first, count; u < last; u += count) {
        const int32_t left = last - u, runs = (left + job->most - 1) / job->most;
        count = (left + runs - 1) / runs;
        const int32_t end =
            u + count == units ? job->v->C : (u + count) * VL; /* the very last takes what is left over */
        run(job, room, u * VL, end - u * VL);
    }
}

/* Few channels, several filters a channel, or a huge kernel. */
static void plain(const Job *job) {
    const Conv *v = job->v;
    const int32_t M = v->O / v->C;
    for (int32_t o = 0; o < v->O; o++) {
        for (int32_t kh = 0; kh < v->KH; kh++) {
            for (int32_t kw = 0; kw < v->KW; kw++) {
                float sum = 0.0f;
                for (int32_t n = 0; n < v->N; n++) {
                    for (int32_t oh = 0; oh < v->OH; oh++) {
                        const int32_t ih = oh * v->SH - v->PT + kh * v->DH, left = kw * v->DW - v->PL;
                        int32_t lo, hi;
                        if (ih < 0 || ih >= v->H) { continue; }
                        conv_clip(left, v->OW, v->SW, v->W, &lo, &hi);
                        const float *x = job->x + (((ptrdiff_t)n * v->H + ih) * v->W + left) * v->C + o / M;
                        const float *dy = job->dy + ((ptrdiff_t)n * v->OH + oh) * v->OW * v->O + o;
                        for (int32_t ow = lo; ow < hi; ow++) {
                            sum += dy[(ptrdiff_t)ow * v->O] * x[(ptrdiff_t)ow * v->SW * v->C];
                        }
                    }
                }
                fast_sink(job->sink, &sum, ((size_t)o * (size_t)v->KH + (size_t)kh) * (size_t)v->KW + (size_t)kw, 1);
            }
        }
    }
}

void SMG_LOCAL(depthwise_dw)(const SmgWork *work, const Conv *v, const Sink *sink, const float *dy, const float *x) {
    Job job = {.work = work, .v = v, .sink = sink, .dy = dy, .x = x};
    const ptrdiff_t fit = PACKED / ((ptrdiff_t)v->KH * v->KW) / VL, most = MOST_CHANNELS / VL;
    job.most = (int32_t)(fit < most ? fit : most) - 1; /* one is kept for what is left over */
    if (v->DW == 1 && v->SW <= 2 && v->KW <= 7 && v->KH <= MOST_ROWS && blocks[v->SW - 1][v->KW][0]) {
        job.fn = blocks[v->SW - 1][v->KW];
    }
    job.parts = (int64_t)v->N * v->OH * v->OW * v->C * v->KH * v->KW < SMG_ALONE_THIN ? 1 : work->threads;
    if (v->O == v->C && v->C >= VL && job.most >= 1) {
        smg_parallel(work, part, &job, job.parts);
    } else {
        plain(&job);
    }
}
