/* What the passes of fast depthwise convolution share. Channels are lanes; taps are packed as [tap][channel]. */
#ifndef SMG_DEPTHWISE_H
#define SMG_DEPTHWISE_H
#include "conv.h"
#include "gemm.h"
#include "threads.h"

#define PACKED        6144 /* floats of packed taps: one run of channels at a time */
#define MOST_CHANNELS 1024
#define MOST_ROWS     7  /* of a kernel that has a loop of its own */
#define COLUMNS       21 /* of the image, under eight neighbouring windows 7 wide and 2 apart */

/* Channels at a time, or 0 if not even one vector's taps fit. */
static inline int32_t lanes_at_a_time(int32_t channels, ptrdiff_t filter) {
    const ptrdiff_t fit = PACKED / filter / VL * VL;
    const ptrdiff_t most = fit < MOST_CHANNELS ? fit : MOST_CHANNELS;
    if (channels < VL || most < VL) { return 0; }
    if (channels <= most) { return channels; }
    const ptrdiff_t runs = (channels + most - 1) / most, each = ((channels + runs - 1) / runs + VL - 1) / VL * VL;
    return (int32_t)(each < most ? each : most);
}

/* From `from` on, at most `most` channels; a last run below one vector takes some of the run before with it. */
static inline int32_t lanes_from(int32_t *from, int32_t channels, int32_t most) {
    if (channels - *from < VL) { *from = channels - VL; }
    return channels - *from < most ? channels - *from : most;
}

/* Pointers to the pixels `from`, `from` + step, … of a line (NULL: outside the image), or to zeros. */
static inline void columns(const float **to, int count, const float *line, int32_t from, int32_t step, int32_t size,
                           ptrdiff_t pixel, const float *zero) {
    if (!line) {
        for (int i = 0; i < count; i++) { to[i] = zero; }
    } else if (from >= 0 && from + (count - 1) * step < size) {
        const float *p = line + from * pixel;
        for (int i = 0; i < count; i++) { to[i] = p + i * (step * pixel); }
    } else {
        for (int i = 0; i < count; i++, from += step) { to[i] = from >= 0 && from < size ? line + from * pixel : zero; }
    }
}
#endif
