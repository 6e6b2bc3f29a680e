/* The functions of extents.h, once, for builds that are optimized for size. */
#include "kernel.h"
#ifdef __OPTIMIZE_SIZE__
#define SMG_EXTENTS
#include "extents.h"
#else
typedef int SmgNothingHere; /* an empty file is not C */
#endif
