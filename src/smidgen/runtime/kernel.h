/* What a kernel sees. A kernel is one C function that reads and writes only the extents it declares.
 *
 *   KERNEL(relu_f32, "oi", 1)          name, operands (o writes, i reads, u updates in place, s scratch,
 *                                      P writes and p reads PAGE, b begins to be written and w is waited for,
 *                                      ? after a letter: may be absent; + after the last: one or more), parameters
 *                                      (-1: the count varies and the extent function checks it)
 *   KERNEL_FLAGS(copy_b1, "oi", -1, SMG_COPIES | SMG_BYTES)
 *                                      the same with what the runtime has to know beside (SmgKernelFlag)
 *   EXTENT(relu_f32)                   bytes needed of each operand for given parameters; 0, or -1 to refuse them
 *
 * Parameters come from a file that may be hostile: EXTENT must refuse whatever could make the kernel divide by
 * zero, touch a byte outside what it declares, or do more work than a constant times the product of its two largest
 * operands (tests/fuzz counts it). Sizes are multiplied with smg_mul, which saturates.
 * Exact mode: no contraction, no library functions, a fixed order of operations; long sums run in eight lanes. */
#ifndef SMG_KERNEL_H
#define SMG_KERNEL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "contraction.h"
#include "smidgen.h"

#define SMG_MAX_OPERANDS 24
#define SMG_MAX_PARAMS   96
#define SMG_MAX_RANK     8

typedef struct {
    int32_t n;     /* samples at hand */
    int32_t total; /* samples of the whole batch, over all micro-batches */
    int32_t index; /* iteration of the loop around this instruction */
} SmgRun;

struct SmgWork;
typedef struct {
    void *op[SMG_MAX_OPERANDS]; /* NULL where an optional operand is absent; of PAGE, the offset in it */
    int32_t operands;
    int32_t params;
    const int32_t *p; /* sizes that grow with the batch are already multiplied by n */
    SmgRun run;
    const struct SmgWork *work; /* threads and their memory, for fast kernels (fast/fast.h); else NULL */
#if SMG_PAGES
    const SmgPager *pager;
    const char **said; /* where a pager's text goes, with SMG_FAULT_PAGER */
#endif
} SmgCall;

/* SMG_NO_FAULT, or what is wrong with the data (a label out of range, …). */
typedef SmgFault (*SmgKernelFn)(const SmgCall *c);
typedef int (*SmgExtentFn)(const int32_t *p, int params, int operands, SmgRun run, uint64_t *need);

typedef enum {
    SMG_COPIES = 1,     /* nothing but a strided copy: a channel can take the place of one side */
    SMG_BYTES = 2,      /* moves single bytes: operands may lie at any address; copies are bytes, not words */
    SMG_STARTS = 4,     /* begins to bring a page in, which another instruction waits for: the pager needs a thread */
    SMG_STATISTICS = 8, /* refuses a single value per channel: SMG_FAULT_TOO_FEW */
    SMG_PLACED = 16     /* two parameters each from SMG_TALL and SMG_WIDE on say which rows, or columns, of an image are
                         * there: the first of x and the first of y. Any numbers: nothing else is touched for them */
} SmgKernelFlag;
enum { SMG_TALL = 8, SMG_WIDE = 12 };

typedef struct {
    const char *name, *signature;
    int16_t params;
    uint16_t flags; /* SmgKernelFlag */
    SmgKernelFn run;
    SmgExtentFn extent;
} SmgKernel;

#define SMG_TOO_MUCH UINT64_MAX
/* Arithmetic of sizes; inline, or once for all (extents.c) where size matters. */
#ifdef __OPTIMIZE_SIZE__
uint64_t smg_mul(uint64_t a, uint64_t b);
uint64_t smg_add(uint64_t a, uint64_t b);
int64_t smg_div(int64_t a, int64_t b);
uint64_t smg_span(const int32_t *dims, const int32_t *strides, int rank);
#else
#define SMG_EXTENTS static inline
#include "extents.h"
#endif
static inline float smg_f32(int32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
/* A double from two parameters, the low word first whatever the target's byte order. */
static inline double smg_f64(const int32_t *words) {
    const uint64_t bits = (uint64_t)(uint32_t)words[1] << 32 | (uint32_t)words[0];
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

#define KERNEL(name_, signature_, params_) KERNEL_FLAGS(name_, signature_, params_, 0)
#ifdef SMG_ISA /* once more for one instruction set and with relaxed arithmetic: only the functions are wanted */
#include "isa.h"
#define KERNEL_FLAGS(name_, signature_, params_, flags_) \
    SmgFault SMG_PLAIN(name_)(const SmgCall *c);         \
    SmgFault SMG_PLAIN(name_)(const SmgCall *c)
#define EXTENT(name_) SMG_UNUSED static int name_##_extent(EXTENT_ARGUMENTS)
#else
#define SMG_EXTERN(name) smg_##name /* isa.h */
/* The texts are variables, so that the linker drops them together with a kernel that is not used. */
#define KERNEL_FLAGS(name_, signature_, params_, flags_)                                    \
    static SmgFault name_##_run(const SmgCall *c);                                          \
    static const char name_##_name[] = #name_, name_##_signature[] = signature_;            \
    const SmgKernel smg_kernel_##name_ = {name_##_name, name_##_signature, params_,         \
                                          flags_,       name_##_run,       name_##_extent}; \
    static SmgFault name_##_run(const SmgCall *c)
#define EXTENT(name_) static int name_##_extent(EXTENT_ARGUMENTS)
#endif
/* Most extents follow from the parameters alone. */
#define SMG_UNUSED __attribute__((unused))
#define EXTENT_ARGUMENTS \
    SMG_UNUSED const int32_t *p, SMG_UNUSED int params, SMG_UNUSED int operands, SMG_UNUSED SmgRun run, uint64_t *need

/* A family of kernels states its block of parameters as a struct of four-byte fields, int32_t or float, in the order
 * of the block. PARAMS(Type) counts them, for KERNEL: the loader refuses a block of any other length, so that
 *     UNPACK(type_of, Type)      defines      Type type_of(const int32_t *p)
 * reads only what is there. A block whose length varies begins with such a struct, and its extent compares `params`. */
#define PARAMS(type) ((int)(sizeof(type) / sizeof(int32_t)))
#if defined(__GNUC__) && !defined(__TINYC__) /* only the fields that are used are loaded, and nothing is copied */
#define UNPACK(function, type)                                                     \
    typedef struct {                                                               \
        type v;                                                                    \
    } __attribute__((may_alias)) function##_block;                                 \
    __attribute__((always_inline)) static inline type function(const int32_t *p) { \
        return ((const function##_block *)p)->v;                                   \
    }
#else
#define UNPACK(function, type)                      \
    static inline type function(const int32_t *p) { \
        type v;                                     \
        memcpy(&v, p, sizeof v);                    \
        return v;                                   \
    }
#endif

/* In front of a short loop whose turns should stand one after the other also where size matters. */
#if defined __OPTIMIZE_SIZE__ && defined __GNUC__ && !defined __clang__
#define SMG_UNROLL _Pragma("GCC unroll 8")
#else
#define SMG_UNROLL
#endif

/* Operand i of the call c, as an array of `type`: to write and to read. */
#define OUT_AS(type, i) ((type *)c->op[i])
#define IN_AS(type, i)  ((const type *)c->op[i])
#define OUT(i)          OUT_AS(float, i)
#define IN(i)           IN_AS(float, i)
#define OPTIONAL_IN(i)  (c->operands > (i) ? IN(i) : NULL)
#endif
