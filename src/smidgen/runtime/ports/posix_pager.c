/* See posix_pager.h. The file begins with a block that says what it is: a file of another kind is never written to. */
#define _GNU_SOURCE
#include "posix_pager.h"
#include "../format.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD SMG_PAGE_ALIGN
static const char MARK[16] = "smidgen pages 1";

static const char *because(int error) { return error < 0 ? "the page file was truncated" : strerror(error); }

/* 0, an errno, or -1 at the end of the file. */
static int read_all(int fd, uint8_t *to, size_t bytes, off_t at) {
    while (bytes) {
        const ssize_t count = pread(fd, to, bytes, at);
        if (count < 0 && errno == EINTR) { continue; }
        if (count <= 0) { return count ? errno : -1; }
        to += count;
        at += count;
        bytes -= (size_t)count;
    }
    return 0;
}

static int write_all(int fd, const uint8_t *from, size_t bytes, off_t at) {
    while (bytes) {
        const ssize_t count = pwrite(fd, from, bytes, at);
        if (count < 0 && errno == EINTR) { continue; }
        if (count <= 0) { return count ? errno : ENOSPC; }
        from += count;
        at += count;
        bytes -= (size_t)count;
    }
    return 0;
}

static const char *read_page(void *self, size_t offset, void *to, size_t bytes) {
    SmgPosixPager *p = (SmgPosixPager *)self;
    const int error = read_all(p->fd, (uint8_t *)to, bytes, (off_t)offset + HEAD);
    p->read_bytes += bytes;
    return error ? because(error) : NULL;
}

static const char *write_page(void *self, size_t offset, const void *from, size_t bytes) {
    SmgPosixPager *p = (SmgPosixPager *)self;
    const int error = write_all(p->fd, (const uint8_t *)from, bytes, (off_t)offset + HEAD);
    p->written_bytes += bytes;
    return error ? because(error) : NULL;
}

/* ---- prefetching ---- */

/* The one that was started first of those that are not done, or NULL. */
static SmgStarted *oldest(SmgPosixPager *p) {
    SmgStarted *found = NULL;
    for (int i = 0; i < SMG_MAX_STARTED; i++) {
        SmgStarted *s = &p->started[i];
        if (s->to && !s->done && (!found || (int)(s->number - found->number) < 0)) { found = s; }
    }
    return found;
}

static void *prefetch(void *argument) {
    SmgPosixPager *p = (SmgPosixPager *)argument;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        SmgStarted *s = oldest(p);
        if (!s) {
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        const int error = read_all(p->fd, (uint8_t *)s->to, s->bytes, (off_t)s->offset + HEAD);
        pthread_mutex_lock(&p->lock);
        s->error = error;
        s->done = 1;
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static const char *start_page(void *self, size_t offset, void *to, size_t bytes) {
    SmgPosixPager *p = (SmgPosixPager *)self;
    int i = 0;
    pthread_mutex_lock(&p->lock);
    while (i < SMG_MAX_STARTED && p->started[i].to) { i++; }
    if (i < SMG_MAX_STARTED) {
        p->started[i] = (SmgStarted){.offset = offset, .bytes = bytes, .to = to, .number = p->next++};
        p->read_bytes += bytes;
        pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
    return i < SMG_MAX_STARTED ? NULL : "too many pages are on their way";
}

static const char *wait_page(void *self, void *to) {
    SmgPosixPager *p = (SmgPosixPager *)self;
    int error = 0;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < SMG_MAX_STARTED; i++) {
        SmgStarted *s = &p->started[i];
        if (!s->to || (to && s->to != to)) { continue; }
        while (!s->done) { pthread_cond_wait(&p->done, &p->lock); }
        if (s->error) { error = s->error; }
        s->to = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return error ? because(error) : NULL;
}

size_t smg_posix_pager_bytes(int prefetching) {
    return prefetching ? SMG_PAGER_STACK_BYTES + (size_t)sysconf(_SC_THREAD_STACK_MIN) : 0;
}

/* Thread-local variables of the whole process come out of a thread's stack, so a small one may be refused. */
static int start_thread(SmgPosixPager *p) {
    pthread_attr_t attributes;
    sigset_t all, before;
    int failed = 1;
    if (pthread_attr_init(&attributes)) { return 1; }
    sigfillset(&all); /* signals are the business of other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t bytes = smg_posix_pager_bytes(1); failed && bytes <= 1u << 21; bytes *= 2) {
        if (!pthread_attr_setstacksize(&attributes, bytes)) {
            failed = pthread_create(&p->thread, &attributes, prefetch, p);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

/* ---- opening ---- */

static const char *take_file(SmgPosixPager *p, const char *path, size_t bytes) {
    struct stat info;
    char mark[sizeof MARK];
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (p->fd < 0 || fstat(p->fd, &info)) { return strerror(errno); }
    if (!S_ISREG(info.st_mode)) { return "not a file"; }
    if (flock(p->fd, LOCK_EX | LOCK_NB)) { return errno == EWOULDBLOCK ? "another job uses it" : strerror(errno); }
    if (info.st_size && (read_all(p->fd, (uint8_t *)mark, sizeof mark, 0) || memcmp(mark, MARK, sizeof mark))) {
        return "it exists, and is not a page file";
    }
    int error = write_all(p->fd, (const uint8_t *)MARK, sizeof MARK, 0);
    if (!error && ftruncate(p->fd, (off_t)bytes + HEAD)) { error = errno; }
    if (!error) { error = posix_fallocate(p->fd, 0, (off_t)bytes + HEAD); }
    if (error && ftruncate(p->fd, 0)) { return because(error); /* what was reserved is given back */ }
    return error ? because(error) : NULL;
}

static int prefetches(const SmgContext *x) {
    for (uint32_t i = 0; i < smg_section_bytes(x, S_KERNELS) / 4; i++) {
        if (smg_kernels[x->kernels[i]]->flags & SMG_STARTS) { return 1; }
    }
    return 0;
}

const char *smg_posix_pager_open(SmgPosixPager *p, const char *path, const SmgContext *x) {
    memset(p, 0, sizeof *p);
    p->pager = (SmgPager){p, read_page, write_page, NULL, NULL};
    const char *why = take_file(p, path, smg_page_bytes(x));
    if (why || !prefetches(x)) { return why; }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    if (start_thread(p)) { return "a thread cannot be started"; }
    p->has_thread = 1;
    p->pager.start = start_page;
    p->pager.wait = wait_page;
    return NULL;
}

void smg_posix_pager_close(SmgPosixPager *p) {
    if (p->has_thread) {
        pthread_mutex_lock(&p->lock);
        p->stop = 1;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
        pthread_cond_destroy(&p->done);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    if (p->pager.self && p->fd >= 0) { close(p->fd); /* unlocks it */ }
    memset(p, 0, sizeof *p);
}
