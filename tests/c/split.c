/* smg_split: every piece once, whatever the number of threads and the size; the first part that complains is heard. */
#include "split.h"
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 1000 };
typedef struct {
    unsigned char done[MOST];
    int32_t bad; /* the piece that complains, and all after it */
} Job;

static const char *const first = "piece 0", *const later = "a later piece";

static const char *pieces(const void *arg, int32_t from, int32_t to) {
    Job *job = (Job *)arg;
    const char *said = NULL;
    for (int32_t i = from; i < to; i++) {
        job->done[i]++;
        if (i >= job->bad && !said) { said = i == 0 ? first : later; }
    }
    return said;
}

static int parts; /* of the last call */
static const char *count_parts(const void *arg, int32_t from, int32_t to) {
    (void)arg;
    if (from < to) { __atomic_add_fetch(&parts, 1, __ATOMIC_SEQ_CST); }
    return NULL;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 3;
    static _Alignas(64) char memory[1 << 16];
    SmgWork work = {.pool = smg_pool_start(memory, threads), .threads = threads};
    if (!work.pool) { return 3; }
    const SmgCall c = {.work = &work}, alone = {.work = NULL};
    for (int32_t count = 0; count <= MOST; count += 1 + count / 7) {
        for (int32_t bad = -1; bad <= count; bad += 1 + count / 3) {
            Job job = {.bad = bad < 0 ? MOST : bad};
            const char *said = smg_split(&c, pieces, &job, count, SMG_SPLIT_FROM);
            for (int32_t i = 0; i < MOST; i++) {
                if (job.done[i] != (i < count)) {
                    printf("piece %d of %d done %d times\n", (int)i, (int)count, job.done[i]);
                    return 1;
                }
            }
            const char *want = job.bad >= count ? NULL : job.bad == 0 ? first : later;
            if (said != want) {
                printf("%d pieces, %d complains: %s\n", (int)count, (int)bad, said ? said : "nothing");
                return 1;
            }
        }
    }
    smg_split(&c, count_parts, NULL, MOST, SMG_SPLIT_FROM);
    const int shared = parts;
    smg_split(&c, count_parts, NULL, MOST, SMG_SPLIT_FROM - 1); /* too little to share */
    smg_split(&alone, count_parts, NULL, MOST, SMG_SPLIT_FROM); /* nobody to share with */
    smg_pool_stop(work.pool);
    printf("%d %d\n", shared, parts - shared);
    return 0;
}
