/* `hostile extents`: holds every kernel to the extents it declares. Reads calls from stdin: u32 length of the name,
 * name, u32 operands, u32 parameters, parameters, i32 n. Each operand and the parameters are allocated to the byte,
 * under the sanitizers. One line per call: "refused", "large", "ran", or "slow: kernel". */
#define _GNU_SOURCE
#include "format.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LARGEST = 1 << 20, SECONDS = 4 };

static sigjmp_buf out_of_time;
static void on_alarm(int signal) {
    (void)signal;
    siglongjmp(out_of_time, 1);
}

static uint32_t seed = 1;
static uint32_t next(void) { return seed = seed * 1664525u + 1013904223u; }

static void *filled(uint64_t bytes, int round) {
    unsigned char *data = (unsigned char *)malloc(bytes ? bytes : 1);
    for (uint64_t i = 0; i < bytes; i++) { data[i] = (unsigned char)(next() >> 24); }
    for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
        const uint32_t small = next() >> 30;
        if (round == 0) { memcpy(data + i, &small, 4); /* zeros and small numbers, also as indices */ }
    }
    return data;
}

static const char *answer(const SmgKernel *k, uint32_t operands, uint32_t params, const int32_t *p, int32_t n) {
    const SmgRun run = {n, n, 0};
    uint64_t need[SMG_MAX_OPERANDS] = {0}, total = 0;
    SmgRole roles[SMG_MAX_OPERANDS];
    if (smg_roles(k->signature, operands, roles)) { return "refused"; }
    if (k->params >= 0 && params != (uint32_t)k->params) { return "refused"; }
    if (k->extent(p, (int)params, (int)operands, run, need)) { return "refused"; }
    for (uint32_t i = 0; i < operands; i++) { total = smg_add(total, need[i]); }
    if (total > LARGEST) { return "large"; }
    if (sigsetjmp(out_of_time, 1)) { return "slow"; }
    alarm(SECONDS);
    for (int round = 0; round < 2; round++) {
        SmgCall c = {.operands = (int32_t)operands, .params = (int32_t)params, .p = p, .run = run};
        for (uint32_t i = 0; i < operands; i++) { c.op[i] = filled(need[i], round); }
        (void)k->run(&c);
        for (uint32_t i = 0; i < operands; i++) { free(c.op[i]); }
    }
    alarm(0);
    return "ran";
}

int extents_main(void);
int extents_main(void) {
    uint32_t length, operands, params;
    int32_t n;
    char name[128];
    signal(SIGALRM, on_alarm);
    while (fread(&length, 4, 1, stdin) == 1) {
        if (length >= sizeof name || fread(name, 1, length, stdin) != length) { return 2; }
        name[length] = 0;
        if (fread(&operands, 4, 1, stdin) != 1 || fread(&params, 4, 1, stdin) != 1) { return 2; }
        int32_t *p = (int32_t *)malloc(params ? params * 4 : 1);
        if (fread(p, 4, params, stdin) != params || fread(&n, 4, 1, stdin) != 1) { return 2; }
        int k = 0;
        while (k < smg_kernel_count && strcmp(smg_kernels[k]->name, name)) { k++; }
        if (k == smg_kernel_count) { return 2; }
        printf("%s: %s\n", answer(smg_kernels[k], operands, params, p, n), name);
        fflush(stdout);
        free(p);
    }
    return 0;
}
