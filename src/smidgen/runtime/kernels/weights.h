/* Weights that a kernel reads: f32, or int8 with a scale for each output, w = q * scale, rounded once. */
#ifndef SMG_WEIGHTS_H
#define SMG_WEIGHTS_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const float *f;     /* NULL if they are int8 */
    const int8_t *q;
    const float *scale; /* of each output */
    float *room;        /* for four outputs */
} Weights;

static inline Weights weights_f32(const float *f) { return (Weights){.f = f}; }

/* Outputs o … o + rows - 1, up to four, as f32: `length` numbers each. */
static inline const float *weights_rows(const Weights *w, ptrdiff_t o, int32_t rows, ptrdiff_t length) {
    if (w->f) return w->f + o * length;
    for (int32_t i = 0; i < rows; i++)
        for (ptrdiff_t k = 0; k < length; k++)
            w->room[i * length + k] = (float)w->q[(o + i) * length + k] * w->scale[o + i];
    return w->room;
}
#endif
