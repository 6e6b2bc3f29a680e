/* Names for a second compilation of a file, for one instruction set (-DSMG_ISA=avx2): whatever has external linkage
 * carries the set's name, so that the objects of several sets link into one library. */
#ifndef SMG_ISA_H
#define SMG_ISA_H

#define SMG_JOIN_(a, b, c) a##b##c
#define SMG_JOIN(a, b, c)  SMG_JOIN_(a, b, c)
#define SMG_LOCAL(name)    SMG_JOIN(smg_, SMG_ISA, _##name)       /* a function that files of fast/ share */
#define SMG_FAST(name)     SMG_JOIN(smg_fast_, SMG_ISA, _##name)  /* a kernel of fast/ */
#define SMG_PLAIN(name)    SMG_JOIN(smg_plain_, SMG_ISA, _##name) /* a kernel of kernels/ */
#define SMG_EXTERN(name)   SMG_JOIN(smg_exact_, SMG_ISA, _##name) /* a function that files of kernels/ share */
#endif
