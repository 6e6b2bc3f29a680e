/* Loops over lanes that stay in the 32 registers of a single-precision unit of Arm's M profile: loads of eight
 * registers are one instruction, which gcc does not write. Each has a twin in C, and vmla rounds products as C does. */
#ifndef SMG_VFP_H
#define SMG_VFP_H
#include "sum.h"

#if defined __GNUC__ && defined __thumb2__ && defined __ARM_ARCH_PROFILE && defined __ARM_FP
#define SMG_VFP (__ARM_ARCH_PROFILE == 'M' && (__ARM_FP & 4) != 0)
#else
#define SMG_VFP 0
#endif

#if SMG_VFP
// clang-format off
#define SMG_VFP_LOW \
    "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", "s15"
// clang-format on
#define SMG_VFP_HIGH "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25"
#define SMG_VFP_LAST "s26", "s27", "s28", "s29", "s30", "s31"
#endif

/* sum[l] += a[t] * b[t][l], sum[8 + l] += c[t] * b[t][l] for t = 0..T > 0 in order; steps in floats. */
static inline void smg_two_rows(float *sum, const float *a, const float *c, ptrdiff_t a_step, const float *b,
                                ptrdiff_t b_step, int32_t T) {
#if SMG_VFP
    __asm__ volatile("vldmia %[sum], {s0-s15}\n"
                     "1:\n\t"
                     "vldmia %[b], {s16-s23}\n\t"
                     "vldr s24, [%[a]]\n\t"
                     "vldr s25, [%[c]]\n\t"
                     "vmla.f32 s0, s24, s16\n\t"
                     "vmla.f32 s8, s25, s16\n\t"
                     "vmla.f32 s1, s24, s17\n\t"
                     "vmla.f32 s9, s25, s17\n\t"
                     "add %[b], %[b], %[bs]\n\t"
                     "vmla.f32 s2, s24, s18\n\t"
                     "vmla.f32 s10, s25, s18\n\t"
                     "vmla.f32 s3, s24, s19\n\t"
                     "vmla.f32 s11, s25, s19\n\t"
                     "add %[a], %[a], %[as]\n\t"
                     "vmla.f32 s4, s24, s20\n\t"
                     "vmla.f32 s12, s25, s20\n\t"
                     "vmla.f32 s5, s24, s21\n\t"
                     "vmla.f32 s13, s25, s21\n\t"
                     "add %[c], %[c], %[as]\n\t"
                     "vmla.f32 s6, s24, s22\n\t"
                     "vmla.f32 s14, s25, s22\n\t"
                     "subs %[T], #1\n\t"
                     "vmla.f32 s7, s24, s23\n\t"
                     "vmla.f32 s15, s25, s23\n\t"
                     "bne 1b\n\t"
                     "vstmia %[sum], {s0-s15}"
                     : [a] "+r"(a), [c] "+r"(c), [b] "+r"(b), [T] "+r"(T)
                     : [sum] "r"(sum), [as] "r"(4 * a_step), [bs] "r"(4 * b_step)
                     : SMG_VFP_LOW, SMG_VFP_HIGH, "cc", "memory");
#else
    float s[8], r[8];
    SMG_LANES(l) { s[l] = sum[l]; }
    SMG_LANES(l) { r[l] = sum[8 + l]; }
    for (; T > 0; T--, a += a_step, c += a_step, b += b_step) {
        const float x = *a, y = *c;
        SMG_LANES(l) {
            s[l] += x * b[l];
            r[l] += y * b[l];
        }
    }
    SMG_LANES(l) { sum[l] = s[l]; }
    SMG_LANES(l) { sum[8 + l] = r[l]; }
#endif
}

/* sum[4 * i + l] += a[i * row + t] * b[t][l] for four rows of a, four lanes and t = 0..T > 0 in order. */
static inline void smg_four_rows(float *sum, const float *a, ptrdiff_t row, const float *b, ptrdiff_t b_step,
                                 int32_t T) {
#if SMG_VFP
    const float *a1 = a + row, *a2 = a1 + row, *a3 = a2 + row;
    __asm__ volatile("vldmia %[sum], {s0-s15}\n"
                     "1:\n\t"
                     "vldmia %[b], {s16-s19}\n\t"
                     "vldmia %[a]!, {s20}\n\t"
                     "vldmia %[a1]!, {s21}\n\t"
                     "vldmia %[a2]!, {s22}\n\t"
                     "vldmia %[a3]!, {s23}\n\t"
                     "add %[b], %[b], %[bs]\n\t"
                     "subs %[T], #1\n\t"
                     "vmla.f32 s0, s20, s16\n\t"
                     "vmla.f32 s1, s20, s17\n\t"
                     "vmla.f32 s2, s20, s18\n\t"
                     "vmla.f32 s3, s20, s19\n\t"
                     "vmla.f32 s4, s21, s16\n\t"
                     "vmla.f32 s5, s21, s17\n\t"
                     "vmla.f32 s6, s21, s18\n\t"
                     "vmla.f32 s7, s21, s19\n\t"
                     "vmla.f32 s8, s22, s16\n\t"
                     "vmla.f32 s9, s22, s17\n\t"
                     "vmla.f32 s10, s22, s18\n\t"
                     "vmla.f32 s11, s22, s19\n\t"
                     "vmla.f32 s12, s23, s16\n\t"
                     "vmla.f32 s13, s23, s17\n\t"
                     "vmla.f32 s14, s23, s18\n\t"
                     "vmla.f32 s15, s23, s19\n\t"
                     "bne 1b\n\t"
                     "vstmia %[sum], {s0-s15}"
                     : [a] "+r"(a), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [b] "+r"(b), [T] "+r"(T)
                     : [sum] "r"(sum), [bs] "r"(4 * b_step)
                     : SMG_VFP_LOW, SMG_VFP_HIGH, "cc", "memory");
#else
    for (; T > 0; T--, a++, b += b_step) {
        for (int i = 0; i < 4; i++) {
            const float x = a[i * row];
            for (int l = 0; l < 4; l++) { sum[4 * i + l] += x * b[l]; }
        }
    }
#endif
}

/* total[l] += part[l] for sixteen lanes. */
static inline void smg_add_sixteen(float *total, const float *part) {
#if SMG_VFP
    __asm__ volatile("vldmia %[total], {s0-s15}\n\t"
                     "vldmia %[part], {s16-s31}\n\t"
                     "vadd.f32 s0, s0, s16\n\t"
                     "vadd.f32 s1, s1, s17\n\t"
                     "vadd.f32 s2, s2, s18\n\t"
                     "vadd.f32 s3, s3, s19\n\t"
                     "vadd.f32 s4, s4, s20\n\t"
                     "vadd.f32 s5, s5, s21\n\t"
                     "vadd.f32 s6, s6, s22\n\t"
                     "vadd.f32 s7, s7, s23\n\t"
                     "vadd.f32 s8, s8, s24\n\t"
                     "vadd.f32 s9, s9, s25\n\t"
                     "vadd.f32 s10, s10, s26\n\t"
                     "vadd.f32 s11, s11, s27\n\t"
                     "vadd.f32 s12, s12, s28\n\t"
                     "vadd.f32 s13, s13, s29\n\t"
                     "vadd.f32 s14, s14, s30\n\t"
                     "vadd.f32 s15, s15, s31\n\t"
                     "vstmia %[total], {s0-s15}"
                     :
                     : [total] "r"(total), [part] "r"(part)
                     : SMG_VFP_LOW, SMG_VFP_HIGH, SMG_VFP_LAST, "memory");
#else
    for (int l = 0; l < 16; l++) { total[l] += part[l]; }
#endif
}
/* s[l] += a[l] * b[l], s[8 + l] += a[l] * c[l] for `eights` > 0 times eight lanes. */
static inline void smg_two_dots(float *s, const float *a, const float *b, const float *c, int32_t eights) {
#if SMG_VFP
    __asm__ volatile("vldmia %[s], {s0-s15}\n"
                     "1:\n\t"
                     "vldmia %[a]!, {s16-s23}\n\t"
                     "vldmia %[b]!, {s24-s31}\n\t"
                     "subs %[eights], #1\n\t"
                     "vmla.f32 s0, s16, s24\n\t"
                     "vmla.f32 s1, s17, s25\n\t"
                     "vmla.f32 s2, s18, s26\n\t"
                     "vmla.f32 s3, s19, s27\n\t"
                     "vmla.f32 s4, s20, s28\n\t"
                     "vmla.f32 s5, s21, s29\n\t"
                     "vmla.f32 s6, s22, s30\n\t"
                     "vmla.f32 s7, s23, s31\n\t"
                     "vldmia %[c]!, {s24-s31}\n\t"
                     "vmla.f32 s8, s16, s24\n\t"
                     "vmla.f32 s9, s17, s25\n\t"
                     "vmla.f32 s10, s18, s26\n\t"
                     "vmla.f32 s11, s19, s27\n\t"
                     "vmla.f32 s12, s20, s28\n\t"
                     "vmla.f32 s13, s21, s29\n\t"
                     "vmla.f32 s14, s22, s30\n\t"
                     "vmla.f32 s15, s23, s31\n\t"
                     "bne 1b\n\t"
                     "vstmia %[s], {s0-s15}"
                     : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [eights] "+r"(eights)
                     : [s] "r"(s)
                     : SMG_VFP_LOW, SMG_VFP_HIGH, SMG_VFP_LAST, "cc", "memory");
#else
    for (; eights > 0; eights--, a += 8, b += 8, c += 8) {
        SMG_LANES(l) {
            const float x = a[l];
            s[l] += x * b[l];
            s[8 + l] += x * c[l];
        }
    }
#endif
}

/* y[l] += the sum of a[t][l] * b[t][l] for t = 0..T in order, of eight lanes; steps in floats. */
static inline void smg_lane_products(float *y, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                                     int32_t T) {
#if SMG_VFP
    if (T <= 0) { return; }
    __asm__ volatile("vmov s0, s1, %[zero], %[zero]\n\t"
                     "vmov s2, s3, %[zero], %[zero]\n\t"
                     "vmov s4, s5, %[zero], %[zero]\n\t"
                     "vmov s6, s7, %[zero], %[zero]\n"
                     "1:\n\t"
                     "vldmia %[a], {s8-s15}\n\t"
                     "vldmia %[b], {s16-s23}\n\t"
                     "add %[a], %[a], %[as]\n\t"
                     "add %[b], %[b], %[bs]\n\t"
                     "subs %[T], #1\n\t"
                     "vmla.f32 s0, s8, s16\n\t"
                     "vmla.f32 s1, s9, s17\n\t"
                     "vmla.f32 s2, s10, s18\n\t"
                     "vmla.f32 s3, s11, s19\n\t"
                     "vmla.f32 s4, s12, s20\n\t"
                     "vmla.f32 s5, s13, s21\n\t"
                     "vmla.f32 s6, s14, s22\n\t"
                     "vmla.f32 s7, s15, s23\n\t"
                     "bne 1b\n\t"
                     "vldmia %[y], {s8-s15}\n\t"
                     "vadd.f32 s0, s8, s0\n\t"
                     "vadd.f32 s1, s9, s1\n\t"
                     "vadd.f32 s2, s10, s2\n\t"
                     "vadd.f32 s3, s11, s3\n\t"
                     "vadd.f32 s4, s12, s4\n\t"
                     "vadd.f32 s5, s13, s5\n\t"
                     "vadd.f32 s6, s14, s6\n\t"
                     "vadd.f32 s7, s15, s7\n\t"
                     "vstmia %[y], {s0-s7}"
                     : [a] "+r"(a), [b] "+r"(b), [T] "+r"(T)
                     : [y] "r"(y), [as] "r"(4 * a_step), [bs] "r"(4 * b_step), [zero] "r"(0)
                     : SMG_VFP_LOW, "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "cc", "memory");
#else
    float sum[8] = {0};
    for (; T > 0; T--, a += a_step, b += b_step) {
        SMG_LANES(l) { sum[l] += a[l] * b[l]; }
    }
    SMG_LANES(l) { y[l] += sum[l]; }
#endif
}
#endif
