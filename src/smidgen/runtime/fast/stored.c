/* Blocks of weights that are not whole or not in f32 (kernels/weights.h), packed as products want them. */
#include "gemm.h"

#define CHUNK 64 /* numbers of an output that are put together before they are turned */

/* Fewer columns than the pitch: zeros behind them. */
static void clear_tails(float *to, int pitch, ptrdiff_t rows, ptrdiff_t columns) {
    for (ptrdiff_t i = 0; i < rows && columns < pitch; i++) {
        memset(to + i * pitch + columns, 0, (size_t)(pitch - columns) * sizeof(float));
    }
}

void SMG_LOCAL(pack_outputs)(float *to, int pitch, const Weights *w, ptrdiff_t o, int n, ptrdiff_t at, int32_t k) {
    const Stored *s = w->stored;
    if (!s->scale && (s->slice.D != s->length || n > NR)) { /* packed where it is, but for the slice */
        SMG_LOCAL(pack)(to, pitch, (const float *)s->fixed + o * s->length + at, 1, s->length, k, n);
        weights_patch(w, to, 1, pitch, o, n, at, k, 0);
    } else if (n <= NR) {
        float rows[NR * CHUNK];
        for (int32_t done = 0, count; done < k; done += count) {
            count = least32(k - done, CHUNK);
            s->read(w, rows, CHUNK, 1, o, n, at + done, count);
            SMG_LOCAL(pack)(to + (ptrdiff_t)done * pitch, pitch, rows, 1, CHUNK, count, n);
        }
    } else {
        s->read(w, to, 1, pitch, o, n, at, k);
        clear_tails(to, pitch, k, n);
    }
}

void SMG_LOCAL(pack_inputs)(float *to, int pitch, const Weights *w, ptrdiff_t o, int32_t k, ptrdiff_t at, int n) {
    if (w->stored->scale) {
        weights_widen(w, to, pitch, 1, o, k, at, n);
        clear_tails(to, pitch, k, n);
    } else {
        SMG_LOCAL(pack)(to, pitch, (const float *)w->stored->fixed + o * w->stored->length + at, w->stored->length, 1,
                        k, n);
    }
    if (w->stored->learned) { weights_patch(w, to, pitch, 1, o, k, at, n, 0); }
}
