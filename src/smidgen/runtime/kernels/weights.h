/* Weights that a kernel reads. They are whole and in f32, or stored otherwise: as int8 with a scale for each output,
 * w = q * scale, rounded once; with a slice beside them, which holds the numbers of some indices of one axis; or both.
 * Whatever is stored otherwise is read in blocks, through a pointer, so that firmware has the code for what it uses. */
#ifndef SMG_WEIGHTS_H
#define SMG_WEIGHTS_H
#include "sum.h"

#ifdef __GNUC__ /* one for each type, as SOURCE_CODE */
#define WEIGHTS_CODE __attribute__((always_inline)) static inline
#else
#define WEIGHTS_CODE static inline
#endif

/* An axis of V indices with D numbers each, of which K are in the slice. All outputs (V = O, D = length), or an axis
 * within each of them, [length / (V * D)][V][D]. */
typedef struct {
    int32_t V, K, D;
} Slice;
UNPACK(slice_of, Slice)

/* Does it fit a weight of so many outputs and numbers of each? */
static inline int slice_refused(Slice s, uint64_t outputs, uint64_t length) {
    if (s.V < 1 || s.K < 1 || s.K > s.V || s.D < 1) { return 1; }
    const uint64_t V = (uint64_t)s.V, D = (uint64_t)s.D, line = V * D;
    return (V != outputs || D != length) && (line > length || length % line);
}

/* Indices must ascend, and all of them be there. */
static inline SmgFault slice_fault(Slice s, const int32_t *index) {
    int32_t least = 0;
    for (int32_t k = 0; k < s.K; k++) {
        if (index[k] < least || index[k] >= s.V) { return SMG_FAULT_AXIS_INDEX; }
        least = index[k];
    }
    return SMG_NO_FAULT;
}

/* Where the index list reaches v. */
static inline int32_t slice_reach(Slice s, const int32_t *index, ptrdiff_t v) {
    int32_t from = 0, to = s.K;
    while (from < to) {
        const int32_t middle = (from + to) / 2;
        if (index[middle] < v) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

typedef struct {
    const float *w;
    ptrdiff_t output, tap; /* floats from one to the next */
    int width;
} Panel;

struct Weights;
/* to[i * row + k * step] = number at + k of output o + i, for i < rows and k < count */
typedef void (*WeightsRead)(const struct Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o,
                            ptrdiff_t rows, ptrdiff_t at, ptrdiff_t count);
typedef struct {
    ptrdiff_t length;  /* numbers of an output */
    const void *fixed; /* float[O][length], or int8_t if there are scales */
    const float *scale;
    const void *learned;  /* fixed, with K in the place of V; float, but if int8_t stands for numbers with the scales */
    const int32_t *index; /* of the slice, ascending */
    Slice slice;
    float *room; /* weights_rows_room or weights_panel_room */
    WeightsRead read;
    /* What the functions of these names below do. */
    const float *(*rows)(const struct Weights *w, ptrdiff_t o, int32_t rows);
    void (*panel)(const struct Weights *w, Panel *panel, ptrdiff_t o, int32_t rows, int32_t taps, int32_t inputs,
                  int32_t *at);
    void (*taps)(const struct Weights *w, float *taps, int count, int width, ptrdiff_t o, int32_t step, ptrdiff_t at);
} Stored;

typedef struct Weights {
    const float *f; /* whole and in f32, or NULL: */
    const Stored *stored;
} Weights;

static inline Weights weights_f32(const float *f) { return (Weights){.f = f}; }

/* to[k * step] = from[k]; neighbours are one run of memory. */
static inline void weights_spread(float *to, ptrdiff_t step, const float *from, ptrdiff_t count) {
    if (step == 1) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (ptrdiff_t k = 0; k < count; k++) { to[k * step] = from[k]; }
}

static inline void weights_copy(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o, ptrdiff_t rows,
                                ptrdiff_t at, ptrdiff_t count) {
    const Stored *s = w->stored;
    const float *from = (const float *)s->fixed + o * s->length + at;
    for (; rows > 0; rows--, to += row, from += s->length) { weights_spread(to, step, from, count); }
}

static inline void weights_widen(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o,
                                 ptrdiff_t rows, ptrdiff_t at, ptrdiff_t count) {
    const Stored *s = w->stored;
    const int8_t *from = (const int8_t *)s->fixed + o * s->length + at;
    for (ptrdiff_t i = 0; i < rows; i++, to += row, from += s->length) {
        const float scale = s->scale[o + i];
#ifndef __OPTIMIZE_SIZE__
        if (step == 1) { /* in vectors */
            for (ptrdiff_t k = 0; k < count; k++) { to[k] = (float)from[k] * scale; }
            continue;
        }
#endif
        ptrdiff_t k = 0;
#if SMG_SUMS == SMG_SUMS_REGISTERS
        for (; step == 1 && k + 4 <= count; k += 4) {
            SMG_UNROLL for (int l = 0; l < 4; l++) { to[k + l] = (float)from[k + l] * scale; }
        }
#endif
        for (; k < count; k++) { to[k * step] = (float)from[k] * scale; }
    }
}

/* The learned numbers of a block, which are floats or int8. */
WEIGHTS_CODE void weights_patch(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o, ptrdiff_t rows,
                                ptrdiff_t at, ptrdiff_t count, int int8) {
    const Stored *s = w->stored;
    const float *floats = (const float *)s->learned;
    const int8_t *bytes = (const int8_t *)s->learned;
    const ptrdiff_t K = s->slice.K, D = s->slice.D, line = s->slice.V * D;
    if (D == s->length && line != D) { /* outputs */
        for (ptrdiff_t k = slice_reach(s->slice, s->index, o); k < K && s->index[k] < o + rows; k++) {
            float *t = to + (s->index[k] - o) * row;
            if (!int8) {
                weights_spread(t, step, floats + k * D + at, count);
                continue;
            }
            const float scale = s->scale[s->index[k]];
            for (ptrdiff_t i = 0; i < count; i++) { t[i * step] = (float)bytes[k * D + at + i] * scale; }
        }
        return;
    }
    const ptrdiff_t lines = s->length / line;
    for (ptrdiff_t a = at / line; a * line < at + count; a++) {
        const ptrdiff_t begin = at - a * line; /* of the block in this line */
        for (ptrdiff_t k = begin > 0 ? slice_reach(s->slice, s->index, begin / D) : 0; k < K; k++) {
            const ptrdiff_t first = s->index[k] * D - begin; /* of the index in the block */
            if (first >= count) { break; }
            for (ptrdiff_t l = first < 0 ? -first : 0; l < D && first + l < count; l++) {
                const ptrdiff_t from = ((o * lines + a) * K + k) * D + l;
                float *t = to + (first + l) * step;
                for (ptrdiff_t i = 0; i < rows; i++) {
                    const ptrdiff_t n = from + i * lines * K * D;
                    t[i * row] = int8 ? (float)bytes[n] * s->scale[o + i] : floats[n];
                }
            }
        }
    }
}

static inline void weights_copy_put(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o,
                                    ptrdiff_t rows, ptrdiff_t at, ptrdiff_t count) {
    weights_copy(w, to, row, step, o, rows, at, count);
    weights_patch(w, to, row, step, o, rows, at, count, 0);
}

static inline void weights_widen_put(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o,
                                     ptrdiff_t rows, ptrdiff_t at, ptrdiff_t count) {
    weights_widen(w, to, row, step, o, rows, at, count);
    weights_patch(w, to, row, step, o, rows, at, count, 0);
}

static inline void weights_widen_put8(const Weights *w, float *to, ptrdiff_t row, ptrdiff_t step, ptrdiff_t o,
                                      ptrdiff_t rows, ptrdiff_t at, ptrdiff_t count) {
    weights_widen(w, to, row, step, o, rows, at, count);
    weights_patch(w, to, row, step, o, rows, at, count, 1);
}

/* Outputs o … o + rows - 1, up to four, as f32: `length` numbers each. */
static inline const float *weights_rows_stored(const Weights *w, ptrdiff_t o, int32_t rows) {
    const Stored *s = w->stored;
    s->read(w, s->room, s->length, 1, o, rows, 0, s->length);
    return s->room;
}
static inline const float *weights_rows(const Weights *w, ptrdiff_t o, int32_t rows, ptrdiff_t length) {
    return w->f ? w->f + o * length : w->stored->rows(w, o, rows);
}
static inline uint64_t weights_rows_room(int32_t outputs, uint64_t length) {
    return smg_mul(smg_mul(length, 4), outputs < 4 ? (uint64_t)outputs : 4);
}

/* A panel: some neighbouring inputs from *at of `inputs`, which moves back where fewer are left, at all taps of outputs
 * o … o + rows - 1. Up to 16 as in smg_wide; fewer where WEIGHTS_PANEL floats are too small for so many, but no
 * fewer than four. */
#define WEIGHTS_PANEL 2048
static inline int32_t weights_panel_width(int32_t inputs, uint64_t depth) {
    int32_t width = inputs >= 8 ? 8 : inputs;
    if (inputs >= 16) { width = 16; }
    while (width >= 8 && smg_mul(depth, (uint64_t)width) > WEIGHTS_PANEL) { width /= 2; }
    return width;
}
static inline uint64_t weights_panel_room(int32_t inputs, uint64_t depth) {
    return smg_mul(smg_mul(depth, 4), (uint64_t)weights_panel_width(inputs, depth));
}
static inline void weights_panel_stored(const Weights *w, Panel *panel, ptrdiff_t o, int32_t rows, int32_t taps,
                                        int32_t inputs, int32_t *at) {
    const Stored *s = w->stored;
    const int32_t width = weights_panel_width(inputs, (uint64_t)rows * (uint64_t)taps);
    *panel = (Panel){s->room, width, (ptrdiff_t)rows * width, (int)width}; /* [tap][output][width] */
    if (*at > inputs - width) { *at = inputs - width; }
    for (int32_t t = 0; t < taps; t++) {
        s->read(w, s->room + t * panel->tap, width, 1, o, rows, (ptrdiff_t)t * inputs + *at, width);
    }
}
static inline void weights_panel(const Weights *w, Panel *panel, ptrdiff_t o, int32_t rows, int32_t taps,
                                 int32_t inputs, int32_t *at) {
    if (!w->f) {
        w->stored->panel(w, panel, o, rows, taps, inputs, at);
        return;
    }
    panel->width = smg_wide(at, inputs);
    panel->tap = inputs;
    panel->output = (ptrdiff_t)taps * inputs;
    panel->w = w->f + o * panel->output + *at;
}

/* taps[8 * k + l] = number at + k of output o + l * step, for k < count and l < width. */
static inline void weights_taps_stored(const Weights *w, float *taps, int count, int width, ptrdiff_t o, int32_t step,
                                       ptrdiff_t at) {
    if (step == 1) {
        w->stored->read(w, taps, 1, 8, o, width, at, count);
        return;
    }
    for (int l = 0; l < width; l++) { w->stored->read(w, taps + l, 1, 8, o + l * step, 1, at, count); }
}
static inline void weights_taps(const Weights *w, float *taps, int count, int width, ptrdiff_t o, int32_t step,
                                ptrdiff_t at, ptrdiff_t length) {
    if (!w->f) {
        w->stored->taps(w, taps, count, width, o, step, at);
        return;
    }
    const float *from = w->f + o * length + at;
    for (int k = 0; k < count; k++) {
        for (int l = 0; l < width; l++) { taps[8 * k + l] = from[l * step * length + k]; }
    }
}
#endif
