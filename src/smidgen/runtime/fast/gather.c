/* Where a product finds the rows of A: in a plain matrix, or as pixels of an image under the taps of a kernel.
 *
 *   position m of the grid      its window in the image         table[tap][i]: pointers, BLOCK_ROWS a tap
 *   +---+---+---+                . . . . .                      tap 0:  m0  m1  m2 ...
 *   | m0| m1| m2|                . +---+---+    . outside       tap 1:  m0  m1  m2 ...
 *   +---+---+---+                . | a | b |    a pixel          ...
 *   |   |   |   |                . +---+---+
 *
 * A pointer leads to `depth` channels of one pixel, or to `zero` where the tap lies outside the image. With few
 * channels (whole_rows) it leads to a whole row of taps, which is one run of memory; where that sticks out, the row is
 * copied into `side` with zeros at its ends. Pointers of a line of the grid are evenly spaced, so only line ends are
 * tested. */
#include "gemm.h"
#include "../kernels/conv.h"

typedef struct {
    ptrdiff_t image;
    int32_t h, w;
} Place;
static Place place_of(const Grid *g, ptrdiff_t m) {
    const ptrdiff_t line = m / g->w.count;
    return (Place){line / g->h.count, (int32_t)(line % g->h.count), (int32_t)(m % g->w.count)};
}
static void next_line(const Grid *g, Place *at) {
    at->w = 0;
    if (++at->h == g->h.count) {
        at->h = 0;
        at->image++;
    }
}

static void fill_out(const Product *p, float **out, Place at, int count) {
    const Grid *g = p->grid;
    const ptrdiff_t step = g->w.out_step * g->out_pixel;
    for (int i = 0; i < count; next_line(g, &at)) {
        const int run = (int)least32(count - i, g->w.count - at.w);
        float *c = p->c + at.image * g->out_image + (g->h.out_from + at.h * g->h.out_step) * g->out_line +
                   g->w.out_from * g->out_pixel + at.w * step;
        for (int k = 0; k < run; k++, c += step) { out[i + k] = c; }
        i += run;
    }
}

/* One tap, row by row of the grid: pixels of a row that lie inside the image are evenly spaced. */
static void fill_tap(const Grid *g, const float *image, const float **table, Place at, int count, int32_t th,
                     int32_t tw, const float *zero) {
    const ptrdiff_t step = g->w.step * g->pixel;
    for (int i = 0; i < count; next_line(g, &at)) {
        const int run = (int)least32(count - i, g->w.count - at.w);
        const int32_t h = at.h * g->h.step + g->h.from + th * g->h.tap_step;
        const int32_t w = at.w * g->w.step + g->w.from + tw * g->w.tap_step;
        int32_t lo = run, hi = run;
        if (h >= 0 && h < g->h.size) { conv_clip(w, run, g->w.step, g->w.size, &lo, &hi); }
        if (lo > run) { lo = run; }
        if (hi < lo) { hi = lo; }
        int k = 0;
        for (; k < lo; k++) { table[i + k] = zero; }
        if (lo < hi) {
            const float *a = image + at.image * g->image + h * g->line + w * g->pixel + lo * step;
            for (; k < hi; k++, a += step) { table[i + k] = a; }
        }
        for (; k < run; k++) { table[i + k] = zero; }
        i += run;
    }
}

void SMG_LOCAL(tap_rows)(const Grid *g, const float *image, const float **table, ptrdiff_t m, int count, int32_t th,
                         int32_t tw, const float *zero) {
    fill_tap(g, image, table, place_of(g, m), count, th, tw, zero);
}

/* Window (at) sticks out of the image: its rows are copied and filled up with zeros. Returns the floats used. */
static int32_t copy_window(const Product *p, const float **table, Place at, int32_t t, int32_t segments,
                           const float *zero, float *side) {
    const Grid *g = p->grid;
    const int32_t w = at.w * g->w.step + g->w.from, length = p->depth;
    int32_t lo, hi, used = 0;
    conv_clip(w, g->w.taps, 1, g->w.size, &lo, &hi);
    for (int32_t s = 0; s < segments; s++, table += BLOCK_ROWS) {
        const int32_t h = at.h * g->h.step + g->h.from + (t + s) * g->h.tap_step;
        *table = zero;
        if (lo >= hi || h < 0 || h >= g->h.size) { continue; }
        const int32_t first = lo * (int32_t)g->pixel, last = hi * (int32_t)g->pixel;
        const float *line = p->a + at.image * g->image + h * g->line + w * g->pixel;
        float *to = side + used;
        for (int32_t i = 0; i < length; i++) { to[i] = i >= first && i < last ? line[i] : 0.0f; }
        *table = to;
        used += length;
    }
    return used;
}

/* Windows begin..end of a line of the grid share a copy of each of their lines with zeros at its ends. */
static float *copy_lines(const Product *p, const float **table, Place at, int32_t end, int32_t t, int32_t segments,
                         const float *zero, float *side) {
    const Grid *g = p->grid;
    const int32_t begin = at.w, left = begin * g->w.step + g->w.from;
    const int32_t right = (end - 1) * g->w.step + g->w.from + g->w.taps, length = (right - left) * (int32_t)g->pixel;
    const int32_t lo = left > 0 ? left : 0, hi = least32(right, g->w.size);
    const ptrdiff_t step = g->w.step * g->pixel;
    for (int32_t s = 0; s < segments; s++, table += BLOCK_ROWS) {
        const int32_t h = at.h * g->h.step + g->h.from + (t + s) * g->h.tap_step;
        if (h < 0 || h >= g->h.size || lo >= hi) {
            for (int32_t k = 0; k < end - begin; k++) { table[k] = zero; }
            continue;
        }
        const float *line = p->a + at.image * g->image + h * g->line;
        memset(side, 0, (size_t)length * sizeof(float));
        memcpy(side + (lo - left) * g->pixel, line + lo * g->pixel, (size_t)((hi - lo) * g->pixel) * sizeof(float));
        for (int32_t k = 0; k < end - begin; k++) { table[k] = side + k * step; }
        side += length;
    }
    return side;
}

/* Windows whose rows are runs of memory: in place where they lie inside the image, evenly spaced. */
static int fill_windows(const Product *p, const float **table, Place at, int count, int32_t t, int32_t segments,
                        const float *zero, float *side, int32_t side_floats) {
    const Grid *g = p->grid;
    const float *const side_end = side + side_floats;
    const ptrdiff_t step = g->w.step * g->pixel;
    for (int i = 0; i < count; next_line(g, &at)) {
        const int32_t begin = at.w, end = least32(at.w + count - i, g->w.count);
        /* windows first..last lie inside: 0 <= w <= size - taps */
        const int32_t from = g->w.from, slack = g->w.size - g->w.taps - from;
        int32_t first = from >= 0 ? 0 : (g->w.step - 1 - from) / g->w.step,
                last = slack < 0 ? 0 : slack / g->w.step + 1;
        first = first < begin ? begin : least32(first, end);
        last = least32(last, end);
        const ptrdiff_t whole = ((end - begin - 1) * step + p->depth) * segments;
        if ((first > begin || last < end) && whole <= side_end - side) {
            side = copy_lines(p, table + i, at, end, t, segments, zero, side);
            i += (int)(end - begin);
            continue;
        }
        for (int32_t s = 0; s < segments && first < last; s++) {
            const int32_t h = at.h * g->h.step + g->h.from + (t + s) * g->h.tap_step;
            const float **entry = table + s * BLOCK_ROWS + i - begin;
            if (h < 0 || h >= g->h.size) {
                for (int32_t k = first; k < last; k++) { entry[k] = zero; }
            } else {
                const float *a = p->a + at.image * g->image + h * g->line + from * g->pixel + first * step;
                for (int32_t k = first; k < last; k++, a += step) { entry[k] = a; }
            }
        }
        for (int32_t k = begin; k < end; k++) {
            if (k == first && first < last) { k = last; }
            if (k == end) { break; }
            if (side_end - side < segments * p->depth) { return i + (int)(k - begin); }
            at.w = k;
            side += copy_window(p, table + i + (k - begin), at, t, segments, zero, side);
        }
        i += (int)(end - begin);
    }
    return count;
}

int SMG_LOCAL(gather)(const Product *p, const float **table, float **out, ptrdiff_t m, int count, int32_t t,
                      int32_t segments, int32_t depth0, const float *zero, float *side, int32_t side_floats) {
    const Grid *g = p->grid;
    if (!g) {
        const float *a = p->a + m * p->a_row + depth0 * p->a_step;
        float *c = p->c + m * p->c_row;
        for (int i = 0; i < count; i++, a += p->a_row, c += p->c_row) {
            table[i] = a;
            out[i] = c;
        }
        return count;
    }
    const Place at = place_of(g, m);
    if (g->whole_rows) {
        count = fill_windows(p, table, at, count, t, segments, zero, side, side_floats);
    } else if (segments) {
        for (int32_t s = 0, th = t / g->w.taps, tw = t % g->w.taps; s < segments; s++) {
            fill_tap(g, p->a + depth0, table + s * BLOCK_ROWS, at, count, th, tw, zero);
            if (++tw == g->w.taps) {
                tw = 0;
                th++;
            }
        }
    }
    fill_out(p, out, at, count);
    return count;
}

Axis SMG_LOCAL(phase_of)(int32_t phase, int32_t in, int32_t out, int32_t pad, int32_t taps, int32_t stride,
                         int32_t dilation) {
    const Meets m = conv_meets(phase, pad, 0, taps, stride, dilation);
    return (Axis){.count = (in - phase + stride - 1) / stride,
                  .size = out,
                  .step = 1,
                  .from = m.out,
                  .taps = (taps - m.first + m.tap_step - 1) / m.tap_step,
                  .tap_step = -m.out_step,
                  .first = m.first,
                  .stride = m.tap_step,
                  .out_from = phase,
                  .out_step = stride};
}
