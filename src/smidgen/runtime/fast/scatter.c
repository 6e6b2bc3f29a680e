/* The input gradient of a convolution with few input channels, or a transposed convolution with few output channels:
 * a line of dy becomes, by one product, what each of its pixels adds to its window of dx, and those are added up.
 * One image is one thread's work, so that sums do not depend on the number of threads. */
#include "conv.h"
#include "gemm.h"
#include "threads.h"

/* What a line adds is computed for PIXELS of its pixels at a time: PIXELS * WINDOW floats, 43 KB at most, and 14 KB for
 * a 7 x 7 kernel of three channels. */
#define PIXELS  24  /* of dy at a time */
#define WINDOW  448 /* floats of a window of dx */
#define DEEPEST 256 /* channels of dy */

typedef struct {
    float window[PIXELS * WINDOW], tail[DEEPEST * NR], zero[NR];
    const float *rows[PIXELS];
    float *out[PIXELS];
} ScatterWorkspace;
_Static_assert(sizeof(ScatterWorkspace) <= SMG_WORK_BYTES, "the thread's memory is too small");

typedef struct {
    const SmgWork *work;
    const Conv *v;
    float *dx;
    const float *dy, *w, *bias;
} Job;

/* Gathering would leave most lanes of a vector of channels empty; here the lanes are taps and channels together. */
int SMG_LOCAL(scatters)(const Conv *v) {
    return v->G == 1 && v->C < VL && v->O >= VL / 2 && v->O <= DEEPEST && v->KH * v->KW > 1 &&
           (int64_t)v->KH * v->KW * v->C <= WINDOW;
}

/* room->window[p] = dy of pixel p times the weights, all taps. */
static void windows(const Job *job, ScatterWorkspace *room, const float *dy, int32_t pixels) {
    const Conv *v = job->v;
    const int32_t J = v->KH * v->KW * v->C;
    for (int32_t p = 0; p < pixels; p++) {
        room->rows[p] = dy + (ptrdiff_t)p * v->O;
        room->out[p] = room->window + p * J;
    }
    MicroTile t = {.pitch = PIXELS, .step = 1, .segments = 1, .run = v->O, .start = room->zero};
    for (int32_t j = 0; j < J; j += NR) {
        const int width = (int)least32(J - j, NR), vectors = width > VL ? 2 : 1, most = vectors == 2 ? ROWS2 : ROWS1;
        const int whole = width == NR;
        t.b = whole ? job->w + j : room->tail;
        t.ldb = whole ? J : vectors * VL;
        t.column = j;
        t.width = width;
        for (int32_t strips = (pixels + most - 1) / most, p = 0, height; strips > 0; strips--, p += height) {
            height = (pixels - p + strips - 1) / strips;
            t.rows = room->rows + p;
            t.out = room->out + p;
            SMG_LOCAL(micro)[vectors - 1][height - 1](&t);
        }
    }
}

/* Taps of column ow that lie inside are one run of memory unless the kernel is dilated. */
static void add_up(const Job *job, const ScatterWorkspace *room, float *image, int32_t oh, int32_t from,
                   int32_t pixels) {
    const Conv *v = job->v;
    const int32_t row = v->KW * v->C;
    for (int32_t p = 0; p < pixels; p++) {
        const float *window = room->window + p * v->KH * row;
        const int32_t iw = (from + p) * v->SW - v->PL;
        int32_t lo, hi;
        conv_clip(iw, v->KW, v->DW, v->W, &lo, &hi);
        for (int32_t i = 0; i < v->KH; i++, window += row) {
            const int32_t ih = oh * v->SH - v->PT + i * v->DH;
            if (ih < 0 || ih >= v->H || lo >= hi) { continue; }
            float *line = image + ((ptrdiff_t)ih * v->W + iw) * v->C;
            if (v->DW == 1) {
                const int32_t end = hi * v->C;
                int32_t l = lo * v->C;
                for (; l + VL <= end; l += VL) { vstore(line + l, vload(line + l) + vload(window + l)); }
                if (l < end) {
                    vstore_part(line + l, vload_part(line + l, end - l) + vload_part(window + l, end - l), end - l);
                }
            } else {
                for (int32_t k = lo; k < hi; k++) {
                    for (int32_t c = 0; c < v->C; c++) { line[k * v->DW * v->C + c] += window[k * v->C + c]; }
                }
            }
        }
    }
}

/* dx of an image starts from the bias, and every line of dy adds its windows to it. */
static void one_image(void *arg, ptrdiff_t n, int thread) {
    const Job *job = (const Job *)arg;
    const Conv *v = job->v;
    ScatterWorkspace *room = (ScatterWorkspace *)smg_work_of(job->work, thread);
    const int32_t J = v->KH * v->KW * v->C, rest = J % NR, pitch = rest > VL ? NR : VL;
    float *image = job->dx + n * v->H * v->W * v->C;
    memset(room->zero, 0, sizeof room->zero);
    if (rest) { SMG_LOCAL(pack)(room->tail, pitch, job->w + J - rest, J, 1, v->O, rest); }
    for (ptrdiff_t p = 0; p < (ptrdiff_t)v->H * v->W; p++) {
        for (int32_t c = 0; c < v->C; c++) { image[p * v->C + c] = job->bias ? job->bias[c] : 0.0f; }
    }
    for (int32_t oh = 0; oh < v->OH; oh++) {
        for (int32_t ow = 0; ow < v->OW; ow += PIXELS) {
            const int32_t pixels = least32(v->OW - ow, PIXELS);
            windows(job, room, job->dy + ((n * v->OH + oh) * v->OW + ow) * v->O, pixels);
            add_up(job, room, image, oh, ow, pixels);
        }
    }
}

void SMG_LOCAL(scatter)(const SmgWork *work, const Conv *v, float *dx, const float *dy, const float *w,
                        const float *b) {
    Job job = {work, v, dx, dy, w, b};
    smg_parallel(work, one_image, &job, v->N);
}
