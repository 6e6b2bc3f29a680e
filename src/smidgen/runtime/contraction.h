/* Exact kernels round after every operation: a * b + c is never one instruction. Our own builds say so with
 * -ffp-contract=off; here it is said once more, for build systems that set no flags of ours (an Arduino library). */
#ifndef SMG_CONTRACTION_H
#define SMG_CONTRACTION_H

#ifndef SMG_ISA /* fast kernels may contract */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "exact kernels need IEEE arithmetic: build without -ffast-math and its parts"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && !defined(__TINYC__) && !defined(__STRICT_ANSI__) /* -std=c11 and its like do not contract */
#pragma GCC optimize("fp-contract=off")
#endif
#endif
#endif
