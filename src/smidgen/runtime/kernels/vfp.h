/* Loops over lanes that stay in the 32 registers of a single-precision unit of Arm's M profile: loads of eight registers
 * are one instruction, which gcc does not write. Each has a twin in C, and vmla rounds the product as C does. */
#ifndef SMG_VFP_H
#define SMG_VFP_H
#include "sum.h"

#if defined __GNUC__ && defined __thumb2__ && defined __ARM_ARCH_PROFILE && defined __ARM_FP
#define SMG_VFP (__ARM_ARCH_PROFILE == 'M' && (__ARM_FP & 4) != 0)
#else
#define SMG_VFP 0
#endif

#if SMG_VFP
#define SMG_VFP_LOW  "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", "s15"
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

/* s[l] += a[t][l] * b[t][l] for t = 0..T > 0 in order; steps in floats. */
static inline void smg_lane_products(float *s, const float *a, ptrdiff_t a_step, const float *b, ptrdiff_t b_step,
                                     int32_t T) {
#if SMG_VFP
    __asm__ volatile("vldmia %[s], {s0-s7}\n"
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
                     "vstmia %[s], {s0-s7}"
                     : [a] "+r"(a), [b] "+r"(b), [T] "+r"(T)
                     : [s] "r"(s), [as] "r"(4 * a_step), [bs] "r"(4 * b_step)
                     : SMG_VFP_LOW, "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "cc", "memory");
#else
    for (; T > 0; T--, a += a_step, b += b_step) {
        SMG_LANES(l) { s[l] += a[l] * b[l]; }
    }
#endif
}
#endif
