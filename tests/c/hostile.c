/* Opens and runs every program that arrives on stdin (u32 length, bytes), built with the address and
 * undefined-behaviour sanitizers. All memory is allocated to the byte, so that a touch outside it is found. One line
 * per program: "refused: why", "ran: why the last step stopped", or "slow". */
#define _GNU_SOURCE
#include "smidgen.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST = 1 << 22, SECONDS = 3, MAX_BUFFERS = 64 };

static sigjmp_buf out_of_time;
static void on_alarm(int signal) {
    (void)signal;
    siglongjmp(out_of_time, 1);
}

static uint32_t seed = 1;
static uint32_t next(void) { return seed = seed * 1664525u + 1013904223u; }

/* Plausible data first, arbitrary bits in later rounds. */
static void fill(void *data, size_t bytes, SmgType type, int round) {
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t word = next() ^ next() >> 16;
        const float f = (float)(int32_t)word / 2147483648.0f;
        if (round == 0 && type == SMG_F32) { memcpy(&word, &f, 4); }
        if (round == 0 && type == SMG_I32) { word %= 3; }
        memcpy((char *)data + i, &word, 4);
    }
}

static void run_all(SmgContext *x, SmgBuffer *buffers) {
    const int32_t batch = smg_batch(x);
    for (int round = 0; round < 3; round++) {
        for (int entry = 0; entry < smg_entry_count(x); entry++) {
            const int32_t almost = batch > 1 ? batch - 1 : batch, sizes[3] = {batch, 1, almost}, n = sizes[round];
            const int count = smg_buffer_count(x, entry);
            size_t total = 0;
            for (int i = 0; i < count && i < MAX_BUFFERS; i++) {
                const uint64_t bytes = smg_buffer_bytes(x, entry, i, n);
                total += bytes > LARGEST ? LARGEST + 1 : bytes;
            }
            if (total > LARGEST || count > MAX_BUFFERS) { continue; }
            for (int i = 0; i < count; i++) {
                SmgBufferInfo info = {0};
                smg_buffer_info(x, entry, i, &info);
                buffers[i].bytes = smg_buffer_bytes(x, entry, i, n);
                buffers[i].data = malloc(buffers[i].bytes ? buffers[i].bytes : 1);
                fill(buffers[i].data, buffers[i].bytes, info.type, round);
            }
            smg_run(x, entry, buffers, count, (SmgSamples){n, n, 0});
            for (int i = 0; i < count; i++) { free(buffers[i].data); }
        }
    }
}

int extents_main(void);
int main(int argc, char **argv) {
    uint32_t bytes;
    if (argc > 1 && strcmp(argv[1], "extents") == 0) { return extents_main(); }
    signal(SIGALRM, on_alarm);
    while (fread(&bytes, 4, 1, stdin) == 1) {
        static SmgContext x;
        static SmgBuffer buffers[MAX_BUFFERS];
        void *file = malloc(bytes ? bytes : 1);
        if (fread(file, 1, bytes, stdin) != bytes) { return 2; }
        void *state = NULL, *arena = NULL;
        size_t state_bytes = 0, arena_bytes = 0;
        if (smg_measure(&x, file, bytes) == SMG_OK) {
            state_bytes = smg_state_bytes(&x);
            arena_bytes = smg_arena_bytes(&x);
            if (state_bytes > LARGEST) { state_bytes = LARGEST; }
            if (arena_bytes > LARGEST) { arena_bytes = LARGEST; }
            if (posix_memalign(&state, 64, state_bytes) || posix_memalign(&arena, 64, arena_bytes)) { return 2; }
        }
        if (smg_open(&x, file, bytes, state, state_bytes, arena, arena_bytes)) {
            printf("refused: %s\n", smg_error(&x));
        } else if (sigsetjmp(out_of_time, 1) == 0) {
            alarm(SECONDS);
            run_all(&x, buffers);
            alarm(0);
            printf("ran: %s\n", smg_error(&x));
        } else {
            printf("slow: %s\n", smg_entry_name(&x, 0));
        }
        fflush(stdout);
        free(file);
        free(state);
        free(arena);
    }
    return 0;
}
