/* Rows picked by index, and their gradient. Groups of rows take turns with the rows of the index: group a reads row
 * a mod G. A negative index counts from the end. */
#include "../kernel.h"

/* x[A][V][D], index[G][K], y[A][K][D] */
typedef struct {
    int32_t A, G, V, K, D;
} Gather;
UNPACK(gather_of, Gather)

/* Sizes end at 2^28, so that they can be added and stepped without overflow. */
static int gather_size_ok(int32_t size, int32_t least) { return size >= least && size <= 1 << 28; }

/* Bytes of x, index and y; -1 refuses. No step is free: V, K and D are at least 1. */
static int gather_need(const int32_t *p, uint64_t *x, uint64_t *index, uint64_t *y, unsigned width) {
    const Gather v = gather_of(p);
    if (!gather_size_ok(v.A, 0) || !gather_size_ok(v.G, v.A > 0)) { return -1; }
    if (!gather_size_ok(v.V, 1) || !gather_size_ok(v.K, 1) || !gather_size_ok(v.D, 1)) { return -1; }
    const uint64_t row = smg_mul((uint64_t)v.D, width);
    *x = smg_mul(smg_mul((uint64_t)v.A, (uint64_t)v.V), row);
    *y = smg_mul(smg_mul((uint64_t)v.A, (uint64_t)v.K), row);
    *index = smg_mul(smg_mul((uint64_t)v.G, (uint64_t)v.K), 4);
    return 0;
}

/* The row that `at` names, or -1. */
static inline int32_t row_at(int32_t at, int32_t V) {
    if (at < -V || at >= V) { return -1; }
    return at < 0 ? at + V : at;
}

/* y may be x where one row of the index serves all groups and ascends: no row is written before it is read. */
static SmgFault gather(const SmgCall *c, size_t width) {
    const Gather v = gather_of(c->p);
    const int32_t *index = IN_AS(int32_t, 2);
    const size_t row = (size_t)v.D * width;
    const unsigned char *x = IN_AS(unsigned char, 1);
    unsigned char *y = OUT_AS(unsigned char, 0);
    for (int32_t a = 0, g = 0; a < v.A; a++) {
        const int32_t *own = index + (size_t)g * (size_t)v.K;
        for (int32_t k = 0; k < v.K; k++) {
            const int32_t from = row_at(own[k], v.V);
            if (from < 0) { return SMG_FAULT_AXIS_INDEX; }
            const unsigned char *own_row = x + (size_t)from * row;
            if (row == sizeof(int32_t)) { /* single numbers: not worth a call */
                int32_t number;
                memcpy(&number, own_row, sizeof number);
                memcpy(y, &number, sizeof number);
            } else if (y != own_row) {
                memcpy(y, own_row, row);
            }
            y += row;
        }
        x += (size_t)v.V * row;
        g = g + 1 < v.G ? g + 1 : 0;
    }
    return SMG_NO_FAULT;
}

/* Operands y, x, index. */
EXTENT(gather_b4) { return gather_need(p, &need[1], &need[2], &need[0], 4); }
KERNEL(gather_b4, "oii", PARAMS(Gather)) { return gather(c, 4); }

EXTENT(gather_b1) { return gather_need(p, &need[1], &need[2], &need[0], 1); }
KERNEL(gather_b1, "oii", PARAMS(Gather)) { return gather(c, 1); }

EXTENT(gather_b2) { return gather_need(p, &need[1], &need[2], &need[0], 2); }
KERNEL(gather_b2, "oii", PARAMS(Gather)) { return gather(c, 2); }

/* Operands dx, dy, index. Each element of dx is one sum in the order of k. */
EXTENT(gather_dx_f32) { return gather_need(p, &need[0], &need[2], &need[1], 4); }
KERNEL(gather_dx_f32, "oii", PARAMS(Gather)) {
    const Gather v = gather_of(c->p);
    const int32_t *index = IN_AS(int32_t, 2);
    const float *dy = IN(1);
    const size_t D = (size_t)v.D, rows = (size_t)v.V * D;
    float *dx = OUT(0);
    for (int32_t a = 0, g = 0; a < v.A; a++) {
        const int32_t *own = index + (size_t)g * (size_t)v.K;
        for (size_t i = 0; i < rows; i++) { dx[i] = 0.0f; }
        for (int32_t k = 0; k < v.K; k++) {
            const int32_t to = row_at(own[k], v.V);
            if (to < 0) { return SMG_FAULT_AXIS_INDEX; }
            float *sum = dx + (size_t)to * D;
            for (size_t d = 0; d < D; d++) { sum[d] += dy[d]; }
            dy += D;
        }
        dx += rows;
        g = g + 1 < v.G ? g + 1 : 0;
    }
    return SMG_NO_FAULT;
}

/* y[A][V][D] is x, with part[A][K][D] at the rows that index[1][K] names. y may be x. */
static SmgFault put(const SmgCall *c, size_t width) {
    const Gather v = gather_of(c->p);
    const int32_t *index = IN_AS(int32_t, 3);
    const size_t row = (size_t)v.D * width, whole = (size_t)v.V * row;
    const unsigned char *x = IN_AS(unsigned char, 1), *part = IN_AS(unsigned char, 2);
    unsigned char *y = OUT_AS(unsigned char, 0);
    for (int32_t a = 0; a < v.A; a++) {
        if (y != x) { memcpy(y, x, whole); }
        for (int32_t k = 0; k < v.K; k++) {
            const int32_t to = row_at(index[k], v.V);
            if (to < 0) { return SMG_FAULT_AXIS_INDEX; }
            memcpy(y + (size_t)to * row, part, row);
            part += row;
        }
        x += whole;
        y += whole;
    }
    return SMG_NO_FAULT;
}

static int put_need(const int32_t *p, uint64_t *need, unsigned width) {
    if (gather_of(p).G != 1 || gather_need(p, &need[1], &need[3], &need[2], width)) { return -1; }
    need[0] = need[1];
    return 0;
}

/* Operands y, x, part, index. */
EXTENT(put_b4) { return put_need(p, need, 4); }
KERNEL(put_b4, "oiii", PARAMS(Gather)) { return put(c, 4); }

EXTENT(put_b1) { return put_need(p, need, 1); }
KERNEL(put_b1, "oiii", PARAMS(Gather)) { return put(c, 1); }
