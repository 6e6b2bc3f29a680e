/* What the parts of the proof share (check.c, check_rows.c): where it is, and how it refuses. */
#ifndef SMG_CHECK_H
#define SMG_CHECK_H
#include "format.h"
#include "rows.h"

#if SMG_PAGES
typedef struct {
    uint32_t to, bytes, page; /* words of the operands, and how much goes to `to` */
} SmgStarted;
#endif

typedef struct {
    SmgContext *x;
    int entry;
    uint32_t instruction;
    const char *kernel;
    unsigned flags; /* of the kernel */
    const uint32_t *record;
    int32_t n;     /* samples at hand */
    int32_t scale; /* n as it enters sizes: 1 inside a loop over samples */
    int32_t count; /* iterations of the loop around it, else 1 */
    int counted;   /* that loop says itself how often it runs */
#if SMG_ROWS
    const uint32_t *table;  /* of the stream around it, or NULL */
    uint32_t left, place;   /* instructions of its body: still to come, and before this one */
    const SmgRowRule *rule; /* of this one, or NULL */
    SmgTurn turn;           /* rows that it makes */
    uint32_t single;        /* a bit for each operand that consists of bytes */
#endif
#if SMG_PAGES
    int in_loop, pending;
    SmgStarted started[SMG_MAX_STARTED]; /* pages on their way, `pending` of them */
#endif
} SmgCheck;

SmgStatus smg_refuse_as(const SmgCheck *c, SmgFault fault, const char *why);
SmgStatus smg_refuse(const SmgCheck *c, const char *why);
SmgStatus smg_refuse_operand_as(const SmgCheck *c, SmgFault fault, unsigned operand, const char *why);
SmgStatus smg_refuse_operand(const SmgCheck *c, unsigned operand, const char *why);

/* Everything about an instruction with these parameters. */
SmgStatus smg_check_call(SmgCheck *c, const uint32_t *code, const int32_t *p, uint32_t params, const SmgRole *roles);

#if SMG_ROWS
/* A bit for each operand that consists of bytes: a single row of it takes an odd number of them. */
uint32_t smg_single_bytes(const SmgCheck *c, const uint32_t *code, const uint32_t *block);
/* The head of a stream: `left` instructions are left of the loop around it. */
SmgStatus smg_check_stream(SmgCheck *c, const uint32_t *code, uint32_t left);
/* An instruction of its body, with its block of parameters: every way in which it makes rows. */
SmgStatus smg_check_rows(SmgCheck *c, const uint32_t *code, const uint32_t *block, const SmgRole *roles);
/* For smg_check_call: *need from the start of an operand's value, wherever its rows are in it. */
SmgStatus smg_check_moves(const SmgCheck *c, const uint32_t *code, unsigned operand, uint64_t *need);
/* Result and operand j share memory: does the instruction never write rows of j that it reads then, or later? `made`
 * bytes from the start of the result; j begins `behind` bytes after it; `inplace`: the kernel may write over it. */
int smg_check_behind(const SmgCheck *c, const uint32_t *code, unsigned j, uint64_t made, int64_t behind, int inplace);
#endif
#endif
