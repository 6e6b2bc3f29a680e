/* Kernels whose weight is stored as weights.h says. A kernel that reads a weight is written once, as
 *     static void f(const int32_t *p, float *y, const float *x, const Weights *w, const float *b)
 *     static int f_stored_need(const int32_t *p, WeightsNeed *n)        -1 refuses
 *     static ptrdiff_t length(const int32_t *p)        numbers of an output, for parameters that f_stored_need takes
 * and WEIGHT_KERNELS(name, f, own_params, length, "i") makes name_w8_f32, name_put_f32 and name_w8_put_f32; "" instead
 * of "i" if there is no bias.
 *
 * Operands:   name_w8      o y, i x, i q, i scale,                       bias, scratch
 *             name_put     o y, i x, i w,          i learned, i index,   bias, scratch     + p: Slice
 *             name_w8_put  o y, i x, i q, i scale, i learned, i index,   bias, scratch     + p: Slice
 * and, where WEIGHT_KERNEL_INT8 makes it, with a slice in int8 that has the same scales:
 *             name_w8_put8 o y, i x, i q, i learned, i index, i scale,   bias, scratch     + p: Slice
 * Scratch is absent where f needs no room. */
#ifndef SMG_WEIGHT_KERNELS_H
#define SMG_WEIGHT_KERNELS_H
#include "weights.h"

typedef struct {
    uint64_t y, x, w, bias, room; /* bytes; w: whole and in f32 */
    int32_t outputs;
} WeightsNeed;

SMG_UNUSED static int weights_extent(const WeightsNeed *n, int int8, int bias, const int32_t *slice, int operands,
                                     uint64_t *need) {
    const uint64_t numbers = n->w / sizeof(float), outputs = (uint64_t)n->outputs, length = numbers / outputs;
    int i = 2;
    need[0] = n->y;
    need[1] = n->x;
    need[i++] = int8 ? numbers : n->w;
    if (int8 == 1) { need[i++] = outputs * sizeof(float); }
    if (slice) {
        const Slice s = slice_of(slice);
        if (slice_refused(s, outputs, length)) { return -1; }
        need[i++] = smg_mul((int8 == 2 ? numbers : n->w) / (uint64_t)s.V, (uint64_t)s.K);
        need[i++] = (uint64_t)s.K * sizeof(int32_t);
    }
    if (int8 == 2) { need[i++] = outputs * sizeof(float); }
    if (bias) { need[i++] = n->bias; }
    if ((operands > i) != (n->room > 0)) { return -1; }
    if (operands > i) { need[i] = n->room; }
    return 0;
}

#ifdef __OPTIMIZE_SIZE__
#define STORED_OF __attribute__((noinline, unused)) static
#else
#define STORED_OF static inline
#endif
/* Of a call whose weight begins with operand 2; without room. Not inlined where size matters, so that devices/stack.py
 * knows by its calls which kernels have stored weights. */
STORED_OF void stored_of(Stored *s, const SmgCall *c, WeightsRead read, int int8, const int32_t *slice,
                         ptrdiff_t length) {
    *s = (Stored){.length = length,
                  .fixed = c->op[2],
                  .scale = int8 == 1   ? IN(3)
                           : int8 == 2 ? IN(5)
                                       : NULL,
                  .read = read,
                  .rows = weights_rows_stored,
                  .panel = weights_panel_stored,
                  .taps = weights_taps_stored};
    if (slice) {
        s->slice = slice_of(slice);
        s->learned = c->op[3 + (int8 == 1)];
        s->index = IN_AS(int32_t, 4 + (int8 == 1));
    }
}

#define WEIGHT_KERNEL_(name, f, read, weights, bias, int8, sliced, own_params, length)                         \
    EXTENT(name) {                                                                                             \
        WeightsNeed n;                                                                                         \
        if (f##_stored_need(p, &n)) { return -1; }                                                             \
        return weights_extent(&n, int8, sizeof(bias) > 1, (sliced) ? p + (own_params) : NULL, operands, need); \
    }                                                                                                          \
    KERNEL(name, "oi" weights bias "s?", (own_params) + ((sliced) ? PARAMS(Slice) : 0)) {                      \
        enum { at = 2 + sizeof(weights) - 1, room = at + sizeof(bias) - 1 };                                   \
        Stored s;                                                                                              \
        stored_of(&s, c, weights_##read, int8, (sliced) ? c->p + (own_params) : NULL, length(c->p));           \
        const Weights w = {.stored = &s};                                                                      \
        const SmgFault fault = (sliced) ? slice_fault(s.slice, s.index) : SMG_NO_FAULT;                        \
        s.room = c->operands > room ? OUT(room) : NULL;                                                        \
        if (fault == SMG_NO_FAULT) { f(c->p, OUT(0), IN(1), &w, sizeof(bias) > 1 ? IN(at) : NULL); }           \
        return fault;                                                                                          \
    }
#define WEIGHT_KERNELS(name, f, own_params, length, bias)                              \
    WEIGHT_KERNEL_(name##_w8_f32, f, widen, "ii", bias, 1, 0, own_params, length)      \
    WEIGHT_KERNEL_(name##_put_f32, f, copy_put, "iii", bias, 0, 1, own_params, length) \
    WEIGHT_KERNEL_(name##_w8_put_f32, f, widen_put, "iiii", bias, 1, 1, own_params, length)
#define WEIGHT_KERNEL_INT8(name, f, own_params, length, bias) \
    WEIGHT_KERNEL_(name##_w8_put8_f32, f, widen_put8, "iiii", bias, 2, 1, own_params, length)
#endif
