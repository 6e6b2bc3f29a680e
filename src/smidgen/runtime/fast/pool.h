/* A few threads that wait for work. smg_parallel splits 0..count into one run of neighbours per thread, always the same
 * for the same number of threads, and returns when all is done. Not for use from two callers at a time. */
#ifndef SMG_POOL_H
#define SMG_POOL_H
#include "fast.h"

#define SMG_MAX_THREADS 64
#ifndef SMG_ALONE           /* tests want threads for anything */
#define SMG_ALONE (1 << 19) /* multiplications that one thread does sooner than it hands over a share of them */
#endif
#define SMG_ALONE_THIN       (SMG_ALONE / 4) /* the same where every number is used a few times only */
#define SMG_POOL_STACK_BYTES 16384           /* of a thread, beside what the system needs for itself */

typedef void (*SmgTask)(void *arg, ptrdiff_t i, int thread);

/* Bytes of the memory that smg_pool_start wants. */
size_t smg_pool_bytes(void);
/* A pool in `memory` (aligned to 64) whose threads, with the caller's, make `threads`. NULL if one cannot be started. */
struct SmgPool *smg_pool_start(void *memory, int threads);
void smg_pool_stop(struct SmgPool *pool);
void smg_pool_run(struct SmgPool *pool, SmgTask task, void *arg, ptrdiff_t count);

static inline void smg_parallel(const SmgWork *work, SmgTask task, void *arg, ptrdiff_t count) {
    if (work->threads > 1 && work->pool && count > 1) {
        smg_pool_run(work->pool, task, arg, count);
    } else {
        for (ptrdiff_t i = 0; i < count; i++) { task(arg, i, 0); }
    }
}
#endif
