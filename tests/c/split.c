/* smg_split: every piece once, whatever the number of threads and the size; the fault of the first part is
 * returned. */
#include "split.h"
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 1000 };
typedef struct {
    unsigned char done[MOST];
    int32_t bad; /* the piece that fails, and all after it */
} Job;

static const SmgFault first = SMG_FAULT_LABEL, later = SMG_FAULT_TOO_FEW; /* of piece 0, of a later one */

static SmgFault pieces(const void *arg, int32_t from, int32_t to) {
    Job *job = (Job *)arg;
    SmgFault fault = SMG_NO_FAULT;
    for (int32_t i = from; i < to; i++) {
        job->done[i]++;
        if (i >= job->bad && !fault) { fault = i == 0 ? first : later; }
    }
    return fault;
}

static int parts; /* of the last call */
static SmgFault count_parts(const void *arg, int32_t from, int32_t to) {
    (void)arg;
    if (from < to) { __atomic_add_fetch(&parts, 1, __ATOMIC_SEQ_CST); }
    return SMG_NO_FAULT;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 3;
    static _Alignas(64) char memory[1 << 16];
    SmgWork work = {.workers = smg_threads_start(memory, threads), .threads = threads};
    if (!work.workers) { return 3; }
    const SmgCall c = {.work = &work}, alone = {.work = NULL};
    for (int32_t count = 0; count <= MOST; count += 1 + count / 7) {
        for (int32_t bad = -1; bad <= count; bad += 1 + count / 3) {
            Job job = {.bad = bad < 0 ? MOST : bad};
            const SmgFault fault = smg_split(&c, pieces, &job, count, SMG_SPLIT_FROM);
            for (int32_t i = 0; i < MOST; i++) {
                if (job.done[i] != (i < count)) {
                    printf("piece %d of %d done %d times\n", (int)i, (int)count, job.done[i]);
                    return 1;
                }
            }
            SmgFault want = SMG_NO_FAULT;
            if (job.bad < count) { want = job.bad == 0 ? first : later; }
            if (fault != want) {
                printf("%d pieces, %d fails: fault %d\n", (int)count, (int)bad, (int)fault);
                return 1;
            }
        }
    }
    smg_split(&c, count_parts, NULL, MOST, SMG_SPLIT_FROM);
    const int shared = parts;
    smg_split(&c, count_parts, NULL, MOST, SMG_SPLIT_FROM - 1); /* too little to share */
    smg_split(&alone, count_parts, NULL, MOST, SMG_SPLIT_FROM); /* nobody to share with */
    smg_threads_stop(work.workers);
    printf("%d %d\n", shared, parts - shared);
    return 0;
}
