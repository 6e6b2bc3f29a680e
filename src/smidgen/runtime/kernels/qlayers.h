/* What kernels of layers in integers share. */
#ifndef SMG_QLAYERS_H
#define SMG_QLAYERS_H
#include "conv.h"
#include "fixed_point.h"

enum { PIXELS = 4, QTAPS = SMG_RUN };

/* Behind the geometry: the zero point of x, and what the results become. */
typedef struct {
    int32_t zero;
    Requantize requantize;
} QConv;
UNPACK(qconv_of, QConv)

/* One weight per output and tap (C/G = 1). `taps` is room for QTAPS channels. */
#define smg_qdepthwise SMG_EXTERN(qdepthwise)
void smg_qdepthwise(const Conv *v, const QConv *q, int8_t *y, const int8_t *x, const int8_t *w, const int32_t *b,
                    const int32_t *m, int16_t *taps);
#endif
