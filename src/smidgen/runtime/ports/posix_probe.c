/* Calls one fast kernel by name, outside any program: for op tests and benchmarks. The first argument is from
 * smg_posix_empty, after smg_posix_use_fast. */
#include "../format.h"
#include "posix.h"

extern const SmgPager smg_probe_pager; /* probe.c */

/* Runs the kernel of the set in use, if it has one; *found says so. Only for parameters that smg_probe_extent takes. */
SmgFault smg_probe_run_fast(const SmgPosix *p, const char *name, void **op, int operands, const int32_t *words,
                            int params, SmgRun run, int *found) {
    const char *said = "";
    SmgCall c = {.operands = operands,
                 .params = params,
                 .p = words,
                 .run = run,
                 .work = smg_posix_work(p),
                 .pager = &smg_probe_pager,
                 .said = &said};
    for (int i = 0; i < operands; i++) { c.op[i] = op[i]; }
    *found = 0;
    for (const SmgKernelSet *s = smg_kernel_sets; s->name; s++) {
        for (int k = 0; k < smg_kernel_count; k++) {
            if (!strcmp(s->name, smg_posix_set(p)) && !strcmp(smg_kernels[k]->name, name) && s->runs[k]) {
                *found = 1;
                return s->runs[k](&c);
            }
        }
    }
    return SMG_NO_FAULT;
}
