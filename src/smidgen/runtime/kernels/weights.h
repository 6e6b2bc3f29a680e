/* Weights that a kernel reads: f32, or int8 with a scale for each output, w = q * scale, rounded once. */
#ifndef SMG_WEIGHTS_H
#define SMG_WEIGHTS_H
#include <stddef.h>
#include <stdint.h>

typedef struct Weights {
    const float *f; /* NULL if they are int8 */
    const int8_t *q;
    const float *scale; /* of each output */
    float *room;        /* for four outputs */
    /* to[k] = number first + k, which is one of output o. A pointer, so that firmware without int8 does not have it. */
    void (*widen)(const struct Weights *w, float *to, ptrdiff_t o, ptrdiff_t first, ptrdiff_t count);
} Weights;

static inline Weights weights_f32(const float *f) { return (Weights){.f = f}; }

static inline void weights_widen(const Weights *w, float *to, ptrdiff_t o, ptrdiff_t first, ptrdiff_t count) {
    const float scale = w->scale[o];
    for (ptrdiff_t k = 0; k < count; k++) { to[k] = (float)w->q[first + k] * scale; }
}

/* Outputs o … o + rows - 1, up to four, as f32: `length` numbers each. */
static inline const float *weights_rows(const Weights *w, ptrdiff_t o, int32_t rows, ptrdiff_t length) {
    if (w->f) { return w->f + o * length; }
    for (int32_t i = 0; i < rows; i++) { w->widen(w, w->room + i * length, o + i, (o + i) * length, length); }
    return w->room;
}
#endif
