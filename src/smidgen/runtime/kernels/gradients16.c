/* Gradients in int16 from and to f32, their sum, thresholds and tables, and how their exponents follow them. N elements
 * each. Results may take the place of an operand: what is measured is looked at before it is written. */
#include "gradients16.h"
#include "params.h"

static int pair_need(int32_t N, uint64_t *q, uint64_t *about) {
    if (N < 0) { return -1; }
    *q = smg_mul((uint64_t)N, sizeof(int16_t));
    *about = SMG_ABOUT;
    return 0;
}

/* -- from f32 and back ------------------------------------------------------------------------------------------- */

EXTENT(quantize16_i16) {
    const int32_t N = map_of(p).N;
    if (pair_need(N, &need[0], &need[1])) { return -1; }
    need[2] = smg_mul((uint64_t)N, sizeof(float));
    return 0;
}
KERNEL(quantize16_i16, "ooi", PARAMS(Map)) {
    const int32_t N = map_of(c->p).N;
    int16_t *q = OUT_AS(int16_t, 0);
    int32_t *about = OUT_AS(int32_t, 1), most = 0;
    const float *x = IN(2), limit = 16777216.0f;
    for (int32_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        const int32_t field = (int32_t)(bits >> 23 & 255);
        if (field < 255 && field > most) { most = field; }
    }
    const int32_t exponent = smg_between(most - 126 - SMG_MANTISSA, SMG_LEAST_EXPONENT, SMG_MOST_EXPONENT);
    const float factor = smg_power(8 - exponent);
    for (int32_t i = 0; i < N; i++) { /* a product with a power of two, and no sum */
        const float v = x[i] * factor, low = v < -limit ? -limit : v, t = low > limit ? limit : low;
        q[i] = smg_right16((int32_t)(t == t ? t : 0.0f), 8);
    }
    about[0] = exponent;
    about[1] = 0;
    return SMG_NO_FAULT;
}

EXTENT(dequantize16_f32) {
    const int32_t N = map_of(p).N;
    if (pair_need(N, &need[1], &need[2])) { return -1; }
    need[0] = smg_mul((uint64_t)N, sizeof(float));
    return 0;
}
KERNEL(dequantize16_f32, "oii", PARAMS(Map)) {
    const int32_t N = map_of(c->p).N;
    float *x = OUT(0);
    const int16_t *q = IN_AS(int16_t, 1);
    const float step = smg_power(smg_exponent_of(IN_AS(int32_t, 2)));
    for (int32_t i = 0; i < N; i++) { x[i] = (float)q[i] * step; }
    return SMG_NO_FAULT;
}

/* -- the sum of two ---------------------------------------------------------------------------------------------- */

enum { FRACTION = 14 };
EXTENT(add16_i16) {
    if (pair_need(map_of(p).N, &need[0], &need[1])) { return -1; }
    need[2] = need[4] = need[0];
    need[3] = need[5] = SMG_ABOUT;
    return 0;
}
KERNEL(add16_i16, "ooiiii", PARAMS(Map)) {
    const int32_t N = map_of(c->p).N;
    int16_t *y = OUT_AS(int16_t, 0);
    int32_t *about = OUT_AS(int32_t, 1);
    const int16_t *a = IN_AS(int16_t, 2), *b = IN_AS(int16_t, 4);
    const int32_t ea = smg_exponent_of(IN_AS(int32_t, 3)), eb = smg_exponent_of(IN_AS(int32_t, 5));
    const int32_t high = ea > eb ? ea : eb;
    const int32_t da = high - ea < 31 ? high - ea : 31, db = high - eb < 31 ? high - eb : 31;
    uint32_t seen = 0;
    for (int32_t i = 0; i < N; i++) {
        seen |= smg_magnitude(((a[i] * (1 << FRACTION)) >> da) + ((b[i] * (1 << FRACTION)) >> db));
    }
    const int32_t bits = smg_bit_length(seen);
    const Fit16 f = smg_fitted(high - FRACTION, bits, 0);
    for (int32_t i = 0; i < N; i++) {
        y[i] = smg_narrow16(((a[i] * (1 << FRACTION)) >> da) + ((b[i] * (1 << FRACTION)) >> db), f.shift);
    }
    about[0] = f.exponent;
    about[1] = bits;
    return SMG_NO_FAULT;
}

/* -- what reads int8 numbers of the forward pass ----------------------------------------------------------------- */

typedef struct {
    int32_t N, exponent;
} Table16;
UNPACK(table16_of, Table16)

EXTENT(qtable_dx16_i16) {
    const Table16 v = table16_of(p);
    if (pair_need(v.N, &need[0], &need[1]) || v.exponent < -200 || v.exponent > 200) { return -1; }
    need[2] = need[0];
    need[3] = need[1];
    need[4] = (uint64_t)v.N;
    need[5] = 256 * sizeof(int16_t);
    return 0;
}
KERNEL(qtable_dx16_i16, "ooiiii", PARAMS(Table16)) {
    const Table16 v = table16_of(c->p);
    int16_t *dx = OUT_AS(int16_t, 0);
    int32_t *about = OUT_AS(int32_t, 1);
    const int16_t *dy = IN_AS(int16_t, 2), *slopes = IN_AS(int16_t, 5);
    const int8_t *x = IN_AS(int8_t, 4);
    uint32_t seen = 0;
    for (int32_t i = 0; i < v.N; i++) { seen |= smg_magnitude(dy[i] * slopes[x[i] + 128]); }
    const int32_t bits = smg_bit_length(seen);
    const Fit16 f = smg_fitted(smg_exponent_of(IN_AS(int32_t, 3)) + v.exponent, bits, 0);
    for (int32_t i = 0; i < v.N; i++) { dx[i] = smg_narrow16(dy[i] * slopes[x[i] + 128], f.shift); }
    about[0] = f.exponent;
    about[1] = bits;
    return SMG_NO_FAULT;
}

/* dx = dy where lo < y < hi, else 0: range_dx and bits_dx of factors 1 and 0, which is all that integers need. */
typedef struct {
    int32_t N;
    float lo, hi;
    int32_t closed;
    float inside, outside;
} Range16;
UNPACK(range16_of, Range16)

EXTENT(range_dx16_i8) {
    const Range16 v = range16_of(p);
    if (v.N < 0 || v.closed || v.inside != 1.0f || v.outside != 0.0f) { return -1; }
    need[0] = need[1] = smg_mul((uint64_t)v.N, sizeof(int16_t));
    need[2] = (uint64_t)v.N;
    return 0;
}
KERNEL(range_dx16_i8, "oii", PARAMS(Range16)) {
    const Range16 v = range16_of(c->p);
    int16_t *dx = OUT_AS(int16_t, 0);
    const int16_t *dy = IN_AS(int16_t, 1);
    const int8_t *y = IN_AS(int8_t, 2);
    const float lo = v.lo, hi = v.hi;
    for (int32_t i = 0; i < v.N; i++) {
        const float at = (float)y[i];
        dx[i] = at > lo && at < hi ? dy[i] : 0;
    }
    return SMG_NO_FAULT;
}

EXTENT(bits_dx16_i16) {
    const BitsDx v = bits_dx_of(p);
    if (v.shape.rows < 0 || v.shape.per_row < 1 || v.inside != 1.0f || v.outside != 0.0f) { return -1; }
    const uint64_t rows = (uint64_t)v.shape.rows, per_row = (uint64_t)v.shape.per_row;
    need[0] = need[1] = smg_mul(smg_mul(rows, per_row), sizeof(int16_t));
    need[2] = smg_mul(rows, (per_row + 7) / 8);
    return 0;
}
KERNEL(bits_dx16_i16, "oii", PARAMS(BitsDx)) {
    const BitRows shape = bits_dx_of(c->p).shape;
    int16_t *dx = OUT_AS(int16_t, 0);
    const int16_t *dy = IN_AS(int16_t, 1);
    const uint8_t *bits = IN_AS(uint8_t, 2);
    for (int32_t r = 0; r < shape.rows; r++) {
        for (int32_t left = shape.per_row; left > 0; left -= 8, dx += 8, dy += 8) {
            const int count = left < 8 ? left : 8;
            const unsigned byte = *bits++;
            for (int j = 0; j < count; j++) { dx[j] = (int16_t)(dy[j] & -(int)(byte >> j & 1)); }
            if (count < 8) {
                dx += count - 8;
                dy += count - 8;
            }
        }
    }
    return SMG_NO_FAULT;
}

/* -- exponents --------------------------------------------------------------------------------------------------- */

EXTENT(gain16_i32) {
    need[0] = sizeof(int32_t);
    need[1] = SMG_ABOUT;
    return 0;
}
KERNEL(gain16_i32, "ui", 0) {
    int32_t *gain = OUT_AS(int32_t, 0);
    const int32_t bits = IN_AS(int32_t, 1)[1];
    if (bits < 1 || bits > SMG_MOST_BITS) { return SMG_NO_FAULT; }
    const int32_t less = *gain > 0 ? *gain - 1 : 0, own = SMG_GAIN_STEPS * bits;
    *gain = own > less ? own : less;
    return SMG_NO_FAULT;
}
