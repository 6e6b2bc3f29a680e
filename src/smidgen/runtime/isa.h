/* Names for a second compilation of a file, for one instruction set (-DSMG_ISA=avx2): whatever has external linkage
 * gets the set's name, so that the objects of several sets link into one library. */
#ifndef SMG_ISA_H
#define SMG_ISA_H

#define SMG_JOIN_(a, b, c) a##b##c
#define SMG_JOIN(a, b, c)  SMG_JOIN_(a, b, c)
#define SMG_LOCAL(name)    SMG_JOIN(smg_, SMG_ISA, _##name)
#define SMG_FAST(name)     SMG_JOIN(smg_fast_, SMG_ISA, _##name)  /* a kernel of fast/ */
#define SMG_PLAIN(name)    SMG_JOIN(smg_plain_, SMG_ISA, _##name) /* an exact kernel's source */

#define smg_depthwise    SMG_LOCAL(depthwise_exact)
#define smg_depthwise_dx SMG_LOCAL(depthwise_exact_dx)
#define smg_depthwise_dw SMG_LOCAL(depthwise_exact_dw)
#define smg_dot          SMG_LOCAL(dot)
#define smg_dot_x4       SMG_LOCAL(dot_x4)
#define smg_dot8         SMG_LOCAL(dot8)
#define smg_sum8         SMG_LOCAL(sum8)
#define smg_rows         SMG_LOCAL(rows)
#define smg_outer        SMG_LOCAL(outer)
#endif
