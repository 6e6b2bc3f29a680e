/* Calls one kernel by name, outside any program: for op tests and benchmarks. */
#include "kernel.h"

extern const SmgKernel *const smg_kernels[];
extern const int smg_kernel_count;

static const SmgKernel *find(const char *name) {
    for (int i = 0; i < smg_kernel_count; i++)
        if (strcmp(smg_kernels[i]->name, name) == 0) return smg_kernels[i];
    return NULL;
}

/* Bytes each operand needs. 0, -1 if the parameters are refused, -2 if there is no such kernel. */
int smg_probe_extent(const char *name, const int32_t *p, int params, int operands, SmgRun run, uint64_t *need) {
    const SmgKernel *k = find(name);
    if (!k) return -2;
    if (k->params >= 0 && params != k->params) return -1;
    memset(need, 0, sizeof(uint64_t) * (size_t)operands);
    return k->extent(p, params, operands, run, need);
}

const char *smg_probe_signature(const char *name) {
    const SmgKernel *k = find(name);
    return k ? k->signature : NULL;
}

const char *smg_probe_run(const char *name, void **op, int operands, const int32_t *p, int params, SmgRun run) {
    SmgCall c = {.operands = operands, .params = params, .p = p, .run = run};
    for (int i = 0; i < operands; i++) c.op[i] = op[i];
    return find(name)->run(&c);
}
