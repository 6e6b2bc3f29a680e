/* How a kernel runs over a range of pieces that do not depend on each other (elements, rows, samples). Exact kernels
 * run straight through. Compiled for an instruction set, threads share the range; each piece is computed as before, so
 * the number of threads changes no bit. */
#ifndef SMG_SPLIT_H
#define SMG_SPLIT_H
#include "kernel.h"

/* Pieces from..to of what `arg` describes. */
typedef SmgFault (*SmgRange)(const void *arg, int32_t from, int32_t to);

#ifdef SMG_ISA
#include "fast/threads.h"

#define SMG_SPLIT_FROM (1 << 14) /* elements that one thread computes sooner than it hands over a share of them */

typedef struct {
    SmgRange range;
    const void *arg;
    int64_t count;
    ptrdiff_t parts;
    SmgFault faults[SMG_MAX_THREADS]; /* of each part */
} SmgSplit;

static inline void smg_split_part(void *split, ptrdiff_t i, int thread) {
    SmgSplit *s = (SmgSplit *)split;
    (void)thread;
    s->faults[i] = s->range(s->arg, (int32_t)(s->count * i / s->parts), (int32_t)(s->count * (i + 1) / s->parts));
}

/* All `count` pieces, which together are about `elements` elements of work. Returns the fault
 * of the first part that has one. */
static inline SmgFault smg_split(const SmgCall *c, SmgRange range, const void *arg, int32_t count, int64_t elements) {
    const int32_t threads = c->work ? c->work->threads : 1;
    SmgSplit s = {.range = range, .arg = arg, .count = count, .parts = count < threads ? count : threads};
    if (s.parts < 2 || elements < SMG_SPLIT_FROM) { return range(arg, 0, count); }
    smg_parallel(c->work, smg_split_part, &s, s.parts);
    for (ptrdiff_t i = 0; i < s.parts; i++) {
        if (s.faults[i]) { return s.faults[i]; }
    }
    return SMG_NO_FAULT;
}
#else
static inline SmgFault smg_split(const SmgCall *c, SmgRange range, const void *arg, int32_t count, int64_t elements) {
    (void)c;
    (void)elements;
    return range(arg, 0, count);
}
#endif
#endif
