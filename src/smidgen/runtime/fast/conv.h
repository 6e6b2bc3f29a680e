/* What the files of fast convolution share. */
#ifndef SMG_FAST_CONV_H
#define SMG_FAST_CONV_H
#include "../kernels/conv.h"
#include "../kernels/weight_kernels.h"
#include "fast.h"
#include "gemm.h"

void SMG_LOCAL(depthwise)(const SmgWork *work, const Conv *v, float *y, const float *x, const Weights *w,
                          const float *b);
void SMG_LOCAL(depthwise_dx)(const SmgWork *work, const Conv *v, float *dx, const float *dy, const Weights *w,
                             const float *b);
void SMG_LOCAL(depthwise_dw)(const SmgWork *work, const Conv *v, const Sink *sink, const float *dy, const float *x);

/* conv_dx for few channels of dx, where it `scatters`. */
int SMG_LOCAL(scatters)(const Conv *v);
void SMG_LOCAL(scatter)(const SmgWork *work, const Conv *v, float *dx, const float *dy, const float *w, const float *b);

/* Positions are pixels of y, the source is x. */
Grid SMG_LOCAL(conv_grid)(const Conv *v);

/* dw[O][J] = sum over positions m of dy[m][o] * x[m][j]. With v, positions are those of y, and J runs over the taps of
 * the kernel and one group's channels, from `channel` on, of the image x; else x is a matrix of M rows. */
typedef struct {
    const Conv *v;
    const Grid *grid; /* of v */
    ptrdiff_t M;
    int32_t O, J, channel;
    const float *dy, *x;
    ptrdiff_t dy_row, x_row;
    size_t at; /* of this part of the gradient in the whole */
} Gradient;
void SMG_LOCAL(gradient)(const SmgWork *work, const Gradient *g, const Sink *sink);

/* f is
 *     static void f(const SmgWork *work, const int32_t *p, float *y, const float *x, const Weights *w, const float *b)
 * It has work memory, and leaves the room of the exact kernel alone. */
#define FAST_WEIGHT_KERNEL_(name, f, read, weights, bias, int8, sliced, own_params, length)                  \
    FAST_KERNEL(name) {                                                                                      \
        Stored s;                                                                                            \
        stored_of(&s, c, weights_##read, int8, (sliced) ? c->p + (own_params) : NULL, length(c->p));         \
        const Weights w = {.stored = &s};                                                                    \
        const SmgFault fault = (sliced) ? slice_fault(s.slice, s.index) : SMG_NO_FAULT;                      \
        if (fault == SMG_NO_FAULT) { f(smg_work(c), c->p, OUT(0), IN(1), &w, (bias) ? IN(weights) : NULL); } \
        return fault;                                                                                        \
    }
#define FAST_WEIGHT_KERNELS(name, f, own_params, length, bias)                          \
    FAST_WEIGHT_KERNEL_(name##_w8_f32, f, widen, 4, bias, 1, 0, own_params, length)     \
    FAST_WEIGHT_KERNEL_(name##_put_f32, f, copy_put, 5, bias, 0, 1, own_params, length) \
    FAST_WEIGHT_KERNEL_(name##_w8_put_f32, f, widen_put, 6, bias, 1, 1, own_params, length)

/* One weight per output and tap; a single channel is better off as a dense convolution. */
static inline int conv_is_depthwise(const Conv *v) { return v->C == v->G && v->G > 1; }
/* Positions of y are pixels of x: a product of plain matrices. */
static inline int conv_is_plain(const Conv *v) {
    return v->KH == 1 && v->KW == 1 && v->SH == 1 && v->SW == 1 && !v->PT && !v->PL && v->H == v->OH && v->W == v->OW;
}
#endif
