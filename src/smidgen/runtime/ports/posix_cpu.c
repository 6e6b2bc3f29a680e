/* See posix_cpu.h. Bits as in the Intel manual, volume 2, CPUID, and volume 1, chapter 13 (XCR0). */
#include "posix_cpu.h"
#include <string.h>

#define BIT(word, n) ((word) >> (n) & 1u)
#define XCR0_AVX     0x06u /* xmm and ymm */
#define XCR0_AVX512  0xe6u /* beside them opmask, the upper halves of zmm0-15, and zmm16-31 */

uint32_t smg_cpu_features_of(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0) {
    const int avx = BIT(leaf1_ecx, 28) && (xcr0 & XCR0_AVX) == XCR0_AVX;
    const int avx512 = avx && BIT(leaf7_ebx, 16) && (xcr0 & XCR0_AVX512) == XCR0_AVX512;
    uint32_t found = 0;
    if (avx && BIT(leaf1_ecx, 12)) { found |= SMG_CPU_FMA; }
    if (avx && BIT(leaf7_ebx, 5)) { found |= SMG_CPU_AVX2; }
    if (avx512) { found |= SMG_CPU_AVX512F; }
    if (avx512 && BIT(leaf7_ebx, 17)) { found |= SMG_CPU_AVX512DQ; }
    if (avx512 && BIT(leaf7_ebx, 30)) { found |= SMG_CPU_AVX512BW; }
    if (avx512 && BIT(leaf7_ebx, 31)) { found |= SMG_CPU_AVX512VL; }
    return found;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__TINYC__)
typedef struct {
    uint32_t eax, ebx, ecx, edx;
} Registers;

static Registers cpuid(uint32_t leaf) {
    Registers r;
    __asm__ volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(leaf), "c"(0));
    return r;
}

/* Only where leaf 1 says that the system has switched XGETBV on (OSXSAVE): it is an illegal instruction elsewhere. */
static uint64_t xgetbv(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

uint32_t smg_cpu_features(void) {
    const uint32_t last = cpuid(0).eax, leaf1_ecx = cpuid(1).ecx;
    return smg_cpu_features_of(leaf1_ecx, last >= 7 ? cpuid(7).ebx : 0, BIT(leaf1_ecx, 27) ? xgetbv() : 0);
}
#else
uint32_t smg_cpu_features(void) { return 0; }
#endif

/* A set and all that its flags in compile.py let the compiler use. Every x86-64 has SSE2, every AArch64 has NEON. */
static const struct {
    const char *set;
    uint32_t needs;
} sets[] = {
    {"avx512", SMG_CPU_AVX512F | SMG_CPU_AVX512VL | SMG_CPU_AVX512DQ | SMG_CPU_AVX512BW | SMG_CPU_AVX2 | SMG_CPU_FMA},
    {"avx2", SMG_CPU_AVX2 | SMG_CPU_FMA},
    {"sse2", 0},
    {"neon", 0},
};

uint32_t smg_cpu_needs(const char *set) {
    for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (strcmp(set, sets[i].set) == 0) { return sets[i].needs; }
    }
    return UINT32_MAX;
}

int smg_cpu_runs(const char *set) { return (smg_cpu_needs(set) & ~smg_cpu_features()) == 0; }
