/* A pool of threads that wait for work. smg_parallel splits 0..count into one run of neighbours per thread, always the
 * same for the same number of threads, and returns when all is done. Not for use from two callers at a time. */
#ifndef SMG_THREADS_H
#define SMG_THREADS_H
#include "fast.h"

#define SMG_MAX_THREADS 64
#ifndef SMG_ALONE           /* tests want threads for anything */
#define SMG_ALONE (1 << 19) /* multiplications that one thread does sooner than it hands over a share of them */
#endif
#define SMG_ALONE_THIN         (SMG_ALONE / 4) /* the same where every number is used a few times only */
#define SMG_THREAD_STACK_BYTES 16384           /* of a thread, beside what the system needs for itself */

typedef void (*SmgTask)(void *arg, ptrdiff_t i, int thread);

/* Bytes of the memory that smg_threads_start needs. */
size_t smg_threads_bytes(void);
/* Starts threads - 1 workers, kept in `memory` (aligned to 64); the caller is one more. NULL if one cannot be
 * started. */
struct SmgThreads *smg_threads_start(void *memory, int threads);
void smg_threads_stop(struct SmgThreads *workers);
void smg_threads_run(struct SmgThreads *workers, SmgTask task, void *arg, ptrdiff_t count);

static inline void smg_parallel(const SmgWork *work, SmgTask task, void *arg, ptrdiff_t count) {
    if (work->threads > 1 && work->workers && count > 1) {
        smg_threads_run(work->workers, task, arg, count);
    } else {
        for (ptrdiff_t i = 0; i < count; i++) { task(arg, i, 0); }
    }
}
#endif
