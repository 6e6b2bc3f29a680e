/* A pool of threads. The same for every instruction set, so only the objects of the baseline hold it.
 * `job` counts the jobs; a worker looks at it for a while, then sleeps. Whoever goes to sleep says so first and looks
 * once more, and whoever has news looks for sleepers after writing it: one of the two always sees the other.
 * A share belongs to whoever takes its `open` flag: where another program has a worker's processor, or the worker still
 * wakes, the caller does that share as well instead of waiting for it. */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"

#define SMG_BASELINE_sse2  1
#define SMG_BASELINE_neon  1
#define SMG_BASELINE_plain 1
#if SMG_JOIN(SMG_BASELINE, _, SMG_ISA)
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define SPINS 4000 /* some ten microseconds */

typedef struct {
    struct SmgThreads *threads;
    int number;
} Worker;

struct SmgThreads {
    atomic_uint job;
    atomic_int left, sleepers, caller_sleeps, stop;
    int threads;
    pid_t owner; /* the process that has the threads: a forked child has none */
    SmgTask task;
    void *arg;
    ptrdiff_t count;
    atomic_int open[SMG_MAX_THREADS]; /* a share that nobody has begun */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pthread_t thread[SMG_MAX_THREADS];
    Worker worker[SMG_MAX_THREADS];
};

static inline void pause_a_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Share `number` of the job, done by `thread`: it works in that thread's memory, whoever it is. */
static void share(const struct SmgThreads *p, int number, int thread) {
    const ptrdiff_t each = p->count / p->threads, more = p->count % p->threads;
    const ptrdiff_t first = each * number + (number < more ? number : more);
    const ptrdiff_t last = first + each + (number < more);
    for (ptrdiff_t i = first; i < last; i++) { p->task(p->arg, i, thread); }
}

/* Whether the share was there to take. `task`, `arg` and `count` are read after this, so they are those of its job. */
static int take(struct SmgThreads *p, int number) { return atomic_exchange(&p->open[number], 0); }

/* A worker: spins, then sleeps, until there is a job; does its share unless the caller has taken it. */
static void *work(void *argument) {
    const Worker *w = (const Worker *)argument;
    struct SmgThreads *p = w->threads;
    for (unsigned seen = 0;;) {
        for (int i = 0; i < SPINS && atomic_load(&p->job) == seen; i++) { pause_a_moment(); }
        if (atomic_load(&p->job) == seen) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->job) == seen) { pthread_cond_wait(&p->wake, &p->lock); }
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        if (atomic_load(&p->stop)) { return NULL; }
        seen = atomic_load(&p->job); /* those before it were done by others */
        if (!take(p, w->number)) { continue; }
        share(p, w->number, w->number);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

/* The sequentially consistent add comes before the look for sleepers: see the top. */
static void tell(struct SmgThreads *p) {
    atomic_fetch_add(&p->job, 1);
    if (!atomic_load(&p->sleepers)) { return; }
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void smg_threads_run(struct SmgThreads *p, SmgTask task, void *arg, ptrdiff_t count) {
    p->task = task;
    p->arg = arg;
    p->count = count;
    if (getpid() != p->owner) {
        for (int i = 0; i < p->threads; i++) { share(p, i, 0); }
        return;
    }
    atomic_store(&p->left, p->threads - 1);
    for (int i = 1; i < p->threads; i++) { atomic_store(&p->open[i], 1); }
    tell(p);
    share(p, 0, 0);
    for (int i = 1; i < p->threads; i++) {
        if (take(p, i)) {
            share(p, i, 0);
            atomic_fetch_sub(&p->left, 1);
        }
    }
    for (int i = 0; i < SPINS && atomic_load(&p->left); i++) { pause_a_moment(); }
    if (!atomic_load(&p->left)) { return; }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->left)) { pthread_cond_wait(&p->done, &p->lock); }
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

size_t smg_threads_bytes(void) { return sizeof(struct SmgThreads); }

/* Thread-local variables of the whole process come out of a thread's stack, so a small one may be refused. */
static int start(pthread_t *thread, Worker *w) {
    pthread_attr_t attributes;
    int failed = 1;
    if (pthread_attr_init(&attributes)) { return 1; }
    for (size_t bytes = SMG_THREAD_STACK_BYTES; failed && bytes <= 1u << 20; bytes *= 2) {
        if (!pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN) + bytes)) {
            failed = pthread_create(thread, &attributes, work, w);
        }
    }
    pthread_attr_destroy(&attributes);
    return failed;
}

struct SmgThreads *smg_threads_start(void *memory, int threads) {
    struct SmgThreads *p = (struct SmgThreads *)memory;
    if (threads < 1 || threads > SMG_MAX_THREADS) { return NULL; }
    memset(p, 0, sizeof *p);
    p->owner = getpid();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (p->threads = 1; p->threads < threads; p->threads++) {
        p->worker[p->threads] = (Worker){p, p->threads};
        if (start(&p->thread[p->threads], &p->worker[p->threads])) {
            smg_threads_stop(p);
            return NULL;
        }
    }
    return p;
}

void smg_threads_stop(struct SmgThreads *p) {
    if (getpid() != p->owner) { return; /* nobody waits here, and what another process locked stays locked */ }
    atomic_store(&p->stop, 1);
    tell(p);
    for (int i = 1; i < p->threads; i++) { pthread_join(p->thread[i], NULL); }
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
}
#endif
