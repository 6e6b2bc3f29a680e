/* Many jobs of changing sizes, some with pauses that send workers to sleep: every piece is done exactly once, by the
 * time that smg_parallel returns. */
#define _POSIX_C_SOURCE 200809L
#include "fast/threads.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 97 };
typedef struct {
    int done[MOST], rounds[MOST], threads;
} Job;

static void piece(void *arg, ptrdiff_t i, int thread) {
    Job *job = (Job *)arg;
    if (thread < 0 || thread >= job->threads) { abort(); }
    job->done[i]++;
    for (volatile int spin = 0; spin < job->rounds[i]; spin++) {}
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 3, jobs = argc > 2 ? atoi(argv[2]) : 20000;
    static _Alignas(64) char memory[1 << 16];
    if (smg_threads_bytes() > sizeof memory) { return 2; }
    SmgWork work = {.workers = smg_threads_start(memory, threads), .threads = threads};
    if (!work.workers) { return 3; }
    unsigned seed = 1;
    for (int j = 0; j < jobs; j++) {
        Job job = {.threads = threads};
        seed = seed * 1664525u + 1013904223u;
        const int count = (int)(seed >> 8) % MOST;
        for (int i = 0; i < count; i++) { job.rounds[i] = (int)(seed >> 12) % 40; }
        smg_parallel(&work, piece, &job, count);
        for (int i = 0; i < MOST; i++) {
            if (job.done[i] != (i < count)) {
                printf("job %d: piece %d of %d done %d times\n", j, i, count, job.done[i]);
                return 1;
            }
        }
        if (seed % 4096 == 0) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }
    }
    smg_threads_stop(work.workers);
    puts("ok");
    return 0;
}
