/* See posix.h. A read or write outside STATE or ARENA ends the process instead of passing unnoticed. */
#define _GNU_SOURCE
#include "posix.h"
#include "../fast/threads.h"
#include "../format.h"
#include "posix_cpu.h"
#include "posix_pager.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <ucontext.h>
#endif

typedef struct {
    uint8_t *start; /* NULL: nothing is mapped */
    size_t bytes;
} Mapping;

struct SmgPosix {
    SmgContext context;
    Mapping file, state, arena, work_memory;
    SmgWork work;
    SmgPosixPager pager;
    const char *set;
};

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Maps `bytes` between two guard pages; the returned address is aligned, and flush with one guard. */
static uint8_t *map_guarded(Mapping *m, size_t bytes, size_t align, unsigned flags) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = whole_pages(bytes);
    m->bytes = inner + 2 * page;
    m->start = (uint8_t *)mmap(NULL, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->start == (uint8_t *)MAP_FAILED) {
        m->start = NULL;
        return NULL;
    }
    uint8_t *first = m->start + page;
    if (inner && mprotect(first, inner, PROT_READ | PROT_WRITE)) { return NULL; }
    return flags & SMG_GUARD_START ? first : first + inner - (bytes + align - 1) / align * align;
}

static void unmap(Mapping *m) {
    if (m->start) { munmap(m->start, m->bytes); }
    m->start = NULL;
}

static const char *map_path(Mapping *m, const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0) { return strerror(errno); }
    const char *why = NULL;
    if (fstat(fd, &info)) {
        why = strerror(errno);
    } else if (!S_ISREG(info.st_mode) || info.st_size <= 0) {
        why = "not a file, or empty";
    }
    if (!why) {
        m->bytes = (size_t)info.st_size;
        m->start = (uint8_t *)mmap(NULL, m->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (m->start == (uint8_t *)MAP_FAILED) {
            m->start = NULL;
            why = strerror(errno);
        }
    }
    close(fd);
    return why;
}

static const char *map_copy(Mapping *m, const void *file, size_t bytes) {
    if (!bytes) { return "the program is empty"; }
    m->bytes = bytes;
    m->start = (uint8_t *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->start == (uint8_t *)MAP_FAILED) {
        m->start = NULL;
        return strerror(errno);
    }
    memcpy(m->start, file, bytes);
    mprotect(m->start, bytes, PROT_READ);
    return NULL;
}

static SmgStatus open_mapped(SmgPosix *p, unsigned flags, const char **why) {
    SmgStatus status = smg_measure(&p->context, p->file.start, p->file.bytes);
    *why = smg_error(&p->context);
    if (status) { return status; }
    const uint32_t state_bytes = smg_state_bytes(&p->context), arena_bytes = smg_arena_bytes(&p->context);
    const uint32_t align = smg_align(&p->context);
    uint8_t *state = map_guarded(&p->state, state_bytes, align, flags);
    uint8_t *arena = map_guarded(&p->arena, arena_bytes, align, flags);
    if (!state || !arena) {
        *why = "not enough memory for STATE and ARENA";
        return SMG_BAD_CALL;
    }
    status = smg_open(&p->context, p->file.start, p->file.bytes, state, state_bytes, arena, arena_bytes);
    *why = smg_error(&p->context);
    return status;
}

SmgPosix *smg_posix_empty(void) { return (SmgPosix *)calloc(1, sizeof(SmgPosix)); }

SmgPosix *smg_posix_open(const char *path, const void *file, size_t bytes, unsigned flags, SmgStatus *status,
                         char message[SMG_MESSAGE_BYTES]) {
    SmgPosix *p = smg_posix_empty();
    const char *why = "out of memory";
    if (p) { why = path ? map_path(&p->file, path) : map_copy(&p->file, file, bytes); }
    *status = why ? SMG_BAD_CALL : open_mapped(p, flags, &why);
    message[0] = 0;
    if (*status == SMG_OK) { return p; }
    strncat(message, why, SMG_MESSAGE_BYTES - 1);
    smg_posix_close(p);
    return NULL;
}

void smg_posix_close(SmgPosix *p) {
    if (!p) { return; }
#ifdef SMG_HAS_FAST
    if (p->work.workers) { smg_threads_stop(p->work.workers); }
#endif
    smg_posix_pager_close(&p->pager); /* its thread may still be reading into the arena */
    unmap(&p->file);
    unmap(&p->state);
    unmap(&p->arena);
    unmap(&p->work_memory);
    free(p);
}

SmgContext *smg_posix_context(SmgPosix *p) { return &p->context; }
uint8_t *smg_posix_state(SmgPosix *p) { return p->context.state; }
uint8_t *smg_posix_arena(SmgPosix *p) { return p->context.arena; }
static size_t program_bytes(const SmgPosix *p) {
    return (size_t)smg_state_bytes(&p->context) + smg_arena_bytes(&p->context);
}
size_t smg_posix_mapped_bytes(const SmgPosix *p) {
    const size_t program = program_bytes(p);
    return program + (p->set ? smg_posix_work_bytes(p->work.threads, program) : 0) +
           smg_posix_pager_bytes(p->pager.has_thread);
}

/* ---- pages ---- */

SmgStatus smg_posix_page_to(SmgPosix *p, const char *path, char message[SMG_MESSAGE_BYTES]) {
    SmgContext *x = &p->context;
    message[0] = 0;
    const char *why = p->pager.pager.self ? "a page file is already open" : NULL;
    if (!why) { why = smg_posix_pager_open(&p->pager, path, x); }
    SmgStatus status = why ? SMG_BAD_CALL : smg_set_pager(x, &p->pager.pager);
    if (status) { strncat(message, why ? why : smg_error(x), SMG_MESSAGE_BYTES - 1); }
    if (status && p->pager.pager.self && !x->pager) { smg_posix_pager_close(&p->pager); }
    return status;
}

void smg_posix_paged(const SmgPosix *p, uint64_t *read_bytes, uint64_t *written_bytes) {
    *read_bytes = p->pager.read_bytes;
    *written_bytes = p->pager.written_bytes;
}

const SmgPager *smg_posix_pager(const SmgPosix *p) { return p->context.pager; }

const char *smg_posix_page_read(SmgPosix *p, size_t offset, void *to, size_t bytes) {
    const SmgPager *pager = p->context.pager;
    return pager ? pager->read(pager->self, offset, to, bytes) : "no page file is open";
}

const char *smg_posix_page_write(SmgPosix *p, size_t offset, const void *from, size_t bytes) {
    const SmgPager *pager = p->context.pager;
    return pager ? pager->write(pager->self, offset, from, bytes) : "no page file is open";
}

void smg_posix_trim(SmgPosix *p, size_t keep) {
    if (!p->arena.start || keep >= smg_arena_bytes(&p->context)) { return; }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t from = whole_pages((size_t)(p->context.arena - p->arena.start) + keep), to = p->arena.bytes - page;
    if (from < to) { madvise(p->arena.start + from, to - from, MADV_DONTNEED); }
}

/* ---- fast kernels ---- */

const SmgWork *smg_posix_work(const SmgPosix *p) { return &p->work; }

#ifdef SMG_HAS_FAST
static size_t thread_bytes(int threads) { return threads > 1 ? (smg_threads_bytes() + 63) / 64 * 64 : 0; }

static size_t work_each(size_t program_bytes) {
    return program_bytes < SMG_WIDE_FROM ? SMG_WORK_BYTES : SMG_WIDE_BYTES;
}

size_t smg_posix_work_bytes(int threads, size_t program_bytes) {
    const size_t stacks = (size_t)(threads - 1) * (SMG_THREAD_STACK_BYTES + (size_t)sysconf(_SC_THREAD_STACK_MIN));
    return (size_t)threads * work_each(program_bytes) + thread_bytes(threads) + stacks;
}

size_t smg_posix_wide_from(void) { return SMG_WIDE_FROM; }

const char *smg_posix_use_fast(SmgPosix *p, const char *set, int threads) {
    const SmgKernelSet *s = smg_kernel_sets;
    while (s->name && !(smg_cpu_runs(s->name) && (!*set || strcmp(set, s->name) == 0))) { s++; }
    if (!s->name) {
        return *set ? "this machine or this build does not have the instruction set" : "built without fast kernels";
    }
    if (threads < 1 || threads > SMG_MAX_THREADS) { return "the number of threads is out of range"; }
    if (p->set) { return "fast kernels are in use already"; }
    const size_t each = work_each(program_bytes(p)), work = (size_t)threads * each;
    uint8_t *memory = map_guarded(&p->work_memory, work + thread_bytes(threads), 64, SMG_GUARD_START);
    if (!memory) { return "not enough memory for the work of fast kernels"; }
    p->work = (SmgWork){.memory = memory, .each = each, .bytes = work, .threads = threads};
    if (threads > 1) {
        p->work.workers = smg_threads_start(memory + work, threads);
        if (!p->work.workers) { return "threads cannot be started"; }
    }
    p->set = s->name;
    p->context.runs = s->runs;
    p->context.work = &p->work;
    return NULL;
}
#else
size_t smg_posix_work_bytes(int threads, size_t program_bytes) {
    (void)threads;
    (void)program_bytes;
    return 0;
}
size_t smg_posix_wide_from(void) { return 0; }
const char *smg_posix_use_fast(SmgPosix *p, const char *set, int threads) {
    (void)p;
    (void)set;
    (void)threads;
    return "built without fast kernels";
}
#endif

const char *smg_posix_set(const SmgPosix *p) { return p->set ? p->set : "exact"; }

#ifdef __GLIBC__
#define STACK_BYTES (16u * SMG_STACK_BYTES) /* room to report an excess instead of crashing */
#define PAINT       0xa5

typedef struct {
    SmgContext *x;
    const SmgBuffer *buffers;
    int entry, count;
    SmgSamples samples;
    SmgStatus status;
    ucontext_t here, there;
} Measured;

/* makecontext passes ints: the pointer arrives in two halves. */
static void on_painted_stack(unsigned high, unsigned low) {
    Measured *m = (Measured *)(uintptr_t)((uint64_t)high << 32 | low);
    m->status = smg_run(m->x, m->entry, m->buffers, m->count, m->samples);
}

SmgStatus smg_posix_stack_used(SmgPosix *p, int entry, const SmgBuffer *buffers, int count, SmgSamples samples,
                               size_t *used) {
    Measured m = {.x = &p->context, .buffers = buffers, .entry = entry, .count = count, .samples = samples};
    Mapping mapping;
    sigset_t all, before;
    *used = 0;
    uint8_t *stack = map_guarded(&mapping, STACK_BYTES, 16, SMG_GUARD_START);
    if (!stack) { return SMG_BAD_CALL; }
    memset(stack, PAINT, STACK_BYTES);
    sigfillset(&all); /* a signal's frame would be counted */
    sigprocmask(SIG_SETMASK, &all, &before);
    getcontext(&m.there);
    m.there.uc_stack.ss_sp = stack;
    m.there.uc_stack.ss_size = STACK_BYTES;
    m.there.uc_link = &m.here;
    const uint64_t address = (uint64_t)(uintptr_t)&m;
    makecontext(&m.there, (void (*)(void))on_painted_stack, 2, (unsigned)(address >> 32), (unsigned)address);
    swapcontext(&m.here, &m.there);
    sigprocmask(SIG_SETMASK, &before, NULL);
    size_t untouched = 0;
    while (untouched < STACK_BYTES && stack[untouched] == PAINT) { untouched++; }
    *used = STACK_BYTES - untouched;
    unmap(&mapping);
    return m.status;
}
#else
SmgStatus smg_posix_stack_used(SmgPosix *p, int entry, const SmgBuffer *buffers, int count, SmgSamples samples,
                               size_t *used) {
    *used = 0; /* no ucontext */
    return smg_run(&p->context, entry, buffers, count, samples);
}
#endif
