/* See tail.h. */
#define _GNU_SOURCE
#include "tail.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

static int open_self(void) {
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : open((const char *)getauxval(AT_EXECFN), O_RDONLY | O_CLOEXEC); /* without /proc */
}

const uint8_t *tail_map(size_t *bytes, const char **why) {
    const int fd = open_self();
    struct stat info;
    Tail tail;
    *why = NULL;
    void *found = MAP_FAILED;
    if (fd < 0 || fstat(fd, &info)) {
        *why = strerror(errno);
    } else if (info.st_size < (off_t)sizeof tail ||
               pread(fd, &tail, sizeof tail, info.st_size - (off_t)sizeof tail) != (ssize_t)sizeof tail ||
               memcmp(tail.magic, "SMDGTAIL", sizeof tail.magic) || tail.offset % TAIL_ALIGN || !tail.bytes ||
               tail.bytes > (uint64_t)info.st_size || tail.offset > (uint64_t)info.st_size - tail.bytes) {
        *why = "the executable is truncated";
    } else {
        *bytes = (size_t)tail.bytes;
        found = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)tail.offset);
        if (found == MAP_FAILED) { *why = strerror(errno); }
    }
    if (fd >= 0) { close(fd); }
    return *why ? NULL : (const uint8_t *)found;
}

static uint8_t *grown(uint8_t *memory, size_t from, size_t to) {
    void *at = memory ? mremap(memory, from, to, MREMAP_MAYMOVE)
                      : mmap(NULL, to, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : (uint8_t *)at;
}

void *tail_take(const uint8_t *part, size_t given, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t mapped = ((uintptr_t)part + page - 1) / page * page; /* whole pages before it are given back */
    uint8_t *memory = NULL;
    size_t at = 0, room = 0;
    do {
        const size_t count = given - at < PIECE ? given - at : PIECE;
        const size_t all = bytes ? bytes : 1, want = at + count < given ? at + count : all;
        memory = grown(memory, room, want);
        if (!memory) { return NULL; }
        room = want;
        memcpy(memory + at, part + at, count);
        at += count;
        const uintptr_t end = (uintptr_t)(part + at) / page * page;
        if (end > mapped) {
            munmap((void *)mapped, end - mapped);
            mapped = end;
        }
    } while (at < given);
    return memory;
}
