/* What a fast kernel sees beside its SmgCall: threads, and one block of memory for each of them. Every .c file here is
 * compiled once per instruction set, with -DSMG_ISA=avx2 and the like; SMG_LOCAL and FAST_KERNEL put that name into
 * each symbol, so that the objects of several sets link together. A fast kernel has the operands, parameters and extent
 * of the exact kernel of its name. Its sums never depend on the number of threads: any number gives the same bits. */
#ifndef SMG_FAST_H
#define SMG_FAST_H
#include "../kernel.h"

/* Memory of each thread, aligned to 64: tables, and a packed block (product.c) of 64 KB, or of 256 KB beside programs
 * that are large anyway. */
#define SMG_WORK_BYTES 77824
#define SMG_WIDE_BYTES (SMG_WORK_BYTES + 196608)
#define SMG_WIDE_FROM  (4u << 20) /* bytes of STATE and ARENA */

struct SmgThreads;
typedef struct SmgWork {
    void *memory;
    size_t each, bytes;         /* of one thread and of all */
    struct SmgThreads *workers; /* NULL for one thread */
    int threads;                /* with the caller's */
} SmgWork;

static inline const SmgWork *smg_work(const SmgCall *c) { return c->work; }
static inline void *smg_work_of(const SmgWork *work, int thread) {
    return (char *)work->memory + (size_t)thread * work->each;
}

#define FAST_KERNEL(name)                      \
    SmgFault SMG_FAST(name)(const SmgCall *c); \
    SmgFault SMG_FAST(name)(const SmgCall *c)
#endif
