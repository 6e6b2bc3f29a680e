/* Trains and infers with a program file, and stops at any allocation after it is open.
 *
 *     harness program.smg [steps]
 *
 * Inputs are pseudo-random and the same on every machine; integers are 0 or 1, so that they are valid labels and
 * indices. Prints FNV-1a hashes of STATE and of everything the program put out: equal bits give equal lines, so the
 * output of builds by different compilers can be compared. */
#define _GNU_SOURCE
#include "ports/posix.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_BUFFERS = 32 };

/* ---- allocation is forbidden from here on ---- */

static int forbidden;
static void stop(const char *what) {
    if (!forbidden) { return; }
    (void)!write(2, what, strlen(what));
    (void)!write(2, " was called after open\n", 23);
    _exit(3);
}
#ifdef __GLIBC__
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void __libc_free(void *old);
void *malloc(size_t bytes) { return stop("malloc"), __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return stop("calloc"), __libc_calloc(count, bytes); }
void *realloc(void *old, size_t bytes) { return stop("realloc"), __libc_realloc(old, bytes); }
void free(void *old) {
    stop("free");
    __libc_free(old);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return stop("mmap"), (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
#endif

/* ---- the run ---- */

static uint32_t seed = 12345;
static uint32_t next(void) { return (seed = seed * 1664525u + 1013904223u) >> 8; }

static uint64_t fnv(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u; }
    return hash;
}

static void fill(void *data, size_t bytes, SmgType type) {
    if (type == SMG_U8) {
        for (size_t i = 0; i < bytes; i++) { ((uint8_t *)data)[i] = next() & 1; }
    } else {
        for (size_t i = 0; i < bytes / 4; i++) {
            const int32_t label = next() & 1;
            const float value = (float)(int32_t)(next() & 0xffff) / 32768.0f - 1.0f;
            memcpy((uint8_t *)data + 4 * i, type == SMG_I32 ? (const void *)&label : (const void *)&value, 4);
        }
    }
}

/* Full batches and, every third step, a partial one. */
static int step(SmgContext *x, int entry, int number, SmgBuffer *buffers, uint64_t *hash) {
    const int32_t batch = smg_batch(x), n = number % 3 == 2 && batch > 1 ? batch - 1 : batch;
    const int count = smg_buffer_count(x, entry);
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info = {0};
        smg_buffer_info(x, entry, i, &info);
        if (!info.is_output) { fill(buffers[i].data, smg_buffer_bytes(x, entry, i, n), info.type); }
    }
    if (smg_run(x, entry, buffers, count, (SmgSamples){n, n, 0})) { return 1; }
    for (int i = 0; i < count; i++) {
        SmgBufferInfo info = {0};
        smg_buffer_info(x, entry, i, &info);
        if (info.is_output) { *hash = fnv(*hash, buffers[i].data, smg_buffer_bytes(x, entry, i, n)); }
    }
    return 0;
}

int main(int argc, char **argv) {
    static SmgBuffer buffers[SMG_MAX_ENTRIES][MAX_BUFFERS];
    char message[SMG_MESSAGE_BYTES];
    SmgStatus status;
    SmgPosix *p = argc > 1 ? smg_posix_open(argv[1], NULL, 0, SMG_GUARD_END, &status, message) : NULL;
    if (!p) {
        fprintf(stderr, "%s\n", argc > 1 ? message : "usage: harness program.smg [steps]");
        return 2;
    }
    const int steps = argc > 2 ? atoi(argv[2]) : 6;
    SmgContext *x = smg_posix_context(p);
    for (int entry = 0; entry < smg_entry_count(x); entry++) {
        for (int i = 0; i < smg_buffer_count(x, entry) && i < MAX_BUFFERS; i++) {
            const size_t bytes = smg_buffer_bytes(x, entry, i, smg_batch(x));
            buffers[entry][i] = (SmgBuffer){calloc(1, bytes + 1), bytes};
        }
    }
    uint64_t outputs = 14695981039346656037u;
    int failed = 0;
    forbidden = 1;
    for (int number = 0; number < steps && !failed; number++) {
        for (int entry = 0; entry < smg_entry_count(x) && !failed; entry++) {
            failed = step(x, entry, number, buffers[entry], &outputs);
        }
    }
    forbidden = 0;
    if (failed) {
        fprintf(stderr, "%s\n", smg_error(x));
        return 1;
    }
    const uint64_t state = fnv(14695981039346656037u, smg_posix_state(p), smg_state_bytes(x));
    printf("state %016llx\noutputs %016llx\n", (unsigned long long)state, (unsigned long long)outputs);
    printf("mapped_bytes %zu\ncontext_bytes %zu\n", smg_posix_mapped_bytes(p), smg_context_bytes());
    smg_posix_close(p);
    return 0;
}
