/* A pager (smidgen.h) over a file. Prefetching is one thread that reads what is started, in order; everything it needs is
 * here, so nothing is allocated after opening. */
#ifndef SMG_POSIX_PAGER_H
#define SMG_POSIX_PAGER_H
#include "../smidgen.h"
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMG_PAGER_STACK_BYTES 16384 /* of the thread, beside what the system needs for itself */

typedef struct {
    size_t offset, bytes;
    void *to; /* NULL: this place of the ring is free */
    unsigned number;
    int done, error; /* errno; -1: the file is shorter than it was */
} SmgStarted;

typedef struct {
    SmgPager pager;
    int fd, has_thread, stop;
    unsigned next;
    uint64_t read_bytes, written_bytes; /* since opening */
    SmgStarted started[SMG_MAX_STARTED];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
} SmgPosixPager;

/* Opens (or makes) the file and reserves all that the open program needs, so that a full disk is found here and not within a
 * step. An existing file is only taken if it is an old page file, or empty; two pagers never share one. The thread is only
 * started for a program that prefetches. NULL, or why not; the message stays where it is until the next call.
 * A limit on the size of files (RLIMIT_FSIZE) raises SIGXFSZ, which has to be ignored. */
const char *smg_posix_pager_open(SmgPosixPager *p, const char *path, const SmgContext *x);
void smg_posix_pager_close(SmgPosixPager *p); /* the file stays, to be used again; also after a failed opening */
size_t smg_posix_pager_bytes(int prefetch);   /* of RAM, beside the struct */

#ifdef __cplusplus
}
#endif
#endif
