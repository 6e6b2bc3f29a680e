/* Runs fast kernels on operands from malloc in exactly the sizes given, so that a sanitizer sees every step outside.
 * stdin, one case a line: kernel threads operands bytes… params words…; prints the number of cases. */
#include "fast/threads.h"
#include <stdio.h>
#include <stdlib.h>

SmgWork *fast_open(int threads, int wide);
void fast_close(SmgWork *work);
int fast_has(const char *name);
SmgFault fast_run(const SmgWork *work, const char *name, void **op, int operands, const int32_t *p, int params,
                  SmgRun run);

int main(void) {
    char name[64];
    int threads, operands, params, cases = 0;
    uint32_t seed = 1;
    while (scanf("%63s %d %d", name, &threads, &operands) == 3) {
        void *op[SMG_MAX_OPERANDS] = {0};
        int32_t p[SMG_MAX_PARAMS];
        for (int i = 0; i < operands; i++) {
            size_t bytes;
            if (scanf("%zu", &bytes) != 1) { return 1; }
            float *f = op[i] = malloc(bytes ? bytes : 1);
            for (size_t k = 0; k < bytes / 4; k++) {
                seed = seed * 1664525u + 1013904223u;
                f[k] = (float)(seed >> 8) / 16777216.0f;
            }
        }
        if (scanf("%d", &params) != 1 || params > SMG_MAX_PARAMS) { return 1; }
        for (int i = 0; i < params; i++) {
            if (scanf("%d", &p[i]) != 1) { return 1; }
        }
        if (!fast_has(name)) { return 1; }
        SmgWork *work = fast_open(threads, threads == 2);
        const SmgFault fault = fast_run(work, name, op, operands, p, params, (SmgRun){1, 1, 0});
        if (fault) { printf("fault %d\n", (int)fault); }
        fast_close(work);
        for (int i = 0; i < operands; i++) { free(op[i]); }
        cases++;
    }
    printf("%d\n", cases);
    return 0;
}
