/* Which axes of a tensor are summed up, in groups of axes that lie and move together. */
#ifndef SMG_GROUPS_H
#define SMG_GROUPS_H
#include "walk.h"

/* p: kept, reduced, kept_dims[], kept_strides[], reduced_dims[], reduced_strides[]. The output is dense over kept. */
typedef struct {
    int32_t kept, reduced; /* groups of axes */
} GroupsHead;
typedef struct {
    int kept, reduced;
    const int32_t *kd, *ks; /* [kept] dims and strides */
    const int32_t *rd, *rs; /* [reduced] dims and strides */
} Groups;
UNPACK(groups_head_of, GroupsHead)

static inline Groups groups_of(const int32_t *p) {
    const GroupsHead v = groups_head_of(p);
    const int32_t *kd = p + PARAMS(GroupsHead), *rd = kd + 2 * v.kept;
    return (Groups){v.kept, v.reduced, kd, kd + v.kept, rd, rd + v.reduced};
}

static inline int groups_refused(const int32_t *p, int params) {
    if (params < PARAMS(GroupsHead)) { return 1; }
    const GroupsHead v = groups_head_of(p);
    if (v.kept < 0 || v.kept > SMG_MAX_RANK || v.reduced < 0 || v.reduced > SMG_MAX_RANK) { return 1; }
    return params != PARAMS(GroupsHead) + 2 * v.kept + 2 * v.reduced;
}

/* Elements of input and output. Every input element is visited once, so more steps than elements is nonsense. */
static inline int groups_need(const int32_t *p, int params, uint64_t samples, uint64_t step, uint64_t *in,
                              uint64_t *out) {
    if (groups_refused(p, params)) { return -1; }
    const Groups g = groups_of(p);
    const uint64_t k = smg_span(g.kd, g.ks, g.kept), r = smg_span(g.rd, g.rs, g.reduced);
    if (k == SMG_TOO_MUCH || r == SMG_TOO_MUCH) { return -1; }
    *in = k && r && samples ? smg_add(smg_add(k - 1, r - 1), smg_add(smg_mul(samples - 1, step), 1)) : 0;
    *out = smg_product(g.kd, g.kept);
    return smg_mul(smg_mul(*out, smg_product(g.rd, g.reduced)), samples) > *in ? -1 : 0;
}
#endif
