/* Which instruction sets this machine and its system offer. Asked of the processor itself: the compiler's own functions
 * (__builtin_cpu_supports) need a part of libgcc that not every linker finds. */
#ifndef SMG_POSIX_CPU_H
#define SMG_POSIX_CPU_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SMG_CPU_FMA = 1 << 0,
    SMG_CPU_AVX2 = 1 << 1,
    SMG_CPU_AVX512F = 1 << 2,
    SMG_CPU_AVX512DQ = 1 << 3,
    SMG_CPU_AVX512BW = 1 << 4,
    SMG_CPU_AVX512VL = 1 << 5,
};

/* Those that programs may use; 0 on anything but x86-64. */
uint32_t smg_cpu_features(void);

/* The same from what the processor tells: ecx of leaf 1, ebx of leaf 7, and XCR0, the registers that the system saves
 * when it switches tasks (0 without XGETBV). */
uint32_t smg_cpu_features_of(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0);

/* What kernels compiled for this set (compile.py) need; all bits for a set that is not known. */
uint32_t smg_cpu_needs(const char *set);
/* Whether they run here. */
int smg_cpu_runs(const char *set);

#ifdef __cplusplus
}
#endif
#endif
