/* Calls one kernel by name, outside any program: for op tests and benchmarks. */
#include "format.h"

static const SmgKernel *find(const char *name) {
    for (int i = 0; i < smg_kernel_count; i++) {
        if (strcmp(smg_kernels[i]->name, name) == 0) { return smg_kernels[i]; }
    }
    return NULL;
}

/* Bytes each operand needs. 0, -1 if the parameters are refused, -2 if there is no such kernel. */
int smg_probe_extent(const char *name, const int32_t *p, int params, int operands, SmgRun run, uint64_t *need) {
    const SmgKernel *k = find(name);
    uint64_t found[SMG_MAX_OPERANDS] = {0};
    if (!k) { return -2; }
    if (operands < 0 || operands > SMG_MAX_OPERANDS || (k->params >= 0 && params != k->params)) { return -1; }
    const int status = k->extent(p, params, operands, run, found);
    memcpy(need, found, sizeof(uint64_t) * (size_t)operands);
    return status;
}

const char *smg_probe_signature(const char *name) {
    const SmgKernel *k = find(name);
    return k ? k->signature : NULL;
}

/* SmgKernelFlag, or -1 if there is no such kernel. */
int smg_probe_flags(const char *name) {
    const SmgKernel *k = find(name);
    return k ? k->flags : -1;
}

/* Pages of a kernel outside any program are ordinary memory, and an offset is its address. */
static const char *read_memory(void *self, size_t offset, void *to, size_t bytes) {
    (void)self;
    memcpy(to, (const void *)offset, bytes);
    return NULL;
}
static const char *write_memory(void *self, size_t offset, const void *from, size_t bytes) {
    (void)self;
    memcpy((void *)offset, from, bytes);
    return NULL;
}
const SmgPager smg_probe_pager = {NULL, read_memory, write_memory, NULL, NULL};

/* Only for parameters that smg_probe_extent accepts. */
SmgFault smg_probe_run(const char *name, void **op, int operands, const int32_t *p, int params, SmgRun run) {
    const char *said = "";
    SmgCall c = {.operands = operands, .params = params, .p = p, .run = run, .pager = &smg_probe_pager, .said = &said};
    for (int i = 0; i < operands; i++) { c.op[i] = op[i]; }
    return find(name)->run(&c);
}
